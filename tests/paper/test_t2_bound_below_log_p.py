"""T2: every method's bound is at most ln p(x) in expectation. One-sided, 5.2 standard errors: false alarm below 1e-7 each."""

import pytest
import torch

from bsvi import METHODS, SVI, objective
from tests.oracles import PPCA, mean_and_error


@pytest.mark.parametrize("name", METHODS)
def test_the_bound_is_below_the_exact_log_likelihood(name):
    model = PPCA().start_wide()
    svi = SVI(lr=0.2, momentum=0.5, max_grad_norm=1.0)
    with torch.no_grad():
        bound = objective(name, k=3, svi=svi)(model, model.batch(20_000)).bound
    mean, error = mean_and_error(bound - model.exact_log_p(model.x))
    assert mean <= 5.2 * error
    assert mean > -10.0  # and not by being meaningless
