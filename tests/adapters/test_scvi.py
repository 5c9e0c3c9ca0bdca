"""``bsvi.adapters.scvi`` against scvi-tools' own estimator and against an exact likelihood."""

import copy
import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal

import bsvi
from bsvi.adapters.from_scvi import ScviVAE
from tests.adapters.linear import Linear, agree

scvi = pytest.importorskip("scvi", reason="needs scvi-tools; ./run test-adapters has it")


@pytest.fixture(scope="module")
def trained():
    """``trained(**settings)``: a model of 60 cells and 20 genes, trained for a moment, made once."""
    known = {}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def make(covariates=False, **settings):
        key = str((covariates, settings))
        if key not in known:
            scvi.settings.seed = 1
            scvi.settings.verbosity = logging.ERROR
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adata = scvi.data.synthetic_iid(batch_size=30, n_genes=20, n_batches=2)
                rng = np.random.default_rng(0)
                adata.obs["depth"], adata.obs["donor"] = rng.normal(size=60), rng.choice(["a", "b", "c"], 60)
                words = {"continuous_covariate_keys": ["depth"], "categorical_covariate_keys": ["donor"]}
                scvi.model.SCVI.setup_anndata(adata, batch_key="batch", **(words if covariates else {}))
                model = scvi.model.SCVI(adata, n_latent=3, n_hidden=16, **settings)
                model.train(max_epochs=8, accelerator="cpu", enable_progress_bar=False, logger=False)
            known[key] = model
        return known[key]

    return make


SETTINGS = {
    "zinb": {},
    "nb": {"gene_likelihood": "nb", "dispersion": "gene-batch"},
    "poisson": {"gene_likelihood": "poisson", "n_layers": 2},
    "library": {"use_observed_lib_size": False},
    "covariates": {
        "covariates": True,
        "encode_covariates": True,
        "use_observed_lib_size": False,
        "dispersion": "gene-cell",
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_number_is_that_of_scvi_tools_own_estimator(trained, name):
    model = trained(**SETTINGS[name])
    cells, draws = [3, 5, 31, 50], 300
    adapted, batches = bsvi.adapters.scvi(model, indices=cells)
    ours = [bsvi.evaluate(adapted, batches, k=1, iwae=draws, seed=s).iwae[draws].mean for s in range(6)]
    theirs = [
        float(
            model.get_marginal_ll(
                indices=cells, n_mc_samples=draws, n_mc_samples_per_pass=100, return_mean=False
            ).mean()
        )
        for _ in range(6)
    ]
    agree(ours, theirs)


def test_the_density_of_a_logistic_normal_is_taken_before_the_softmax(trained):
    model = trained(latent_distribution="ln", gene_likelihood="nb")
    adapted, batches = bsvi.adapters.scvi(model, indices=[3, 40])
    (batch,) = batches
    module = model.module.eval()
    with torch.no_grad():
        q = module.inference(batch.x["X"], batch.x["batch"])["qz"]
        z = q.sample((4000,))
        size = batch.x["X"].sum(1, keepdim=True).log()
        rows = [module.generative(v.softmax(-1), size, batch.x["batch"], y=batch.x["labels"]) for v in z]
        log_lik = torch.stack([row["px"].log_prob(batch.x["X"]).sum(-1) for row in rows])
        log_w = log_lik + (Normal(0.0, 1.0).log_prob(z) - q.log_prob(z)).sum(-1)
    direct = torch.logsumexp(log_w.double(), 0) - np.log(len(log_w))
    scores = bsvi.evaluate(adapted, batches, k=1, iwae=4000).iwae[4000].per_example
    error = (log_w - direct).exp().std(0) / len(log_w) ** 0.5
    assert (abs(direct - torch.from_numpy(scores)) < 8 * 1.5 * error + 1e-3).all()
    theirs = model.get_marginal_ll(indices=[3, 40], n_mc_samples=1000, n_mc_samples_per_pass=500, return_mean=False)
    assert (abs(theirs - direct) > 20 * error).any()  # it takes the density of z at softmax(z)


def test_scvi_tools_divides_by_another_count_than_it_draws(trained):
    """What the page warns of: passes that do not divide the draws make ln p(x) too large, here by ln(200 / 101)."""
    model = trained(**SETTINGS["nb"])
    words = {"indices": [3], "return_mean": False, "n_mc_samples_per_pass": 100}
    right = [float(model.get_marginal_ll(n_mc_samples=200, **words)) for _ in range(6)]
    wrong = [float(model.get_marginal_ll(n_mc_samples=101, **words)) - np.log(200 / 101) for _ in range(6)]
    agree(right, wrong)


class Exact(nn.Module):
    """The exact posterior in the place of an encoder; its second half is that of the library size."""

    def __init__(self, linear, part, shift=0.0, scale=1.0):
        super().__init__()
        self.linear, self.part, self.shift, self.scale = linear, part, shift, scale

    def forward(self, x, *covariates):
        mean, variance = self.linear.posterior(x)
        q = Normal(self.shift + self.scale * mean[:, self.part], self.scale * variance[:, self.part].sqrt())
        return q, q.rsample()

    def z_transformation(self, z):
        return z


class Straight(nn.Module):
    def __init__(self, linear, shift, scale):
        super().__init__()
        self.linear, self.shift, self.scale = linear, shift, scale

    def forward(self, dispersion, z, library, *covariates):
        latents = torch.cat([z, (library - self.shift) / self.scale], -1)
        rate = latents @ self.linear.W.T + self.linear.b
        return rate.softmax(-1), None, rate, rate


def test_the_likelihood_of_a_linear_model_with_a_latent_library_size_is_exact():
    linear, (shift, scale) = Linear(latent=3, visible=5, sigma=0.8), (2.0, 0.5)
    module = scvi.module.VAE(
        5,
        n_batch=1,
        n_latent=2,
        gene_likelihood="normal",
        use_observed_lib_size=False,
        log_variational=False,
        library_log_means=np.array([[shift]]),
        library_log_vars=np.array([[scale**2]]),
    )
    module.px_r.data.fill_(float(np.log(linear.sigma)))
    module.z_encoder = Exact(linear, slice(0, 2))
    module.l_encoder = Exact(linear, slice(2, 3), shift, scale)
    module.decoder = Straight(linear, shift, scale)
    x = {"X": linear.x, "batch": torch.zeros(20, 1).long(), "labels": torch.zeros(20, 1).long()}
    model = ScviVAE(module)
    scores = bsvi.evaluate(model, [x], k=1, iwae=20)
    assert torch.allclose(torch.from_numpy(scores.iwae[20].per_example), linear.log_p(), atol=2e-4)
    assert not scores.warnings or "generator" not in " ".join(scores.warnings)


def test_z_and_a_latent_library_size_are_clipped_apart(trained):
    for name, sizes in (("library", [3, 1, 3, 1]), ("nb", [3, 3])):
        adapted, batches = bsvi.adapters.scvi(trained(**SETTINGS[name]), indices=[3, 40])
        (batch,) = batches
        lambda_ = adapted.encode(batch.x)
        clipped = bsvi.SVI(max_grad_norm=0.1).clipped(torch.full_like(lambda_, 50.0), adapted.posterior(lambda_))
        for part in clipped.split(sizes, -1):
            assert torch.allclose(part.norm(dim=-1), torch.tensor(0.1))


def test_an_encoder_that_is_beside_the_point_is_found(trained):
    adapted, batches = bsvi.adapters.scvi(trained(**SETTINGS["library"]), indices=range(10))
    gap = bsvi.amortization_gap(adapted, batches, steps=60, k=50)
    assert gap.amortization_gap.mean > 3 * gap.amortization_gap.stderr
    annealed = bsvi.ais(adapted, batches, chains=4, temperatures=50)
    assert np.isfinite(annealed.log_likelihood.per_example).all() and len(annealed.ids) == 10


def test_ids_are_rows_of_the_anndata_whatever_the_batches_are(trained, tmp_path):
    model, rows = trained(), [50, 7, 9, 2]
    scores = []
    for size in (2, 4):
        adapted, batches = bsvi.adapters.scvi(model, indices=rows, batch_size=size)
        scores.append(bsvi.evaluate(adapted, batches, k=3, iwae=5, store=tmp_path / str(size)))
    assert scores[0].ids.tolist() == sorted(rows)
    assert np.allclose(scores[0].log_likelihood.per_example, scores[1].log_likelihood.per_example, atol=1e-3)
    mask = np.zeros(60, bool)
    mask[rows] = True
    assert bsvi.adapters.scvi(model, indices=mask)[1].ids.tolist() == sorted(rows)


@pytest.mark.usefixtures("as_users_call")
def test_what_is_not_known_is_refused_by_name(trained):
    with pytest.raises(ValueError, match="cannot take Linear: its densities are not known here; it takes SCVI and"):
        bsvi.adapters.scvi(nn.Linear(2, 2))
    for rows in ([60], [-1], [], [1.5], 5, "all", [[1, 2]], np.array([True, False]), np.zeros(60, bool), ["a", "b"]):
        with pytest.raises(ValueError, match="indices must name rows from 0 to 59, or be a mask of all 60 cells, got"):
            bsvi.adapters.scvi(trained(), indices=rows)
    with pytest.raises(ValueError, match="indices name a cell twice"):
        bsvi.adapters.scvi(trained(), indices=[3, 3])
    with pytest.raises(TypeError, match="adata must be an AnnData, got str"):
        bsvi.adapters.scvi(trained(), adata="cells.h5ad")
    untrained = scvi.model.SCVI(trained().adata, n_latent=2)
    with pytest.raises(ValueError, match=r"this SCVI is not trained; call its train\(\) first"):
        bsvi.adapters.scvi(untrained)


def test_dropout_of_the_encoder_has_nothing_in_common_with_the_draws_after_it(trained, monkeypatch):
    adapted, batches = bsvi.adapters.scvi(trained(), indices=[3, 40])
    (batch,) = batches
    met = []
    inference = adapted.module.inference
    monkeypatch.setattr(adapted.module, "inference", lambda **x: met.append(torch.rand(4)) or inference(**x))
    before = torch.get_rng_state()
    adapted.encode(batch.x)
    assert torch.equal(before, torch.get_rng_state()) and not torch.equal(met[0], torch.rand(4))


def test_training_goes_on_in_the_mode_of_each_part_and_batch_statistics_are_refused(trained):
    """After scvi-tools' own training all parts are in evaluation mode."""
    adapted, batches = bsvi.adapters.scvi(copy.deepcopy(trained()), indices=range(20))
    parameters = [p.detach().clone() for p in adapted.parameters()]
    buffers = [b.detach().clone() for b in adapted.buffers()]
    bsvi.train(adapted, bsvi.objective("bsvi-sir", k=2), batches, settings=bsvi.Training(steps=2))
    assert not all(map(torch.equal, parameters, adapted.parameters()))
    assert all(map(torch.equal, buffers, adapted.buffers()))
    with pytest.raises(ValueError, match=r"decoder's BatchNorm1d .* uses batch statistics"):
        bsvi.train(adapted.train(), bsvi.objective("vae"), batches, settings=bsvi.Training(steps=1))
    adapted.decoder.eval()
    bsvi.train(adapted, bsvi.objective("vae"), batches, settings=bsvi.Training(steps=1))
