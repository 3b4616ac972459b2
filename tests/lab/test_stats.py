import json
import math
import random

import pytest

from mptui.lab.measure.core import ROUNDS, SampleSpan, ratio, rounds_text, total

TRIALS = 200


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


NOISES = (quiet, skewed, heavy, astray)


def of_each_noise(*values):
    """Return all pairs of a noise and a value; those that are fast have each noise, and each value."""
    return [
        pytest.param(noise, value, marks=() if number % len(values) == place else pytest.mark.slow)
        for number, noise in enumerate(NOISES)
        for place, value in enumerate(values)
    ]


def measured(truth, noise, number, count=ROUNDS, spread=0.015, drift=0.0):
    """Return rates of two sides, A B, B A and so on, on a machine that drifts by up to `drift` each time."""
    chance = random.Random(number)
    sides: tuple[list[SampleSpan], list[SampleSpan]] = ([], [])
    level = 0.0
    for turn in range(count):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            level += chance.uniform(-drift, drift) - drift / 4  # and slows down as it heats up
            rate = 100 * math.exp(level + noise(chance, spread)) * (truth if side == 0 else 1)
            sides[side].append(SampleSpan(rate, 1.0))
    return ratio(*sides)


def share(verdict, truth, noise, **options):
    return sum(measured(truth, noise, n, **options).verdict == verdict for n in range(TRIALS)) / TRIALS


@pytest.mark.parametrize(("noise", "drift"), of_each_noise(0.0, 0.02))
def test_a_difference_that_is_none_is_called_none(noise, drift):
    shares = [share("same", 1.0, noise, count=count, drift=drift) for count in (4, ROUNDS, 10)]

    assert sum(shares) / len(shares) >= 0.95


@pytest.mark.parametrize(("noise", "truth"), of_each_noise(1.1, 0.9))
def test_a_difference_of_a_tenth_is_called_one(noise, truth):
    verdict = "faster" if truth > 1 else "slower"
    # a round that other work held up could be the setting's own stall, and so leaves some more undecided
    assert share(verdict, truth, noise) >= (0.92 if noise is astray else 0.95)


def test_a_fiftieth_is_told_from_noise_where_the_machine_is_quiet():
    assert share("faster", 1.02, quiet, spread=0.004) >= 0.95
    assert share("slower", 1 / 1.02, quiet, spread=0.004) >= 0.95


@pytest.mark.parametrize(("noise", "truth"), of_each_noise(0.9, 1.0, 1.02, 1.1))
def test_the_interval_holds_the_truth_whatever_it_is(truth, noise):
    held = [r.low <= truth <= r.high for r in (measured(truth, noise, n, drift=0.01) for n in range(TRIALS))]

    assert sum(held) >= 0.95 * TRIALS


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("count", [ROUNDS, 10])
def test_intervals_of_many_comparisons_are_neither_too_narrow_nor_too_wide(noise, count):
    trials = 1000
    for truth in (1.0, 1.02, 0.95):
        found = [measured(truth, noise, n, count=count, drift=0.01) for n in range(trials)]
        assert 0.92 <= sum(each.low <= truth <= each.high for each in found) / trials <= 0.985
        wrong = {"faster"} if truth < 1 else {"slower"} if truth > 1 else {"faster", "slower"}
        assert sum(each.verdict in wrong for each in found) <= 0.05 * trials


def test_the_interval_holds_the_ratio_and_narrows_with_more_rounds():
    few, many = measured(1.1, skewed, 1, 6), measured(1.1, skewed, 1, 60)

    assert few.low <= few.value <= few.high
    assert many.high - many.low < few.high - few.low


def test_one_round_says_nothing_for_sure():
    once = ratio([SampleSpan(20.0, 1.0)], [SampleSpan(10.0, 1.0)])

    assert once.value == pytest.approx(2)
    assert once.verdict == "same"
    assert json.loads(json.dumps(once.document, allow_nan=False))["low"] is None


def test_sides_that_were_not_measured_as_often_are_refused():
    with pytest.raises(ValueError, match="zip"):
        ratio([SampleSpan(1.0, 1.0)], [SampleSpan(1.0, 1.0), SampleSpan(2.0, 1.0)])
    with pytest.raises(ValueError, match="no rounds"):
        ratio([], [])


def test_one_round_is_called_one_and_too_few():
    assert rounds_text(1) == "1 round, too few to tell noise from a difference: use --rounds 6"
    assert rounds_text(6) == "6 rounds"


def test_a_total_weighs_each_span_by_its_time():
    assert total([SampleSpan(100, 1.0), SampleSpan(10, 9.0)]).rate == 11.0


def stalled(number, *, every, stall, step, span_s=3.0, count=ROUNDS):
    """Return spans of steps of one sample that take `step` seconds, one of `every` `stall` seconds more."""
    chance = random.Random(number)
    spans = []
    for _ in range(count):
        taken, seconds = 0, 0.0
        while seconds < span_s:
            taken += 1
            seconds += step + (stall if chance.random() < 1 / every else 0.0)
        spans.append(SampleSpan(taken, seconds))
    return spans


@pytest.mark.parametrize(("every", "stall"), [(25, 2.5), (100, 2.5), (100, 10.0), (4, 0.4)])
def test_what_stalls_now_and_then_is_as_slow_as_it_is_in_the_long_run(every, stall):
    step = 0.002
    truth = 0.05 / (step + stall / every)
    found = [
        ratio(
            stalled(number, every=every, stall=stall, step=step),
            [SampleSpan(3.0 / 0.05, 3.0)] * ROUNDS,
        )
        for number in range(TRIALS)
    ]

    # Wald: a span ends with the step that fills it, so its expected samples over seconds are the true rate
    assert sum(r.low <= truth <= r.high for r in found) >= 0.9 * TRIALS
    if truth < 1:
        assert sum(r.verdict == "faster" for r in found) <= 0.05 * TRIALS
