"""``bsvi.adapters.pythae`` against pythae's own estimator and against an exact likelihood."""

import warnings

import pytest
import torch
from torch import nn

import bsvi
from tests.adapters.linear import Linear, agree

pythae = pytest.importorskip("pythae", reason="needs pythae; ./run test-adapters has it")
import pythae.models as models  # noqa: E402
from pythae.models.base.base_utils import ModelOutput  # noqa: E402
from pythae.models.nn import BaseDecoder, BaseEncoder  # noqa: E402

NAMES = ["VAE", "BetaVAE", "IWAE", "MIWAE", "CIWAE", "VAMP", "DisentangledBetaVAE"]


def made(name="VAE", loss="bce", **settings):
    """A model of pythae on 8 binary pixels, trained for a moment."""
    torch.manual_seed(1)
    config = getattr(models, f"{name}Config")(input_dim=(1, 8), latent_dim=2, reconstruction_loss=loss, **settings)
    model = getattr(models, name)(config)
    x = (torch.rand(60, 1, 8) < torch.rand(60, 1, 1)).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model({"data": x}, epoch=3, dataset_size=60).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), x[:6]


def iwae(model, x, draws):
    adapted = bsvi.adapters.pythae(model)
    return [bsvi.evaluate(adapted, x, k=1, iwae=draws, seed=s).iwae[draws].mean for s in range(6)]


@pytest.mark.parametrize("loss", ["bce", "mse"])
@pytest.mark.parametrize("name", NAMES)
def test_the_number_is_that_of_pythaes_own_estimator(name, loss):
    model, x = made(name, loss)
    with torch.no_grad():
        theirs = [float(model.get_nll(x, n_samples=400, batch_size=200)) for _ in range(6)]
    agree(iwae(model, x, 400), theirs)


def test_pythaes_estimator_has_another_sign_and_another_count_of_draws(monkeypatch):
    """What the page warns of: get_nll returns +ln p, and takes batch_size draws where n_samples is smaller."""
    model, x = made()
    rows = []
    decode = model.decoder.forward
    monkeypatch.setattr(model.decoder, "forward", lambda z: rows.append(len(z)) or decode(z))
    with torch.no_grad():
        assert model.get_nll(x[:1], n_samples=5, batch_size=100) < 0
    assert rows == [100]


class Exact(BaseEncoder):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        mean, variance = self.linear.posterior(x.flatten(1))
        return ModelOutput(embedding=mean, log_covariance=variance.log())


class Straight(BaseDecoder):
    def __init__(self, linear):
        super().__init__()
        self.layer = nn.Linear(*reversed(linear.W.shape))
        self.layer.weight.data, self.layer.bias.data = linear.W.clone(), linear.b.clone()

    def forward(self, z):
        return ModelOutput(reconstruction=self.layer(z)[:, None])


def test_the_likelihood_of_a_linear_model_is_exact():
    linear = Linear()
    config = models.VAEConfig(input_dim=(1, 4), latent_dim=2, reconstruction_loss="mse")
    model = bsvi.adapters.pythae(models.VAE(config, Exact(linear), Straight(linear)))
    scores = bsvi.evaluate(model, linear.x[:, None], k=1, iwae=50)
    assert torch.allclose(torch.from_numpy(scores.iwae[50].per_example), linear.log_p(), atol=1e-4)
    gap = bsvi.amortization_gap(model, linear.x[:3, None], steps=20, k=20)
    assert abs(gap.amortization_gap.mean) < 0.02


def test_the_prior_of_vamp_is_drawn_from_by_ais_and_is_pythaes():
    model, x = made("VAMP", number_components=4)
    adapted, z = bsvi.adapters.pythae(model), torch.randn(5, 2)
    with torch.no_grad():
        constant = 2 / 2 * torch.log(torch.tensor(2 * torch.pi))  # pythae leaves it out, as it cancels
        assert torch.allclose(adapted.log_prior(z), model._log_p_z(z) - constant, atol=1e-5)
    annealed = bsvi.ais(adapted, x[:2], chains=8, temperatures=100)
    assert abs(annealed.log_likelihood.mean - bsvi.evaluate(adapted, x[:2], k=300).log_likelihood.mean) < 0.5


def test_mean_and_log_variance_are_clipped_apart():
    model, x = made()
    adapted = bsvi.adapters.pythae(model)
    lambda_ = adapted.encode(x)
    clipped = bsvi.SVI(max_grad_norm=0.1).clipped(torch.full_like(lambda_, 50.0), adapted.posterior(lambda_))
    for part in clipped.split([2, 2], -1):
        assert torch.allclose(part.norm(dim=-1), torch.tensor(0.1))


def test_training_goes_on_with_a_method_of_bsvi():
    model, x = made()
    adapted = bsvi.adapters.pythae(model.train())
    objective = bsvi.objective("bsvi-sir", k=3)
    before = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(adapted.parameters(), lr=1e-2)
    objective(adapted, x).loss.backward()
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", ["AE", "VQVAE", "SVAE", "RHVAE", "MSSSIM_VAE"])
def test_a_model_whose_densities_are_not_known_is_refused_by_name(name):
    model = getattr(models, name)(getattr(models, f"{name}Config")(input_dim=(1, 8), latent_dim=2))
    with pytest.raises(ValueError, match=rf"cannot take {name}: it.*; it takes BetaTCVAE, BetaVAE"):
        bsvi.adapters.pythae(model)
    with pytest.raises(ValueError, match="cannot take Linear: it is none of pythae's own"):
        bsvi.adapters.pythae(nn.Linear(2, 2))


def test_grey_values_under_bce_are_warned_of_once():
    model, x = made()
    adapted = bsvi.adapters.pythae(model)
    with pytest.warns(UserWarning, match="bce with grey values is no density"):
        adapted.encode(x * 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted.encode(x * 0.5)


@pytest.mark.usefixtures("as_users_call")
def test_what_is_no_image_for_its_encoder_is_one_line():
    model, x = made()
    adapted = bsvi.adapters.pythae(model)
    for given, message in (
        ({"data": x}, r'tensor of floats, got dict; of pythae.s own batches give batch=lambda b: b\["data"\]'),
        (x.byte(), "a tensor of floats, got torch.uint8"),
        (255 * x, r"bce needs pixels from 0 to 1, got 0 to 255"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            bsvi.evaluate(adapted, given, k=2)
    loader = [{"data": x, "labels": torch.arange(6)}]
    assert len(bsvi.evaluate(adapted, loader, k=2, iwae=2, batch=lambda b: b["data"]).ids) == 6


@pytest.mark.parametrize("name", ["VAE", "VAMP"])
def test_models_in_double_precision_stay_in_it(name):
    model, x = made(name)
    adapted, x = bsvi.adapters.pythae(model.double()), x.double()
    assert adapted.log_prior(adapted.encode(x)[:, :2]).dtype == torch.float64
    assert len(bsvi.ais(adapted, x[:2], chains=2, temperatures=3).ids) == 2
