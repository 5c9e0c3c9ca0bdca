"""Wrong inputs to what takes data and models of one's own: each is one line that says what, what was got and what to do."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Beta, Dirichlet, Gamma, Independent, LogNormal, Normal

import bsvi
from bsvi.system.errors import NotFinite

X = torch.randn(12, 5, generator=torch.Generator().manual_seed(3))
pytestmark = pytest.mark.usefixtures("as_users_call")


class Decoder(nn.Linear):
    def forward(self, x, z):
        return -(x - super().forward(z)).square().sum(-1)


def make_model(**options):
    torch.manual_seed(0)
    return bsvi.VAE(nn.Linear(5, 4), Decoder(2, 5), **options)


def check_refused(*cases):
    """Each call raises a TypeError or ValueError of one line that matches."""
    for call, message in cases:
        with pytest.raises((TypeError, ValueError), match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_what_is_no_function_of_a_batch_and_what_is_no_batch_is_one_line():
    one, pair = make_model(), [(X, torch.arange(12))]
    check_refused(
        (lambda: bsvi.evaluate(one, pair, k=2, batch=0), r"batch= must be a function .*lambda b: b\[0\], got int"),
        (lambda: bsvi.ais(one, X, ids=torch.arange(12)), r"ids= must be a function of a loader's batch.*got Tensor"),
        (lambda: bsvi.evaluate(one, {"a": X, "b": torch.tensor(1.0)}, k=2), r"x\['b'\] is \(\); what is the same"),
        (lambda: bsvi.refine(one, torch.tensor(1.0)), r"x must be a tensor \(batch, ...\)"),
        (lambda: bsvi.amortization_gap(one, X[:0]), r"with at least one example, got \(0, 5\)"),
    )


def test_infinity_is_not_called_a_missing_value():
    allowed = make_model(nan_is_missing=True)
    with pytest.raises(
        ValueError, match=r"^x holds infinity in 12 of 12 examples \(first at index 0\); clean the data$"
    ):
        bsvi.evaluate(allowed, X + math.inf, k=2)
    with pytest.raises(NotFinite, match=r"step 1: x holds infinity in 12 of 12 training examples, .*clean the data$"):
        bsvi.train(allowed, bsvi.objective("vae"), [X + math.inf])


def test_what_training_cannot_use_is_one_line():
    one, objective = make_model(), bsvi.objective("vae")
    frozen = make_model().requires_grad_(False)
    check_refused(
        (lambda: bsvi.train(one, objective, X), r"batches must be many batches, got one Tensor; .*\[x\]"),
        (lambda: bsvi.train(one, objective, {"a": X}), "batches must be many batches, got one dict"),
        (lambda: bsvi.train(one, objective, [X], valid=X), "valid must be many batches, got one Tensor"),
        (lambda: bsvi.train(one, objective, None), "batches must be a list of batches, .* got NoneType"),
        (
            lambda: bsvi.train(one, "bsvi", [X]),
            r'objective must be an Objective, got str; .*bsvi.objective\("bsvi-sir"',
        ),
        (lambda: bsvi.train(objective, one, [X]), "objective must be an Objective, got VAE"),
        (lambda: bsvi.train(None, objective, [X]), "a torch.nn.Module with parameters, got NoneType"),
        (lambda: bsvi.train(frozen, objective, [X]), "all parameters of VAE are frozen"),
    )


@pytest.mark.parametrize(
    ("ids", "said"), [(list("abcdefghijkl"), "batch ids b;"), (np.arange(12), "batch ids 1;"), ([7], "batch ids 7;")]
)
def test_messages_of_training_name_ids_of_any_kind(ids, said):
    holed = X.clone()
    holed[1] = math.nan
    with pytest.raises(NotFinite, match=said):
        bsvi.train(make_model(), bsvi.objective("vae"), [(holed, ids)], batch=lambda b: b[0], ids=lambda b: b[1])


def test_a_wrapped_model_is_made_of_functions_and_networks():
    net = nn.Linear(5, 2)
    q, lik = (lambda x: Normal(net(x), 0.5)), (lambda x, z: -(x[:, :2] - z).square().sum(-1))
    check_refused(
        (lambda: bsvi.wrap(Normal(0.0, 1.0), lik), "posterior must be a function, got Normal"),
        (lambda: bsvi.wrap(q, None), "log_lik must be a function, got NoneType"),
        (lambda: bsvi.wrap(q, lik, log_prior=3.0), "log_prior must be a function, got float"),
        (lambda: bsvi.wrap(q, lik, module="net"), "module= must be a torch.nn.Module or a list of them, got str"),
        (lambda: bsvi.wrap(q, lik, module=[net, 3]), "module= must be .*, got int"),
        (lambda: bsvi.wrap(q, lik, module={"net": net}), "module= must be .*, got dict"),
    )
    assert len(bsvi.wrap(q, lik, module=(net, net)).state_dict()) == 2


def test_a_logarithm_in_the_place_of_a_scale_is_noticed_where_torch_does_not_look():
    def posterior(x):
        return {"a": Normal(x, x, validate_args=False), "b": Gamma(1.0 + 0.0 * x, 1.0)}

    model = bsvi.wrap(posterior, lambda x, z: z["a"].sum(-1), prior={"a": Normal(0.0, 1.0), "b": Gamma(1.0, 1.0)})
    check_refused(
        (lambda: model.encode(X), r"gave Normal for a with a scale below 0; .*Normal\(mean, log_sd.exp\(\)\)")
    )
    assert model.encode(X.abs()).shape == (12, 20)


@pytest.mark.parametrize("validate", [True, False])
def test_a_posterior_that_leaves_its_priors_support_is_refused_by_its_site(validate):
    """Far from 0, so that no draw of this batch would have told it."""
    gamma = Gamma(2.0, 1.0, validate_args=validate)

    def make(posterior, prior):
        return bsvi.wrap(lambda x: {"a": Normal(x, 1.0), "b": posterior(x)}, lambda x, z: z["a"].sum(-1), prior)

    far = make(lambda x: Normal(100.0 + 0.0 * x, 1e-3), {"a": Normal(0.0, 1.0), "b": gamma})
    check_refused(
        (lambda: far.encode(X), "b is Normal in the posterior and Gamma in the prior, which has no density outside")
    )
    for posterior, prior in (
        (lambda x: LogNormal(x, 1.0), gamma),
        (lambda x: Beta(x.exp(), 1.0), gamma),
        (lambda x: Gamma(x.exp(), 1.0), Normal(0.0, 1.0)),
        (lambda x: Dirichlet(x.exp()), Dirichlet(torch.ones(5))),
    ):
        assert make(posterior, {"a": Normal(0.0, 1.0), "b": prior}).encode(X).ndim == 2


def test_a_prior_is_a_distribution_of_one_z():
    one, unit = make_model(), Independent(Normal(torch.zeros(2), 1.0), 1)
    short = {"chains": 2, "temperatures": 3}
    check_refused(
        (lambda: make_model(prior=X), "prior must be a torch Distribution, or a function that returns one, got Tensor"),
        (
            lambda: bsvi.evaluate(make_model(prior=lambda x: x), X, k=2),
            "prior must return a torch Distribution, got Tensor",
        ),
        (lambda: bsvi.ais(one, X, prior="normal", **short), "prior must be a torch Distribution, .* got str"),
        (lambda: bsvi.ais(one, X, prior=lambda x: x, **short), "prior must be a torch Distribution, .* got Tensor"),
        (
            lambda: bsvi.ais(one, X, prior=Independent(Normal(torch.zeros(3), 1.0), 1), **short),
            r"the prior must be of z with shape \(2,\), got one with shape \(3,\)",
        ),
    )
    assert len(bsvi.ais(one, X, prior=unit, **short).ids) == 12


def test_settings_of_estimators_are_one_line():
    one = make_model()
    check_refused(
        (lambda: bsvi.evaluate(one, X, svi=5), r"svi must be a bsvi.SVI, got int; give svi=bsvi.SVI\("),
        (lambda: bsvi.amortization_gap(one, X, climb="adam"), "climb must be a bsvi.SVI, got str"),
        (lambda: bsvi.refine(one, X, climb=5), "climb must be a bsvi.SVI, got int"),
        (
            lambda: bsvi.amortization_gap(one, X, effort=["quick"]),
            "effort must be one of quick, default, thorough, got",
        ),
    )
