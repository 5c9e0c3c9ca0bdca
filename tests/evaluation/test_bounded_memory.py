"""Memory does not grow with k: peak of a fresh process at k = 5,000 at most 1.05 times that at k = 50."""

import subprocess
import sys

import torch
from torch import nn

from bsvi import SVI, VAE
from bsvi.evaluation.evaluate import evaluate
from tests.oracles import BernoulliDecoder
from tests.paper.test_memory import Live

CODE = """if True:
    import resource, sys, torch
    from torch import nn
    from bsvi import VAE
    from bsvi.evaluation.evaluate import evaluate
    from tests.oracles import BernoulliDecoder
    torch.set_num_threads(1)
    torch.manual_seed(0)
    k = int(sys.argv[1])
    model = VAE(nn.Linear(64, 16), BernoulliDecoder(8, 64, 128))
    evaluate(model, torch.rand(10, 64).round(), k=k, iwae=(k,), elbo_draws=4)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(k):
    return int(subprocess.run([sys.executable, "-c", CODE, str(k)], check=True, capture_output=True, text=True).stdout)


def test_peak_memory_at_k_5000_is_that_at_k_50():
    small, large = peak(50), peak(5000)
    assert large <= 1.05 * small, (small, large)  # kB; measured 1.00


def test_no_graph_outlives_its_step():
    """What autograd keeps, counted: the same at k = 4 and at k = 40."""
    model = VAE(nn.Linear(20, 8), BernoulliDecoder(hidden=256))
    x = torch.rand(50, 20).round()

    def kept(k):
        with Live() as live:
            evaluate(model, x, k=k, svi=SVI(samples=2))
        return live.peak

    assert kept(40) == kept(4)
