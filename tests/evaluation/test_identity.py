"""A store never answers for another model: whatever decides a number is asked for, or the store is refused."""

import functools
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import (
    Categorical,
    Gamma,
    Independent,
    Laplace,
    MixtureSameFamily,
    Normal,
    TransformedDistribution,
)
from torch.distributions.transforms import TanhTransform

from bsvi import SVI, VAE, DiagonalGaussian, ais, amortization_gap, evaluate
from bsvi.checks.identity import identify
from bsvi.nets import MLPDecoder, MLPEncoder
from bsvi.runs.store import _encode
from tests.oracles import BernoulliDecoder

X = torch.rand(4, 20, generator=torch.Generator().manual_seed(0)).round()
FAST = {"k": 2, "iwae": (), "elbo_draws": 1}
SHORT = {"chains": 2, "temperatures": 3, "leapfrog": 1, "pilots": 1}


def normal(scale, size=4):
    return Independent(Normal(torch.zeros(size), torch.full((size,), float(scale))), 1)


def laplace(lambda_, scale=1.0):
    return Independent(Laplace(lambda_[..., :4], scale * lambda_[..., 4:].exp()), 1)


def decode(scale):
    return lambda x, z: -(x[:, :4] - scale * z).square().sum(-1)


def decode_with(x, z, scale=1.0):
    return -(x[:, :4] - scale * z).square().sum(-1)


class Pointwise(nn.Module):
    def __init__(self, layer, **settings):
        super().__init__()
        torch.manual_seed(1)
        self.layer, self.inner = layer, BernoulliDecoder()
        vars(self).update(settings)

    def forward(self, x, z):
        return self.inner(x, self.layer(z))


class Plain:
    """A model that is no Module."""

    def __init__(self, scale):
        self.scale = scale

    def encode(self, x):
        return torch.zeros(len(x), 8)

    def posterior(self, lambda_):
        return DiagonalGaussian(lambda_)

    def log_prior(self, z):
        return normal(1.0).log_prob(z)

    def log_lik(self, x, z):
        return -(x[:, :4] - self.scale * z).square().sum(-1)


class TakesKL(VAE):
    def kl(self, q):
        return None


def other_prior(name):
    class Own(VAE):
        def log_prior(self, z):
            return normal(1.0 if name == "a" else 2.0).log_prob(z)

    class Other(VAE):
        def log_prior(self, z):
            return normal(1.0).log_prob(z) + 0.1

    Other.__name__, Other.__qualname__ = Own.__name__, Own.__qualname__
    return Own if name in "ab" else Other


def patched(model, scale):
    model.log_lik = lambda x, z: scale * model.decoder(x, z)
    return model


def hooked(model, scale):
    model.decoder.register_forward_hook(lambda module, given, out: scale * out)
    return model


SCALE = 1.0


def reads_a_global(x, z):
    return -(x[:, :4] - SCALE * z).square().sum(-1)


def with_global(value):
    changed = dict(reads_a_global.__globals__, SCALE=value)
    return type(reads_a_global)(reads_a_global.__code__, changed, "reads_a_global")


def vae(decoder=None, model=VAE, **options):
    torch.manual_seed(0)
    return model(nn.Linear(20, 8), BernoulliDecoder() if decoder is None else decoder, **options)


PAIRS = {  # two models of equal weights (or two questions) that are two functions
    "prior": lambda: (vae(prior=normal(1)), vae(prior=normal(2))),
    "no prior": lambda: (vae(), vae(prior=normal(1.5))),
    "a function's prior": lambda: (vae(prior=lambda: normal(1)), vae(prior=lambda: normal(2))),
    "mixture prior": lambda: tuple(
        vae(
            prior=MixtureSameFamily(
                Categorical(logits=torch.tensor([0.0, a])), Independent(Normal(torch.zeros(2, 4), 1.0), 1)
            )
        )
        for a in (0.0, 1.0)
    ),
    "family": lambda: (vae(), vae(posterior=laplace)),
    "partial": lambda: tuple(vae(posterior=functools.partial(laplace, scale=a)) for a in (1.0, 2.0)),
    "closure": lambda: (vae(decode(1.0)), vae(decode(2.0))),
    "closed-over tensor": lambda: (vae(decode(torch.ones(4))), vae(decode(torch.full((4,), 2.0)))),
    "code": lambda: (
        vae(lambda x, z: -(x[:, :4] - z).square().sum(-1)),
        vae(lambda x, z: -(x[:, :4] + z).square().sum(-1)),
    ),
    "constant": lambda: (vae(lambda x, z: -1.0 * z.square().sum(-1)), vae(lambda x, z: -2.0 * z.square().sum(-1))),
    "default": lambda: tuple(vae(lambda x, z, a=a: -a * z.square().sum(-1)) for a in (1.0, 2.0)),
    "partial decoder": lambda: tuple(vae(functools.partial(decode_with, scale=a)) for a in (1.0, 2.0)),
    "global": lambda: (vae(with_global(1.0)), vae(with_global(2.0))),
    "layer": lambda: (vae(Pointwise(nn.Tanh())), vae(Pointwise(nn.ReLU()))),
    "layer's setting": lambda: (vae(Pointwise(nn.LeakyReLU(0.1))), vae(Pointwise(nn.LeakyReLU(0.2)))),
    "attribute": lambda: (vae(Pointwise(nn.Tanh(), power=1)), vae(Pointwise(nn.Tanh(), power=2))),
    "kl": lambda: (vae(), vae(model=TakesKL)),
    "overridden method": lambda: (vae(model=other_prior("a")), vae(model=other_prior("b"))),
    "class of the same name": lambda: (vae(model=other_prior("a")), vae(model=other_prior("c"))),
    "patched": lambda: (patched(vae(), 1.0), patched(vae(), 2.0)),
    "hook": lambda: (hooked(vae(), 1.0), hooked(vae(), 2.0)),
    "compiled": lambda: tuple(vae(torch.compile(decode(a), backend="eager")) for a in (1.0, 2.0)),
    "no module": lambda: (Plain(1.0), Plain(2.0)),
}


@pytest.mark.parametrize("name", list(PAIRS))
def test_another_model_is_refused(name, tmp_path):
    one, other = PAIRS[name]()
    first = evaluate(one, X, store=tmp_path / "store", **FAST)
    again = evaluate(PAIRS[name]()[0], X, store=tmp_path / "store", **FAST)  # made anew, it is the same model
    np.testing.assert_array_equal(again.log_likelihood.per_example, first.log_likelihood.per_example)
    with pytest.raises(ValueError, match="holds another evaluation") as error:
        evaluate(other, X, store=tmp_path / "store", **FAST)
    assert "\n" not in str(error.value) and "remove it or name another file" in str(error.value)


def test_another_refinement_climb_prior_or_reverse_is_refused(tmp_path):
    class Lazier(SVI):
        def ascend(self, lambda_, gradient, state):
            return lambda_ + 0.5 * gradient, None

    class Twin(SVI):
        def ascend(self, lambda_, gradient, state):
            return lambda_ + 0.25 * gradient, None

    Twin.__name__, Twin.__qualname__ = Lazier.__name__, Lazier.__qualname__
    model, path = vae(), tmp_path / "store"
    evaluate(model, X, svi=Lazier(), store=path, **FAST)
    evaluate(model, X, svi=Lazier(), store=path, **FAST)
    with pytest.raises(ValueError, match=r"code\.svi"):
        evaluate(model, X, svi=Twin(), store=path, **FAST)
    climbs = {"steps": 1, "k": 2, "store": tmp_path / "gap"}
    amortization_gap(model, X, climb=Lazier(), **climbs)
    with pytest.raises(ValueError, match=r"code\.climb"):
        amortization_gap(model, X, climb=Twin(), **climbs)
    tails = [lambda x, n, a=a: a + torch.zeros(n, len(x), 4) for a in (0.0, 1.0)]
    ais(model, X, reverse=tails[0], store=tmp_path / "ais", **SHORT)
    with pytest.raises(ValueError, match=r"code\.reverse"):
        ais(model, X, reverse=tails[1], store=tmp_path / "ais", **SHORT)
    one = vae(model=other_prior("a"))
    ais(one, X, prior=normal(1.0), store=tmp_path / "prior", **SHORT)
    with pytest.raises(ValueError, match=r"code\.prior"):  # of the same shapes, so of the same repr
        ais(one, X, prior=normal(2.0), store=tmp_path / "prior", **SHORT)


def test_use_changes_no_identity():
    """What a distribution, a transform or a model computes and keeps as it is used makes it no other."""
    tanh = TransformedDistribution(Normal(torch.zeros(4), 1.0), [TanhTransform(cache_size=1)])
    mixture = MixtureSameFamily(Categorical(torch.ones(2)), Independent(Gamma(torch.ones(2, 4), torch.ones(2, 4)), 1))
    for prior in (normal(1.0), Independent(tanh, 1), mixture):
        model = vae(prior=prior)
        before = identify(model)
        for _ in range(2):
            prior.log_prob(prior.sample((3,)))
            prior.mixture_distribution.probs.sum() if prior is mixture else None
            assert identify(model) == before


def test_a_model_that_cannot_be_identified_says_how_to_name_it(tmp_path):
    class Locked(BernoulliDecoder):
        def __init__(self, key=None):
            super().__init__()
            self.lock = threading.Lock()
            if key is not None:
                self.store_key = key

    with pytest.raises(ValueError, match=r"decoder\.lock is a lock .*store_key") as error:
        evaluate(vae(Locked()), X, store=tmp_path / "store", **FAST)
    assert "\n" not in str(error.value) and not (tmp_path / "store").exists()
    evaluate(vae(Locked()), X, **FAST)  # without a store nobody asks
    evaluate(vae(Locked("one")), X, store=tmp_path / "store", **FAST)
    evaluate(vae(Locked("one")), X, store=tmp_path / "store", **FAST)
    with pytest.raises(ValueError, match="holds another evaluation"):
        evaluate(vae(Locked("two")), X, store=tmp_path / "store", **FAST)


def test_autocast_is_another_question(tmp_path):
    model = vae()
    evaluate(model, X, store=tmp_path / "store", **FAST)
    with (
        pytest.raises(ValueError, match=r"autocast cpu was None, now torch\.bfloat16"),
        torch.autocast("cpu", torch.bfloat16),
    ):
        evaluate(model, X, store=tmp_path / "store", **FAST)


def test_stores_of_the_command_lines_models_go_on_and_others_of_old_say_why_not(tmp_path):
    """A header as it was written before there was a digest of code."""

    def old(model, path):
        evaluate(model, x, store=path, **FAST)
        lines = path.read_bytes().splitlines(keepends=True)
        header = json.loads(lines[0][9:])
        header.pop("code", None)
        path.write_bytes(b"".join([_encode(header), *lines[1:]]))

    x = torch.zeros(3, 1, 4, 4)
    torch.manual_seed(0)
    own = VAE(MLPEncoder(2, (4, 4), 8), MLPDecoder(2, (4, 4), 8))
    assert identify(own) == {}
    old(own, tmp_path / "own")
    evaluate(own, x, store=tmp_path / "own", **FAST)
    other = VAE(MLPEncoder(2, (4, 4), 8), MLPDecoder(2, (4, 4), 8), prior=normal(1.0, 2))
    old(other, tmp_path / "other")
    with pytest.raises(ValueError, match="an older version made it"):
        evaluate(other, x, store=tmp_path / "other", **FAST)


def test_stores_from_before_the_refinements_module_was_renamed_stay_valid():
    assert SVI.__module__ == "bsvi.refinement"
    assert identify(VAE(nn.Linear(3, 4), SVI))["decoder"] == "1e00683d11957ebe"  # under the old name, bsvi.refine


def test_another_process_finds_the_same_identity():
    """Nothing of it depends on addresses, on the order of sets or on Python's hash seed."""
    code = "from tests.evaluation.test_identity import identities; print(identities())"
    options = {"cwd": Path(__file__).parents[2], "env": {**os.environ, "PYTHONHASHSEED": "123"}}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **options).stdout
    assert json.loads(found) == json.loads(identities())


def identities():
    return json.dumps({name: [identify(model) for model in make()] for name, make in PAIRS.items()})
