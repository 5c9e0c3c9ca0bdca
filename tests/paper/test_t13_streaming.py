"""T13: the bound of 500 SVI steps, accumulated one proposal at a time, is the bound of the whole chain. Deterministic."""

import torch

from bsvi import SVI, Uniform, giwae
from bsvi.bounds import extend
from bsvi.draws import encode
from tests.oracles import PPCA


def test_streaming_equals_direct_over_500_steps():
    model = PPCA().start_wide()
    svi, x = SVI(steps=500), model.batch(20)
    log_pi = Uniform()(501)
    torch.manual_seed(3)
    direct = giwae(svi(model, x, attach=0)[0].log_w, log_pi)
    torch.manual_seed(3)
    total, count = torch.full((20,), -torch.inf, dtype=torch.float64), 0
    for step in svi.walk(model, x, encode(model, x)):
        total, count = extend(total, step.weighed.log_w, log_pi[:1]), count + 1
    assert count == 501
    torch.testing.assert_close(total, direct, rtol=0, atol=1e-13)
