"""The intervals cover what they say: seeds and examples both vary, and both are crossed."""

import numpy as np
import pytest
from scipy.special import ndtr

from bsvi.report.intervals import crossed_interval, interval_over_seeds


def exact_coverage(seeds, seed_sd, rest_sd, repetitions, examples=100):
    """How often the interval holds the mean: given the variances it depends on, the mean is normal, so nothing is counted.

    Examples have the standard deviation 1. One repetition's share has a standard deviation of 0.1 at most.
    """
    noise = np.random.default_rng([seeds, int(1000 * seed_sd), int(10 * rest_sd)])
    of_mean = np.sqrt(seed_sd**2 / seeds + 1 / examples + rest_sd**2 / (seeds * examples))
    shares = []
    for _ in range(repetitions):
        d = seed_sd * noise.normal(size=(seeds, 1)) + noise.normal(size=(1, examples))
        interval = crossed_interval(d + rest_sd * noise.normal(size=(seeds, examples)))
        shares.append(2 * ndtr((interval.high - interval.low) / 2 / of_mean) - 1)
    return np.mean(shares)


SEED_NOISE = (0.0, 0.1, 0.2, 0.4)  # 0, 1, 2 and 4 times the error of the mean over 100 examples: both matter
MORE_NOISE = (1.0, 2.0, 4.0)  # times one example's deviation: only the seeds matter


@pytest.mark.parametrize("seed_sd", SEED_NOISE)
@pytest.mark.parametrize("seeds", [3, 4, 8])
def test_few_seeds_cover_between_92_and_98_percent(seeds, seed_sd):
    assert 0.92 <= exact_coverage(seeds, seed_sd, 0.5, 200) <= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("rest_sd", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("seed_sd", SEED_NOISE + MORE_NOISE)
@pytest.mark.parametrize("seeds", [3, 4, 8])
def test_few_seeds_cover_between_92_and_98_percent_in_3000_repetitions(seeds, seed_sd, rest_sd):
    assert 0.92 <= exact_coverage(seeds, seed_sd, rest_sd, 3_000) <= 0.98


@pytest.mark.parametrize("seed_sd", SEED_NOISE)
def test_two_seeds_never_cover_too_rarely(seed_sd):
    assert 0.92 <= exact_coverage(2, seed_sd, 0.5, 200) <= 0.995


def test_two_seeds_are_too_few_to_know_how_seeds_differ():
    values = np.random.default_rng(0).normal(size=(3, 50))
    assert not crossed_interval(values[:2]).knows_seeds and crossed_interval(values).knows_seeds
    assert not interval_over_seeds([1.0, 1.1]).knows_seeds and interval_over_seeds([1.0, 1.1, 1.2]).knows_seeds


def coverage(seeds, examples, seed_sd, example_sd, rest_sd, repetitions=1000):
    noise = np.random.default_rng([seeds, examples, int(100 * seed_sd)])
    hits = []
    for _ in range(repetitions):
        d = seed_sd * noise.normal(size=(seeds, 1)) + example_sd * noise.normal(size=(1, examples))
        interval = crossed_interval(d + rest_sd * noise.normal(size=(seeds, examples)))
        hits.append(interval.low <= 0 <= interval.high)
    return np.mean(hits)


@pytest.mark.parametrize(
    ("seeds", "examples", "seed_sd", "example_sd", "rest_sd"),
    [
        (4, 200, 0.3, 1.0, 1.0),  # the luck of training matters most
        (4, 200, 0.05, 1.0, 1.0),  # seeds and examples matter alike
        (4, 200, 0.0, 1.0, 1.0),  # only the examples matter
        (2, 100, 0.2, 1.0, 1.0),
        (8, 30, 0.2, 1.0, 2.0),
    ],
)
def test_the_crossed_interval_covers_at_its_nominal_rate(seeds, examples, seed_sd, example_sd, rest_sd):
    assert 0.92 <= coverage(seeds, examples, seed_sd, example_sd, rest_sd) <= 0.99


def test_the_naive_interval_over_all_values_would_not_cover():
    noise = np.random.default_rng(0)
    hits = []
    for _ in range(500):
        d = 0.3 * noise.normal(size=(4, 1)) + noise.normal(size=(1, 200)) + noise.normal(size=(4, 200))
        hits.append(abs(d.mean()) <= 1.96 * d.std() / d.size**0.5)
    assert np.mean(hits) < 0.5  # what `crossed_interval` is for


def test_two_parts_share_their_seeds_but_not_their_examples():
    noise = np.random.default_rng(3)
    hits = []
    for _ in range(800):
        luck = 0.3 * noise.normal(size=(4, 1))
        train = luck + noise.normal(size=(1, 80)) + noise.normal(size=(4, 80))
        test = 0.5 * luck + noise.normal(size=(1, 120)) + noise.normal(size=(4, 120))
        interval = crossed_interval(train, -test)
        hits.append(interval.low <= 0 <= interval.high)
    assert 0.92 <= np.mean(hits) <= 0.99


def test_one_seed_says_that_it_knows_nothing_of_seeds():
    one = crossed_interval(np.random.default_rng(0).normal(size=(1, 50)))
    assert not one.knows_seeds and one.low < one.mean < one.high
    assert not interval_over_seeds([1.0]).knows_seeds and np.isnan(interval_over_seeds([1.0]).low)


def test_the_example_effect_alone_does_not_shrink_with_more_seeds():
    example = np.random.default_rng(1).normal(size=(1, 100))
    few, many = (crossed_interval(np.repeat(example, seeds, axis=0)) for seeds in (2, 50))
    assert few.high - few.low == pytest.approx(many.high - many.low, rel=0.05)
