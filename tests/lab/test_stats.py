import random

import pytest

from mptui.lab.stats import ROUNDS, ratio


def rounds(truth, noise, number, count=ROUNDS):
    """Rates of two sides under noise that is skewed, as that of a busy machine is: only ever slower."""
    random.seed(number)
    theirs = [100 / (1 + random.expovariate(1 / noise)) for _ in range(count)]
    ours = [100 * truth / (1 + random.expovariate(1 / noise)) for _ in range(count)]
    return ratio(ours, theirs)


@pytest.mark.parametrize("count", [ROUNDS, 8, 11, 20])
def test_a_difference_that_is_none_is_called_none(count):
    verdicts = [rounds(1.0, 0.05, number, count).verdict for number in range(400)]

    assert verdicts.count("same") >= 0.95 * len(verdicts)


@pytest.mark.parametrize(("truth", "verdict"), [(1.3, "faster"), (0.75, "slower")])
def test_a_difference_beyond_the_noise_is_called_one(truth, verdict):
    verdicts = [rounds(truth, 0.05, number).verdict for number in range(400)]

    assert verdicts.count(verdict) >= 0.95 * len(verdicts)


def test_the_interval_holds_the_median_and_narrows_with_more_rounds():
    few, many = rounds(1.1, 0.05, 1, 6), rounds(1.1, 0.05, 1, 60)

    assert few.low <= few.median <= few.high
    assert many.high - many.low < few.high - few.low


def test_few_rounds_are_judged_by_their_extremes():
    measured = ratio([11, 12, 13], [10, 10, 10])

    assert (measured.low, measured.median, measured.high) == (1.1, 1.2, 1.3)


def test_sides_that_were_not_measured_as_often_are_refused():
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])
