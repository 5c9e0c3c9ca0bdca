"""Properties that hold for every model, refinement and rule, tried on random ones.

For any of them: a weight is that of its own z and lambda; kept, budgeted and recomputed graphs give every parameter the same
gradient, which is the one that the formulas give; and scores do not depend on store, chunk, batch or order.
``BSVI_TIMES=30 ./run test tests/paper/test_any_model.py`` tries thirty times as many, other ones at every call.
"""

import math
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
import zuko
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

import bsvi
from bsvi import SVI, VAE, AllDraws, Amortized, DiagonalGaussian, Last, Learned, Objective, Recomputed, Uniform, giwae
from bsvi.data.batches import Batch
from bsvi.draws import rsample_and_log_prob
from bsvi.theta import LastDraw, Resampled

PIXELS, BATCH = 6, 5
TIMES = int(os.environ.get("BSVI_TIMES", "1"))


def tried(few):
    """A few random cases, always the same ones; $BSVI_TIMES times as many others on request."""

    def decorate(test):
        quiet = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
        test = settings(max_examples=few * TIMES, derandomize=TIMES == 1, **quiet)(test)
        return pytest.mark.timeout(300 * TIMES)(test)

    return decorate


# --- random models ---


def scalar(lambda_):
    return Normal(lambda_[:, 0], (0.5 * lambda_[:, 1]).exp())


def square(lambda_):
    mean, log_var = (half.unflatten(-1, (2, 2)) for half in lambda_.chunk(2, -1))
    return Independent(Normal(mean, (0.5 * log_var).exp()), 2)


def laplace(lambda_):
    mean, log_scale = lambda_.chunk(2, -1)
    return Independent(Laplace(mean, log_scale.exp()), 1)


def full(lambda_):
    below = torch.zeros(len(lambda_), 2, 2, dtype=lambda_.dtype)
    below = (
        below + torch.diag_embed(lambda_[:, 2:4].exp()) + torch.nn.functional.pad(lambda_[:, 4:, None], (0, 1, 1, 0))
    )
    return MultivariateNormal(lambda_[:, :2], scale_tril=below)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow = zuko.flows.MAF(2, 3, transforms=1, hidden_features=(4,))

    def forward(self, lambda_):
        return self.flow(lambda_)


FAMILIES = {  # name: (family, latents, parameters)
    "gaussian": (lambda: DiagonalGaussian, 3, 6),
    "scalar": (lambda: scalar, 1, 2),
    "square": (lambda: square, 4, 8),
    "laplace": (lambda: laplace, 2, 4),
    "full": (lambda: full, 2, 5),
    "flow": (Flow, 2, 3),
}


def log_lik(x, z, weight, bias, second, last, cliff):
    """Bernoulli pixels from a small network; draws beyond the ``cliff`` have the weight zero."""
    z = z.reshape(len(x), -1)
    logits = nn.functional.linear(torch.tanh(nn.functional.linear(z, weight, bias)), second, last)
    value = nn.functional.logsigmoid((2 * x - 1) * logits.to(x)).sum(-1)
    if cliff < math.inf:
        value = value + torch.exp(-1e6 * torch.relu(z[:, 0] + 0.0 * bias.sum() - cliff)).log()
    return value


class Decoder(nn.Module):
    def __init__(self, latents, cliff):
        super().__init__()
        self.first, self.second, self.cliff = nn.Linear(latents, 5), nn.Linear(5, PIXELS), cliff

    def forward(self, x, z):
        return log_lik(x, z, *self.parameters(), self.cliff)


class Prior(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.mean = nn.Parameter(torch.full(shape, 0.3))

    def forward(self):
        return Independent(Normal(self.mean, 1.0), self.mean.ndim)


@dataclass(frozen=True)
class Case:
    """A model, all of it decided by these fields."""

    family: str
    decoder: str  # "trained", "frozen", "function", or "shared": a weight of the encoder is one of the decoder
    prior: bool  # a prior that learns
    cliff: float
    double: bool
    autocast: bool
    seed: int

    def model(self):
        torch.manual_seed(self.seed)
        make, latents, parameters = FAMILIES[self.family]
        family, decoder, encoder = make(), Decoder(latents, self.cliff), nn.Linear(PIXELS, parameters)
        if self.decoder in ("frozen", "function"):
            decoder.requires_grad_(False)
        if self.decoder == "shared":
            encoder = nn.Sequential(
                nn.Linear(PIXELS, 5), nn.Tanh(), nn.Linear(5, PIXELS), nn.Linear(PIXELS, parameters)
            )
            encoder[2].weight = decoder.second.weight
        shape = {"scalar": (), "square": (2, 2)}.get(self.family, (latents,))
        decoder = decoder.to(self.dtype)
        decode = plain(decoder) if self.decoder == "function" else decoder
        return VAE(encoder, decode, family, Prior(shape) if self.prior else None).to(self.dtype)

    def x(self):
        return torch.rand(BATCH, PIXELS, generator=torch.Generator().manual_seed(self.seed)).round().to(self.dtype)

    @property
    def dtype(self):
        return torch.float64 if self.double else torch.float32

    def precision(self):
        return torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext()

    def close(self, got, expected, slack=1.0):
        """Equal up to the rounding of what ran; bfloat16 has 8 bits, so only lost or doubled terms are seen there."""
        tolerance = (1e-9 if self.double else 2e-4) if not self.autocast else 6e-2
        torch.testing.assert_close(got, expected, rtol=slack * tolerance, atol=slack * tolerance)


def plain(decoder):
    """The same as a function, without anything to train."""
    weights, cliff = [p.detach().clone() for p in decoder.parameters()], decoder.cliff
    return lambda x, z: log_lik(x, z, *weights, cliff)


cases = st.builds(
    Case,
    family=st.sampled_from(list(FAMILIES)),
    decoder=st.sampled_from(["trained", "trained", "frozen", "function", "shared"]),
    prior=st.booleans(),
    cliff=st.sampled_from([math.inf, math.inf, 1.0]),
    double=st.booleans(),
    autocast=st.just(False),
    seed=st.integers(0, 99),
)
in_any_precision = st.builds(
    lambda case, autocast: replace(case, autocast=autocast and not case.double), cases, st.booleans()
)
refinements = st.builds(
    SVI,
    steps=st.integers(1, 4),
    lr=st.sampled_from([0.02, 0.3]),
    momentum=st.sampled_from([0.0, 0.5]),
    max_grad_norm=st.sampled_from([0.1, 7.0, math.inf]),
    double_sampling=st.booleans(),
    samples=st.integers(1, 3),
    closed_form_kl=st.booleans(),
)


def fitting(svi, case, model):
    """The closed form only where there is one."""
    known = model.kl(model.posterior(model.encode(case.x()))) is not None
    return replace(svi, closed_form_kl=svi.closed_form_kl and known)


def estimate(case, refinement, pi, theta, beta):
    model = case.model()
    method = Objective(refinement, pi, theta)
    torch.manual_seed(case.seed + 1)
    with case.precision():
        result = method(model, case.x(), beta)
    if result.loss.requires_grad:
        result.loss.backward()
    return result, {name: p.grad for name, p in (*model.named_parameters(), *method.named_parameters())}


def pi_of(kind, proposals):
    torch.manual_seed(0)
    pi = {"uniform": Uniform, "last": Last}.get(kind, lambda: Learned(proposals))()
    for p in pi.parameters():
        nn.init.normal_(p)
    return pi


# --- the properties ---


@tried(40)
@given(
    case=in_any_precision,
    svi=refinements,
    beta=st.sampled_from([1.0, 0.4]),
    theta=st.sampled_from([None, Resampled(2)]),
)
def test_every_weight_is_that_of_its_own_z_and_lambda(case, svi, beta, theta):
    model = case.model()
    svi, x = fitting(svi, case, model), case.x()
    result, _ = estimate(case, svi, Uniform(), theta, beta)
    t = result.trajectory
    assert t.lambda_.dtype == t.z.dtype == case.dtype and t.log_w.dtype == torch.float64
    with torch.no_grad():
        for lambda_, z, log_w in zip(t.lambda_, t.z, t.log_w, strict=True):
            log_ratio = model.log_prior(z) - model.posterior(lambda_).log_prob(z)
            with case.precision():
                expected = model.log_lik(x, z).double() + beta * log_ratio
            expected = torch.where(torch.isfinite(expected), expected, -math.inf)
            case.close(log_w, expected, slack=0.1 if case.autocast else 1.0)
    torch.testing.assert_close(result.bound, giwae(t.log_w, result.log_pi))


@tried(40)
@given(
    case=in_any_precision,
    svi=refinements,
    pi=st.sampled_from(["uniform", "last", "learned"]),
    beta=st.sampled_from([1.0, 0.4]),
)
def test_kept_budgeted_and_recomputed_gradients_are_equal_for_every_parameter(case, svi, pi, beta):
    model = case.model()
    svi = fitting(svi, case, model)
    rules = [AllDraws(math.inf), AllDraws(1.0), Recomputed(1), Recomputed(2), *([LastDraw()] if pi == "last" else [])]
    found = [estimate(case, svi, pi_of(pi, svi.steps + 1), rule, beta) for rule in rules]
    result, kept = found[0]
    for _, others in found[1:]:
        for name, gradient in others.items():
            assert (gradient is None) == (kept[name] is None), f"{name} has a gradient in one mode only"
            if gradient is not None:
                case.close(gradient, kept[name])
    if torch.isfinite(result.bound).all() and not case.autocast:
        expected = by_formula(case, model, svi, result, beta)
        for name, gradient in kept.items():
            if name != "buffer_weight.logits":
                assert (gradient is None) == (expected[name] is None), name
                if gradient is not None:
                    case.close(gradient, expected[name])


def by_formula(case, model, svi, result, beta):
    """theta: sum_i r_i grad ln p(x, z_i); phi and the family: the gradient of the first proposal's ELBO (Alg. 1, l.12-16)."""
    t, x = result.trajectory, case.x()
    r = torch.softmax(t.log_w + result.log_pi[:, None], 0)
    total = torch.zeros((), dtype=torch.float64)
    for z, log_w, weight in zip(t.z, t.log_w, r, strict=True):
        rows = torch.isfinite(log_w) & (weight > 0)
        if rows.any():
            log_p = model.log_lik(x[rows], z[rows]).double() + beta * model.log_prior(z[rows])
            total = total + (weight[rows] * log_p).sum()
    torch.manual_seed(case.seed + 1)
    q = model.posterior(model.encode(x))
    for _ in range(2 if svi.double_sampling else 1):
        z, log_q = rsample_and_log_prob(q, torch.Size((svi.samples,)))
    kl = model.kl(q) if svi.closed_form_kl else None
    for i in range(svi.samples):
        at = z[i].detach().requires_grad_()
        log_p = model.log_lik(x, at).double() + (0.0 if svi.closed_form_kl else beta * model.log_prior(at))
        (slope,) = torch.autograd.grad(log_p.sum(), at)
        alive = torch.isfinite(model.log_lik(x, at).detach())
        ratio = -beta * (kl if kl is not None else log_q[i])
        climbed = (slope.nan_to_num(0.0) * z[i]).reshape(BATCH, -1).sum(-1) + ratio
        total = total + climbed[alive].sum().double() / svi.samples
    if (-total / BATCH).requires_grad:
        (-total / BATCH).backward()
    return {name: p.grad for name, p in model.named_parameters()}


class Given(DiagonalGaussian):
    """Draws with given noise (draws, batch, latents), from the front."""

    def __init__(self, lambda_, noise):
        super().__init__(lambda_)
        self.noise = noise

    def rsample(self, sample_shape=()):
        eps = torch.stack([self.noise.pop(0) for _ in range(sample_shape[0])])
        return self.loc + (0.5 * self.log_var).exp() * eps

    def log_prob(self, value):
        return DiagonalGaussian.log_prob(self, value)


@tried(20)
@given(case=in_any_precision, draws=st.integers(1, 6), beta=st.sampled_from([1.0, 0.4]))
def test_an_amortized_bound_has_one_gradient_however_it_is_computed(case, draws, beta):
    case, gradients = replace(case, family="gaussian"), []
    for recompute in (False, True):
        model = case.model()
        generator = torch.Generator().manual_seed(case.seed)
        noise = list(torch.randn(draws, BATCH, 3, generator=generator, dtype=case.dtype))
        model.family = lambda lambda_, noise=noise: Given(lambda_, noise)
        with case.precision():
            result = Objective(Amortized(draws, recompute))(model, case.x(), beta)
        if torch.isfinite(result.bound).all():
            result.loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert (gradient is None) == (gradients[1][name] is None), name
        if gradient is not None:
            assert torch.isfinite(gradient).all()
            case.close(gradient, gradients[1][name])


@tried(8)
@given(
    case=cases,
    svi=refinements,
    size=st.integers(1, BATCH),
    chunk=st.sampled_from([None, 1, 3]),
    order=st.permutations(range(BATCH)),
)
def test_scores_do_not_depend_on_store_chunk_batch_or_order(tmp_path_factory, case, svi, size, chunk, order):
    model = case.model()
    svi = fitting(svi, case, model)
    x, k = case.x(), svi.steps
    whole = bsvi.evaluate(model, x, k=k, svi=svi, iwae=(4,), elbo_draws=4)
    order, store = torch.tensor(order), tmp_path_factory.mktemp("any") / "scores.jsonl"
    pieces = [Batch(x[ids], ids) for ids in order.split(size)]
    first = bsvi.evaluate(model, pieces[:1], k=k, svi=svi, iwae=(4,), chunk=chunk, store=store, elbo_draws=4)
    assert len(first.ids) == min(size, BATCH)
    cut = bsvi.evaluate(model, pieces, k=k, svi=svi, iwae=(4,), chunk=chunk, store=store, elbo_draws=4)
    for name in ("log_likelihood", "elbo", "kl", "reconstruction", "amortized_elbo", "iwae_4"):
        a, b = torch.tensor(whole.columns[name]), torch.tensor(cut.columns[name])
        torch.testing.assert_close(a, b, rtol=1e-9 if case.double else 1e-3, atol=1e-8 if case.double else 1e-3)
