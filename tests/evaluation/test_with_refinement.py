"""A model that was trained end to end is judged from where its trained steps end."""

import pytest
import torch
from torch import nn

import bsvi
from bsvi import SVI, VAE, amortization_gap, evaluate
from bsvi.beyond.end_to_end import EndToEnd
from bsvi.beyond.updates import Network
from bsvi.beyond.with_refinement import WithRefinement, add_refinement
from bsvi.objectives import Objective
from tests.oracles import FLOAT, PPCA, BernoulliDecoder, mean_and_error


def make():
    torch.manual_seed(0)
    model = VAE(nn.Linear(20, 8), BernoulliDecoder())
    return WithRefinement(model, EndToEnd(SVI(steps=3, lr=0.3))), torch.rand(9, 20).round()


def test_an_examples_numbers_do_not_depend_on_its_batch():
    model, x = make()
    whole = evaluate(model, x, k=10, iwae=())
    batches = [(x[:4], torch.arange(4)), (x[4:], torch.arange(4, 9))]
    parts = evaluate(model, batches, k=10, iwae=(), batch=lambda b: b[0], ids=lambda b: b[1])
    torch.testing.assert_close(whole.log_likelihood.per_example, parts.log_likelihood.per_example, rtol=0, atol=1e-4)
    assert not whole.warnings or "batch" not in " ".join(whole.warnings)


def test_the_start_is_the_end_of_the_trained_steps():
    poor = PPCA(latent=4, visible=6).start(torch.full((4,), 3.0, dtype=FLOAT), torch.tensor(0.0, dtype=FLOAT))
    climbs = WithRefinement(poor, EndToEnd(SVI(steps=20, lr=0.05, max_grad_norm=5.0)).double())
    x = poor.batch(50)
    own, trained = (evaluate(model, x, k=5, iwae=(20,)) for model in (poor, climbs))
    assert trained.amortized_elbo.mean > own.amortized_elbo.mean + 3  # the encoder is 3 units off in each of 4 latents
    assert trained.iwae[20].mean > own.iwae[20].mean
    assert amortization_gap(climbs, x, steps=20, k=20).amortization_gap.mean < (
        amortization_gap(poor, x, steps=20, k=20).amortization_gap.mean
    )


def test_the_estimates_stay_below_the_exact_log_likelihood():
    """One-sided, 5.2 standard errors: a false alarm below 1e-7."""
    model = PPCA().start_wide()
    climbs = WithRefinement(model, EndToEnd(SVI(steps=3, lr=0.2, max_grad_norm=1.0)).double())
    scores = evaluate(climbs, [model.batch(2_000)], k=3, iwae=(4,))
    for score in (scores.log_likelihood, scores.iwae[4]):
        mean, error = mean_and_error(torch.as_tensor(score.per_example) - model.exact_log_p(model.x))
        assert -3 < mean <= 5.2 * error


def test_a_store_of_other_rates_is_refused(tmp_path):
    model, x = make()
    evaluate(model, x, k=3, iwae=(), store=tmp_path / "store")
    with torch.no_grad():
        model.refinement.update.log_rates.add_(0.1)
    with pytest.raises(ValueError, match="holds another evaluation"):
        evaluate(model, x, k=3, iwae=(), store=tmp_path / "store")


def test_only_a_refinement_that_was_trained_is_added():
    model, _ = make()
    assert add_refinement(model.model, Objective(SVI(steps=2))) is model.model
    assert add_refinement(model.model, None) is model.model
    network = EndToEnd(SVI(steps=2), Network(width=8), second_order=False)
    assert add_refinement(model.model, Objective(network)).refinement is network


@pytest.mark.parametrize("method", ["bsvi-e2e", "sa-vae", "iterative", "iterative-bsvi"])
def test_a_store_answers_for_the_same_refinement_before_and_after_its_first_step(method, tmp_path):
    model, x = make()[0].model, torch.rand(5, 20).round()
    objective = bsvi.objective(method, k=2, width=8)
    again = bsvi.objective(method, k=2, width=8)
    again.load_state_dict(objective.state_dict())
    evaluate(add_refinement(model, objective), x, k=2, iwae=(), store=tmp_path / "store")
    objective(model, x).loss.backward()
    for one in (objective, again):
        evaluate(add_refinement(model, one), x, k=2, iwae=(), store=tmp_path / "store")


def test_a_network_without_weights_is_not_evaluated():
    model, _ = make()
    with pytest.raises(ValueError, match="no weights yet; train it first"):
        add_refinement(model.model, bsvi.objective("iterative", k=2))
