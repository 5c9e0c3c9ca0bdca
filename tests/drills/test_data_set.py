"""A data set and a likelihood are added from outside by a row each: every verb that reads images then knows them."""

import json

import torch

from bsvi.experiments.trained import load_trained
from bsvi.tables.data_sets import DATA_SETS
from bsvi.tables.likelihoods import LIKELIHOODS
from tests.drills.conftest import TINY, printed


def test_a_data_set_of_a_stranger_is_listed_checked_trained_on_evaluated_and_planned(plugin, bsvi_command, tmp_path):
    plugin(printed("A data set"))
    assert "all patterns of stripes" in bsvi_command("data list")
    assert "40 images" in bsvi_command("data check stripes")
    bsvi_command("train digits --data.name stripes --method vae --out run --quiet", TINY)
    about = json.loads((tmp_path / "run/config.json").read_text())["data"]
    assert (about["name"], about["likelihood"], about["train"]) == ("stripes", "bernoulli", 160)
    bsvi_command("evaluate run --k 2 --iwae 2 --examples 5 --threads 1 --device cpu --compile off --quiet")
    assert "vae" in bsvi_command("plan digits --data.name stripes --methods vae --device A100")
    del DATA_SETS["stripes"]
    assert "stripes" in bsvi_command("evaluate run --k 2", code=1)  # by now a name that leads nowhere


def test_a_likelihood_of_a_stranger_is_trained_evaluated_and_sampled(plugin, bsvi_command, tmp_path):
    plugin(printed("A likelihood"))
    bsvi_command("train digits --data.name grey-digits --method vae --out run --quiet", TINY)
    assert json.loads((tmp_path / "run/config.json").read_text())["data"]["likelihood"] == "binomial"
    bsvi_command("evaluate run --k 2 --iwae 2 --examples 5 --threads 1 --device cpu --compile off --quiet")
    trained = load_trained(tmp_path / "run", torch.device("cpu"))
    assert type(trained.model.decoder.likelihood).__name__ == "Binomial"
    drawn = trained.model.decoder.sample(torch.zeros(3, 4))
    assert torch.equal(16 * drawn, (16 * drawn).round()) and 0 <= drawn.min() <= drawn.max() <= 1
    del LIKELIHOODS["binomial"]
    assert "unknown likelihood 'binomial'" in bsvi_command("evaluate run --k 2", code=1)


def test_the_printed_likelihood_is_one(plugin, bsvi_command):
    """Its 17 probabilities sum to one, and its draws from a fine grid of noise have the right mean."""
    plugin(printed("A likelihood"))
    bsvi_command("data list")
    likelihood, logit = LIKELIHOODS["binomial"].make(), torch.tensor(0.3)
    levels = torch.arange(17.0).view(17, 1, 1, 1) / 16
    total = likelihood.log_prob(levels, logit.expand(17, 1, 1, 1)).exp().sum()
    assert abs(total - 1) < 1e-6
    noise = (torch.arange(10_000.0) + 0.5) / 10_000
    assert abs(likelihood.sample(logit.expand(10_000), noise).mean() - likelihood.mean(logit)) < 1e-3


def test_a_run_that_names_no_likelihood_is_read_by_its_tensors(plugin, bsvi_command, tmp_path):
    """As those of earlier versions do."""
    bsvi_command("train digits --method vae --out run --quiet", TINY)
    file = tmp_path / "run/model.safetensors"
    was = file.read_bytes()
    size = int.from_bytes(was[:8], "little")
    header = json.loads(was[8 : 8 + size])
    about = json.loads(header["__metadata__"]["bsvi"])
    assert about["data"].pop("likelihood") == "bernoulli"
    header["__metadata__"]["bsvi"] = json.dumps(about)
    text = json.dumps(header).encode()
    file.write_bytes(
        (len(text) + -len(text) % 8).to_bytes(8, "little") + text + b" " * (-len(text) % 8) + was[8 + size :]
    )
    trained = load_trained(tmp_path / "run", torch.device("cpu"))
    assert type(trained.model.decoder.likelihood).__name__ == "Bernoulli"


def test_the_rows_say_what_the_loaders_return():
    for name, row in DATA_SETS.items():
        if not row.sources:
            dataset = row.load()
            assert (dataset.name, dataset.shape, dataset.likelihood) == (name, row.shape, row.likelihood)
            assert (len(dataset.valid), len(dataset.test)) == (row.valid, row.test)
