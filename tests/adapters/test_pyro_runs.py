"""``bsvi.adapters.pyro``: what a run of a model or guide may hold beside its sites, and what it does to torch's noise."""

import pytest
import torch
from torch import nn

import bsvi

pyro = pytest.importorskip("pyro", reason="needs pyro-ppl; ./run test-adapters has it")
import pyro.distributions as dist  # noqa: E402

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def _an_empty_store():
    pyro.clear_param_store()


def guide(x):
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(x[:, 0], 0.5))


def model(x):
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(torch.zeros(len(x)), 1.0))
        pyro.sample("x", dist.Normal(z[:, None].expand(-1, 3), 1.0).to_event(1), obs=x)


def test_deterministic_sites_of_any_shape_count_for_nothing():
    def noted_model(x):
        pyro.deterministic("total", x.sum())
        model(x)
        pyro.deterministic("rows", x.sum(1))

    def noted_guide(x):
        guide(x)
        pyro.deterministic("seen", x.mean())

    plain, noted = bsvi.adapters.pyro(model, guide), bsvi.adapters.pyro(noted_model, noted_guide)
    a, b = (bsvi.evaluate(one, X, k=3, iwae=4).columns for one in (plain, noted))
    assert (a["log_likelihood"] == b["log_likelihood"]).all() and (a["iwae_4"] == b["iwae_4"]).all()


class Random(nn.Module):
    """A guide whose encoder has dropout: it keeps the random numbers that it met."""

    def __init__(self):
        super().__init__()
        self.net, self.met = nn.Linear(3, 1), []

    def guide(self, x):
        self.met.append(torch.rand(4))
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(self.net(x)[:, 0], 0.5))


def test_noise_inside_of_a_guide_has_nothing_in_common_with_the_draws_after_it():
    random = Random()
    adapted = bsvi.adapters.pyro(model, random.guide)
    adapted.encode(X)
    before = torch.get_rng_state()
    adapted.encode(X)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(random.met[-1], torch.rand(4))
    torch.set_rng_state(before)
    adapted.encode(X)
    assert torch.equal(random.met[-1], random.met[-2])  # and can be repeated


def test_a_plate_of_a_fixed_size_is_refused_in_one_line():
    def fixed(x):
        with pyro.plate("data", 6):
            z = pyro.sample("z", dist.Normal(torch.zeros(6), 1.0))
            pyro.sample("x", dist.Normal(z[:, None].expand(-1, 3), 1.0).to_event(1), obs=x)

    with pytest.raises(
        ValueError, match=r"runs with 6 rows of x and not with 12; let its plates and shapes follow len\(x\)"
    ):
        bsvi.evaluate(bsvi.adapters.pyro(fixed, guide), X, k=2, iwae=4)


@pytest.mark.usefixtures("as_users_call")
def test_what_is_no_function_and_no_network_is_one_line():
    for call, message in (
        (lambda: bsvi.adapters.pyro(None, guide), "model must be a function, got NoneType"),
        (lambda: bsvi.adapters.pyro(model, "guide"), "guide must be a function, got str"),
        (lambda: bsvi.adapters.pyro(model, guide, module="net"), "module= must be a torch.nn.Module .* got str"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    random = Random()
    assert len(bsvi.adapters.pyro(model, random.guide, module=random).state_dict()) == 2  # once, though named twice
