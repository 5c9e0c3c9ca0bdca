"""What each estimator says of one trained SCVI: the encoder's ELBO, scvi-tools' own ln p(x), IWAE, BSVI and AIS.

    .cache/adapters/bin/python benchmarks/scvi_estimators.py --library latent

The cells are simulated: gamma-Poisson counts of four cell types in two batches, with a library size of each cell.
``./run test-adapters`` makes the environment. The table is printed as Markdown; seconds are CPU time of one thread.
"""

import argparse
import logging
import time
import warnings

import anndata
import numpy as np
import scvi
import torch

import bsvi


def simulate(cells: int, genes: int, seed: int = 0) -> anndata.AnnData:
    """Counts whose log-rates are a type's profile and two continuous factors."""
    rng = np.random.default_rng(seed)
    kind, batch = rng.integers(0, 4, cells), rng.integers(0, 2, cells)
    factors = rng.normal(size=(cells, 2)) @ rng.normal(0, 0.5, (2, genes))
    log_rate = rng.normal(0, 1, (4, genes))[kind] + rng.normal(0, 0.3, (2, genes))[batch] + factors
    share = np.exp(log_rate) / np.exp(log_rate).sum(1, keepdims=True)
    size = np.exp(rng.normal(np.log(8 * genes), 0.4, (cells, 1)))
    counts = rng.poisson(rng.gamma(2.0, size * share / 2.0)).astype(np.float32)
    return anndata.AnnData(counts, obs={"batch": batch.astype(str)})


def train(adata: anndata.AnnData, epochs: int, observed: bool) -> scvi.model.SCVI:
    scvi.settings.seed, scvi.settings.verbosity = 0, logging.ERROR
    scvi.model.SCVI.setup_anndata(adata, batch_key="batch")
    model = scvi.model.SCVI(adata, gene_likelihood="nb", use_observed_lib_size=observed)
    model.train(max_epochs=epochs, accelerator="cpu", enable_progress_bar=False, logger=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=("observed", "latent"), default="observed")
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--genes", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--judged", type=int, default=40, help="cells that are evaluated")
    words = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trained = train(simulate(words.cells, words.genes), words.epochs, words.library == "observed")
    rows = np.arange(words.judged)
    model, cells = bsvi.adapters.scvi(trained, indices=rows)

    def show(spent: float) -> str:
        return f"{spent:.0f}" if spent >= 10 else f"{spent:.2g}"

    def timed(function):
        begin = time.process_time()
        return function(), time.process_time() - begin

    passes = {"n_mc_samples": 1000, "n_mc_samples_per_pass": 100, "return_mean": False}
    theirs, seconds = timed(lambda: trained.get_marginal_ll(indices=rows, **passes))
    iwae, iwae_seconds = timed(lambda: bsvi.evaluate(model, cells, k=1, iwae=1000))
    steps = bsvi.SVI(lr=0.1, max_grad_norm=1.0)
    refined, refined_seconds = timed(lambda: bsvi.evaluate(model, cells, k=500, svi=steps, iwae=()))
    annealed, annealed_seconds = timed(lambda: bsvi.ais(model, cells, temperatures=500))
    judge = annealed.log_likelihood.per_example
    table = {
        "ELBO of the encoder": (iwae.amortized_elbo.per_example, None),
        "`get_marginal_ll`, 1,000 draws": (theirs.double().numpy(), seconds),
        "IWAE-1000": (iwae.iwae[1000].per_example, iwae_seconds),
        "BSVI-500": (refined.log_likelihood.per_example, refined_seconds),
        "AIS, 500 temperatures": (judge, annealed_seconds),
    }
    print(
        f"library {words.library}, {words.judged} of {words.cells} cells, {words.genes} genes, {words.epochs} epochs\n"
    )
    print("| estimator | ln p(x) per cell | below AIS | CPU seconds |\n|---|---|---|---|")
    for name, (values, spent) in table.items():
        below, error = (judge - values).mean(), (judge - values).std(ddof=1) / len(judge) ** 0.5
        against = "" if values is judge else f"{below:.2f} ± {error:.2f}"
        print(f"| {name} | {values.mean():.2f} | {against} | {'' if spent is None else show(spent)} |")


if __name__ == "__main__":
    main()
