"""``bsvi.adapters.pyro`` against Pyro's own estimator and against exact likelihoods."""

import pytest
import torch
from torch import nn

import bsvi
from tests.adapters.linear import Linear, agree

pyro = pytest.importorskip("pyro", reason="needs pyro-ppl; ./run test-adapters has it")
import pyro.distributions as dist  # noqa: E402
from pyro import poutine  # noqa: E402
from pyro.infer import SVI, RenyiELBO, Trace_ELBO  # noqa: E402
from pyro.nn import PyroModule, PyroParam  # noqa: E402


@pytest.fixture(autouse=True)
def _an_empty_store():
    pyro.clear_param_store()


class Binary(nn.Module):
    """The VAE of Pyro's tutorial, small; ``scaled`` as it is written for minibatches of a large data set."""

    def __init__(self, scaled=False, latent=2):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 2 * latent), nn.Linear(latent, 8)
        self.latent, self.scaled = latent, scaled

    def plate(self, x):
        return pyro.plate("data", 1000, subsample_size=len(x)) if self.scaled else pyro.plate("data", len(x))

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with self.plate(x), poutine.scale(scale=3.0 if self.scaled else 1.0):
            z = pyro.sample("z", dist.Normal(torch.zeros(len(x), self.latent), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with self.plate(x):
            loc, log_scale = self.encoder(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def trained(scaled=False):
    torch.manual_seed(1)
    x = (torch.rand(60, 8) < torch.rand(60, 1)).float()
    vae = Binary(scaled)
    svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    for _ in range(100):
        svi.step(x)
    return vae, x[:6]


@pytest.mark.parametrize("scaled", [False, True])
def test_the_number_is_that_of_pyros_own_estimator_without_any_scale(scaled):
    vae, x = trained(scaled)
    adapted = bsvi.adapters.pyro(vae.model, vae.guide)
    ours = [bsvi.evaluate(adapted, x, k=1, iwae=300, seed=s).iwae[300].mean for s in range(6)]
    plain = Binary()
    plain.load_state_dict(vae.state_dict())
    pyro.clear_param_store()
    renyi = RenyiELBO(alpha=0, num_particles=300, vectorize_particles=True)
    with torch.no_grad():
        theirs = [-renyi.loss(plain.model, plain.guide, x) / len(x) for _ in range(6)]
    agree(ours, theirs)


class Straight(nn.Module):
    """A linear-Gaussian model with its exact posterior as the guide; two sites where ``split`` says so."""

    def __init__(self, linear, split=False):
        super().__init__()
        self.linear, self.split = linear, split
        self.b = nn.Parameter(linear.b.clone())

    def model(self, x):
        with pyro.plate("data", len(x)):
            if self.split:
                parts = [pyro.sample(f"z{i}", dist.Normal(torch.zeros(len(x)), 1.0)) for i in range(2)]
                z = torch.stack(parts, -1)
            else:
                z = pyro.sample("z", dist.Normal(torch.zeros(len(x), 2), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(z @ self.linear.W.T + self.b, self.linear.sigma).to_event(1), obs=x)

    def guide(self, x):
        mean, variance = self.linear.posterior(x)
        with pyro.plate("data", len(x)):
            if self.split:
                for i in range(2):
                    pyro.sample(f"z{i}", dist.Normal(mean[:, i], variance[:, i].sqrt()))
            else:
                pyro.sample("z", dist.Normal(mean, variance.sqrt()).to_event(1))


@pytest.mark.parametrize("split", [False, True])
def test_the_likelihood_of_a_linear_model_is_exact(split):
    linear = Linear(sigma=0.7)
    module = Straight(linear, split)
    model = bsvi.adapters.pyro(module.model, module.guide)
    scores = bsvi.evaluate(model, linear.x, k=1, iwae=20)
    assert torch.allclose(torch.from_numpy(scores.iwae[20].per_example), linear.log_p(), atol=1e-4)
    assert not any("generator" in line for line in scores.warnings)
    annealed = bsvi.ais(model, linear.x[:3], chains=8, temperatures=30, leapfrog=3)
    assert abs(annealed.log_likelihood.mean - linear.log_p()[:3].mean()) < 1.0


class Conditional(PyroModule):
    """p(z|c) with a learned scale, p(x|z, c), masked pixels, a hierarchy in the model: z2 given z1."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Linear(3, 4)
        self.width = PyroParam(torch.tensor(1.5), constraint=dist.constraints.positive)

    def model(self, pixels, label, seen):
        with pyro.plate("data", len(pixels)):
            first = pyro.sample("first", dist.Normal(label, self.width))
            second = pyro.sample("second", dist.Normal(first, 0.5))
            logits = self.decoder(torch.stack([first, second, label], -1))
            with poutine.mask(mask=seen):
                pyro.sample("pixels", dist.Normal(logits, 1.0).to_event(1), obs=pixels)

    def guide(self, pixels, label, seen):
        loc = self.encoder(torch.cat([pixels, label[:, None]], -1))
        with pyro.plate("data", len(pixels)):
            pyro.sample("first", dist.Normal(loc[:, 0], loc[:, 1].exp()))
            pyro.sample("second", dist.Normal(loc[:, 2], loc[:, 3].exp()))


def conditional_data(n=5):
    return {"pixels": torch.randn(n, 4), "label": torch.randn(n), "seen": torch.arange(n) % 2 == 0}


def test_conditional_priors_masks_and_hierarchies_are_the_models():
    module, x = Conditional(), conditional_data()
    model = bsvi.adapters.pyro(module.model, module.guide)
    q = model.posterior(model.encode(x))
    z = q.rsample()
    width = module.width
    normal = torch.distributions.Normal
    prior = normal(x["label"], width).log_prob(z[:, 0]) + normal(z[:, 0], 0.5).log_prob(z[:, 1])
    logits = module.decoder(torch.cat([z, x["label"][:, None]], -1))
    lik = normal(logits, 1.0).log_prob(x["pixels"]).sum(-1) * x["seen"]
    assert torch.allclose(model.log_prior(z, x), prior) and torch.allclose(model.log_lik(x, z), lik)
    assert model.prior(x) is None and model.kl(q, x) is None  # p(z2|z1) is no product
    found = bsvi.evaluate(model, x, k=1, iwae=5000).iwae[5000].per_example
    with torch.no_grad():
        mixing, variance = module.decoder.weight[:, :2], width.square()
        spread = torch.stack([torch.stack([variance, variance]), torch.stack([variance, variance + 0.25])])
        mean = module.decoder(x["label"][:, None].expand(-1, 3))
        exact = torch.distributions.MultivariateNormal(mean, mixing @ spread @ mixing.T + torch.eye(4)).log_prob(
            x["pixels"]
        )
    assert torch.allclose(torch.from_numpy(found), (exact * x["seen"]).double(), atol=0.3)  # six errors and more


@pytest.mark.parametrize("method", ["vae", "bsvi-sir", "iwae"])
def test_training_moves_every_parameter(method):
    module, x = Conditional(), conditional_data()
    model = bsvi.adapters.pyro(module.model, module.guide)
    before = [p.detach().clone() for p in module.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    bsvi.objective(method, k=3)(model, x).loss.backward()
    optimizer.step()
    assert len(before) == 5
    assert all(not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def site(name, family):
    """A model and a guide of one site."""

    def both(x):
        with pyro.plate("data", len(x)):
            pyro.sample(name, family(x))

    return both


def dependent(x):
    with pyro.plate("data", len(x)):
        first = pyro.sample("first", dist.Normal(x[:, 0], 1.0))
        pyro.sample("second", dist.Normal(first, 1.0))


def shared(x):
    pyro.sample("w", dist.Normal(0.0, 1.0))


def subsampled(x):
    with pyro.plate("data", len(x), subsample_size=2) as rows:
        pyro.sample("z", dist.Normal(x[rows, 0], 1.0))


def stored(x):
    scale = pyro.param("scale", torch.tensor(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(x[:, 0], scale))


class Own(dist.Normal):
    """A family whose parameters may mean something else."""


normal = site("z", lambda x: dist.Normal(x[:, 0], 1.0))


@pytest.mark.parametrize(
    ("model", "guide", "said"),
    [
        (dependent, dependent, "site 'second' of the guide depends on the latents before it"),
        (shared, shared, r"site 'w' of the guide has the batch shape \(\), and not one row for each of 5"),
        (subsampled, subsampled, r"site 'z' of the guide has the batch shape \(2,\)"),
        (stored, stored, "the parameter 'scale' is in Pyro's store and in no module"),
        (
            site("z", lambda x: dist.Gamma(x[:, 0].exp(), 1.0)),
            normal,
            "'z' is Normal in the guide and Gamma in the model",
        ),
        (
            normal,
            site("z", lambda x: dist.StudentT(3.0, x[:, 0])),
            "site 'z' of the guide is StudentT; .* takes Normal, ",
        ),
        (normal, site("z", lambda x: Own(x[:, 0], 1.0)), "site 'z' of the guide is Own; "),
        (normal, site("z", lambda x: dist.Bernoulli(logits=x[:, 0])), "site 'z' of the guide is Bernoulli; "),
        (normal, site("other", lambda x: dist.Normal(x[:, 0], 1.0)), "site 'other' of the guide is not in the model"),
        (normal, lambda x: None, "the guide samples nothing"),
    ],
    ids=["dependent", "shared", "subsampled", "stored", "support", "family", "own", "discrete", "names", "empty"],
)
def test_what_cannot_be_taken_is_refused_by_the_name_of_its_site(model, guide, said):
    with pytest.raises(ValueError, match=said):
        bsvi.evaluate(bsvi.adapters.pyro(model, guide), torch.randn(5, 3), k=2, iwae=2)


def test_a_latent_of_the_model_without_a_guide_is_refused_by_name():
    guide = site("first", lambda x: dist.Normal(x[:, 0], 1.0))
    with pytest.raises(ValueError, match="site 'second' of the model has no partner in the guide"):
        bsvi.evaluate(bsvi.adapters.pyro(dependent, guide), torch.randn(5, 3), k=2, iwae=2)


def test_networks_of_plain_functions_are_given_by_name():
    net = nn.Linear(3, 2)

    def guide(x):
        pyro.module("net", net)
        loc, log_scale = net(x).chunk(2, -1)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(loc[:, 0], log_scale[:, 0].exp()))

    x = torch.randn(5, 3)
    with pytest.raises(
        ValueError, match=r"the parameter 'net\$\$\$weight' is in Pyro's store and in no module of the model; give"
    ):
        bsvi.adapters.pyro(normal, guide).encode(x)
    assert len(list(bsvi.adapters.pyro(normal, guide, module=net).parameters())) == 2
    assert bsvi.adapters.pyro(normal, guide, module=net).encode(x).shape == (5, 2)
