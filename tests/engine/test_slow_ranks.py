"""The verdict on the ranks, from the times of their steps."""

import random

import pytest

from mptui.engine.ranks.beats import FEWEST, StepTimes, find_slow_ranks, median_times, verdict
from tests.tui.events import rank_row

USUAL = StepTimes(0.002, 0.030, 0.060, 0.005)


def steps_of(ranks, count=20, *, noise=0.0, **slow):
    """Steps of `ranks` ranks; `slow` maps `rN` to the seconds that its parts take longer."""
    chance = random.Random(ranks)
    made = []
    for _ in range(count):
        times = [StepTimes(*(part * (1 + noise * chance.random()) for part in USUAL)) for _ in range(ranks)]
        for name, more in slow.items():
            rank = int(name[1:])
            changed = {part: getattr(times[rank], part) + seconds for part, seconds in more.items()}
            times[rank] = times[rank]._replace(**changed)
        made.append(tuple(times))
    return made


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("part", ["data_s", "forward_s", "backward_s"])
def test_a_slow_rank_is_named_with_the_part_that_is_slow(ranks, part):
    (slow,) = find_slow_ranks(steps_of(ranks, noise=0.1, r1={part: 0.05}), [4] * ranks)
    assert (slow.rank, slow.slowest) == (1, 20)
    assert list(slow.causes) == [part]
    assert slow.behind_s == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0, 10.0])
def test_noise_names_nobody(ranks, noise):
    assert find_slow_ranks(steps_of(ranks, count=50, noise=noise), [4] * ranks) == []


def test_nobody_is_named_for_a_few_steps_or_now_and_then():
    slow = {"backward_s": 0.2}
    assert find_slow_ranks(steps_of(4, FEWEST - 1, r1=slow), [4] * 4) == []
    assert find_slow_ranks([*steps_of(4, 10, r1=slow), *steps_of(4, 10)], [4] * 4) == []
    assert find_slow_ranks([], [4] * 4) == []


def test_a_rank_with_more_samples_may_take_as_much_longer():
    steps = [(StepTimes(0.0, 0.05, 0.10, 0.0), StepTimes(0.0, 0.04, 0.08, 0.03))] * 20
    assert find_slow_ranks(steps, [5, 4]) == []
    assert [each.rank for each in find_slow_ranks(steps, [4, 4])] == [0]
    even = [(USUAL, USUAL)] * 20
    assert find_slow_ranks(even, [5, 4]) == []


def test_a_slow_node_is_named_rank_by_rank_the_slowest_first():
    steps = steps_of(8, r6={"data_s": 0.05}, r7={"data_s": 0.03, "backward_s": 0.1})
    found = find_slow_ranks(steps, [4] * 8)
    assert [each.rank for each in found] == [7, 6]
    assert [list(each.causes) for each in found] == [["backward_s"], ["data_s"]]
    rows = [rank_row(rank, host=f"n{rank // 4}") for rank in range(8)]
    assert verdict(found, rows, 20) == (
        "rank 7 (n1) was the slowest in 20 of 20 measured steps, 130.0 ms behind the median: "
        "its backward pass takes 160.0 ms, the median 60.0 ms; "
        "rank 6 (n1) was the slowest in 0 of 20 measured steps, 50.0 ms behind the median: "
        "it waits 52.0 ms for data, the median 2.0 ms"
    )


def test_the_state_of_its_device_is_told_with_a_slow_rank():
    found = find_slow_ranks(steps_of(2, r1={"forward_s": 0.03, "backward_s": 0.06}), [4, 4])
    hot = rank_row(1, throttle=["heat"], memory_used=97, memory_total=100)
    assert verdict(found, [rank_row(0), hot], 20).endswith(
        "its backward pass takes 120.0 ms, the median 60.0 ms, "
        "its forward pass takes 60.0 ms, the median 30.0 ms, "
        "its clocks are reduced (heat), its memory is 97.0 % full"
    )
    assert verdict([], [rank_row(0), hot], 20) == ""


def test_of_many_slow_ranks_three_are_told():
    slow = {f"r{rank}": {"data_s": 0.1} for rank in range(5)}
    found = find_slow_ranks(steps_of(16, **slow), [4] * 16)
    assert len(found) == 5
    assert verdict(found, [rank_row(rank, host="n") for rank in range(16)], 20).endswith("; 2 more are slow")


def test_medians_are_by_rank_and_part():
    steps = [(StepTimes(n, 1, 2, 3), StepTimes(5, n, 6, 7)) for n in (1, 2, 9)]
    assert median_times(steps) == [StepTimes(2, 1, 2, 3), StepTimes(5, 2, 6, 7)]
