import json
import math
import random

import pytest

from mptui.lab.bench.stats import ROUNDS, ratio, rounds_text

TRIALS = 400


def quiet(chance, spread):
    return chance.gauss(0, spread)


def skewed(chance, spread):
    """Noise of a busy machine: only slowdowns."""
    return -chance.expovariate(1 / spread)


def heavy(chance, spread):
    """Student's t with three degrees of freedom."""
    return spread * chance.gauss(0, 1) / math.sqrt(chance.gammavariate(1.5, 2) / 3)


def astray(chance, spread):
    """One measurement in twenty meets other work, and is slower by a third or more."""
    return chance.gauss(0, spread) - (chance.expovariate(3) if chance.random() < 0.05 else 0)


def measured(truth, noise, number, count=ROUNDS, spread=0.015, drift=0.0):
    """Return rates of two sides, A B, B A and so on, on a machine that drifts by up to `drift` each time."""
    chance = random.Random(number)
    sides: tuple[list[float], list[float]] = ([], [])
    level = 0.0
    for turn in range(count):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            level += chance.uniform(-drift, drift) - drift / 4  # and slows down as it heats up
            sides[side].append(100 * math.exp(level + noise(chance, spread)) * (truth if side == 0 else 1))
    return ratio(*sides)


def share(verdict, truth, noise, **options):
    return sum(measured(truth, noise, n, **options).verdict == verdict for n in range(TRIALS)) / TRIALS


@pytest.mark.parametrize("noise", [quiet, skewed, heavy, astray])
@pytest.mark.parametrize("drift", [0.0, 0.02])
def test_a_difference_that_is_none_is_called_none(noise, drift):
    shares = [share("same", 1.0, noise, count=count, drift=drift) for count in (4, ROUNDS, 10)]

    assert sum(shares) / len(shares) >= 0.95


@pytest.mark.parametrize("noise", [quiet, skewed, heavy, astray])
@pytest.mark.parametrize(("truth", "verdict"), [(1.1, "faster"), (0.9, "slower")])
def test_a_difference_of_a_tenth_is_called_one(truth, verdict, noise):
    assert share(verdict, truth, noise) >= 0.95


def test_a_fiftieth_is_told_from_noise_where_the_machine_is_quiet():
    assert share("faster", 1.02, quiet, spread=0.004) >= 0.95
    assert share("slower", 1 / 1.02, quiet, spread=0.004) >= 0.95


@pytest.mark.parametrize("noise", [quiet, skewed, heavy, astray])
@pytest.mark.parametrize("truth", [0.9, 1.0, 1.02, 1.1])
def test_the_interval_holds_the_truth_whatever_it_is(truth, noise):
    held = [r.low <= truth <= r.high for r in (measured(truth, noise, n, drift=0.01) for n in range(TRIALS))]

    assert sum(held) >= 0.95 * TRIALS


def test_the_interval_holds_the_median_and_narrows_with_more_rounds():
    few, many = measured(1.1, skewed, 1, 6), measured(1.1, skewed, 1, 60)

    assert few.low <= few.median <= few.high
    assert many.high - many.low < few.high - few.low


def test_one_round_says_nothing_for_sure():
    once = ratio([20.0], [10.0])

    assert once.median == pytest.approx(2)
    assert once.verdict == "same"
    assert json.loads(json.dumps(once.document, allow_nan=False))["low"] is None


def test_sides_that_were_not_measured_as_often_are_refused():
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="no rounds"):
        ratio([], [])


def test_one_round_is_called_one_and_too_few():
    assert rounds_text(1) == "median of 1 round, too few to tell noise from a difference: use --rounds 6"
    assert rounds_text(6) == "median of 6 rounds"
