"""The stated 95% interval holds the exact value at the nominal rate, and no lower bound is above it in expectation.

The model is exact: the average of ln p(x) over its own data is minus its entropy, and the encoder's loss is known. One
repetition is 100 new examples with new noise; its interval comes from ``Score``. 5,000 repetitions (the slow run) gave 94.2%
to 94.5% for the four estimators; the limits of 92% and 98% are more than 6 standard errors away, below 1e-6. In 500
repetitions they are 2.3, so with a new seed one of fifty runs would leave them; the seed is fixed.
"""

import math

import numpy as np
import pytest

from bsvi import SVI
from bsvi.evaluation.ais import ais
from bsvi.evaluation.evaluate import evaluate
from bsvi.evaluation.per_example import Score
from tests.evaluation.oracle import Diagonal, data

EXAMPLES = 100


def repeated(repetitions):
    """Per-example scores of ``repetitions`` data sets, (repetitions, examples), ln p(x), and the target of each score.

    ELBO* is that of a q that has not moved far from the posterior: then its target is ln p(x) too.
    """
    model = Diagonal(wider=0.1)
    x = data(model, repetitions * EXAMPLES)
    scores = evaluate(model, x.split(10_000), k=20, svi=SVI(lr=0.001), iwae=(20,), elbo_draws=8)
    names = ("log_likelihood", "elbo", "amortized_elbo", "iwae_20")
    target = dict.fromkeys(names, model.mean_log_p())
    target["amortized_elbo"] -= model.amortization_gap()
    columns = {name: scores.columns[name].reshape(-1, EXAMPLES) for name in names}
    return columns, model.exact_log_p(x).numpy(), target


def coverage(rows, target):
    ids = np.arange(EXAMPLES)
    return np.mean([score.low <= target <= score.high for score in (Score(row, ids) for row in rows)])


def check(columns, exact, target):
    for name, rows in columns.items():
        share = coverage(rows, target[name])
        assert 0.92 <= share <= 0.98, (name, share)
        above = rows.ravel() - exact
        assert above.mean() <= 6 * above.std() / math.sqrt(len(above)), name  # one-sided, 1e-9


def test_intervals_hold_the_exact_value_at_the_nominal_rate():
    check(*repeated(500))


@pytest.mark.slow
def test_intervals_hold_the_exact_value_at_the_nominal_rate_in_5000_repetitions():
    check(*repeated(5000))


@pytest.mark.slow
def test_the_interval_of_ais_holds_the_exact_value_at_the_nominal_rate():
    model = Diagonal()
    x = data(model, 500 * EXAMPLES)
    annealed = ais(model, x.split(2000), chains=8, temperatures=100, leapfrog=3)
    rows = annealed.log_likelihood.per_example.reshape(-1, EXAMPLES)
    check({"ais": rows}, model.exact_log_p(x).numpy(), {"ais": model.mean_log_p()})


def test_the_check_sees_a_bias_and_an_interval_that_is_too_narrow():
    columns, _, target = repeated(100)
    rows = columns["log_likelihood"]
    assert coverage(rows + 0.3, target["log_likelihood"]) < 0.6
    narrow = rows.mean(1, keepdims=True) + 0.7 * (rows - rows.mean(1, keepdims=True))
    assert coverage(narrow, target["log_likelihood"]) < 0.9
