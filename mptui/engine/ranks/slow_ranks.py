"""Who is slower than the other ranks, how often, and why: computed from the measured steps of all.

DDP makes the backward passes of all ranks end together, as each waits for the gradients of the slowest. What
counts is therefore a rank's own time: waiting for its data, its forward pass, and its backward pass until it
hands over its last bucket of gradients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low
from typing import NamedTuple

from mptui import format as fmt
from mptui.events import RankRow

KEPT = 50
"""Measured steps in a verdict: half a minute of them."""

FEWEST = 8
"""Measured steps without which nobody is named."""

BEHIND = 0.10
"""Share of a step by which a rank is behind the median if it is slow."""

SURE = 0.75
"""Share of the measured steps in which it has to be. Noise changes sides."""

_PART = 0.25
"""Share of the delay from which a part of the step is a cause of it."""

_FULL = 0.95
"""Share of the memory in use from which it is told."""

_TOLD = 3
"""Largest number of ranks in a verdict."""


class StepTimes(NamedTuple):
    """Seconds of one measured step of one rank.

    `backward_s` ends when its last bucket of gradients is handed over, `wait_s` when the sums of all ranks
    are done.
    """

    data_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    wait_s: float = 0.0

    @property
    def own_s(self) -> float:
        """Seconds that don't depend on other ranks."""
        return self.data_s + self.forward_s + self.backward_s


Step = Sequence[StepTimes]
"""The times of all ranks in one step, in the order of the ranks."""

_CAUSES = {
    "data_s": "it waits {own} for data",
    "forward_s": "its forward pass takes {own}",
    "backward_s": "its backward pass takes {own}",
}


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slower than the others.

    Attributes:
        rank: Its number.
        slowest: Measured steps in which it was the slowest of all.
        behind_s: Median of the seconds by which it is behind the median rank.
        causes: Parts of the step that take longer than on the median rank, the longest first -> seconds on
            this rank and on the median one.
    """

    rank: int
    slowest: int
    behind_s: float
    causes: dict[str, tuple[float, float]]


def times_slowest(steps: Sequence[Step]) -> list[int]:
    """Count for each rank the steps in which it was the slowest."""
    counts = [0] * (len(steps[0]) if steps else 0)
    for step in steps:
        counts[max(range(len(step)), key=lambda rank: step[rank].own_s)] += 1
    return counts


def median_times(steps: Sequence[Step]) -> list[StepTimes]:
    """Return the median of each time of each rank."""
    return [StepTimes(*map(median, zip(*of_rank, strict=True))) for of_rank in zip(*steps, strict=True)]


def find_slow_ranks(steps: Sequence[Step], samples: Sequence[int]) -> list[SlowRank]:
    """Return the ranks that are slower than the median one in nearly all steps, the slowest first.

    Args:
        steps: The measured steps.
        samples: Samples of a batch by rank: one with more may take as much longer.
    """
    if len(steps) < FEWEST or len(samples) < 2:
        return []
    usual, counts = median_low(samples), times_slowest(steps)
    shares = [min(1.0, usual / count) if count else 1.0 for count in samples]
    behind = [_behind(step, shares) for step in steps]
    limits = [BEHIND * max(sum(times) for times in step) for step in steps]
    medians = median_times(steps)
    found = []
    for rank, of_rank in enumerate(zip(*behind, strict=True)):
        late = sum(seconds > limit for seconds, limit in zip(of_rank, limits, strict=True))
        if late >= SURE * len(steps):
            found.append(SlowRank(rank, counts[rank], median(of_rank), _causes(medians, rank)))
    return sorted(found, key=lambda slow: -slow.behind_s)


def _behind(step: Step, shares: Sequence[float]) -> list[float]:
    """Return for each rank by how many seconds it is behind the median one; of two, the faster one."""
    usual = median_low([times.own_s for times in step])
    return [
        times.data_s + (times.forward_s + times.backward_s) * share - usual
        for times, share in zip(step, shares, strict=True)
    ]


def _causes(medians: Step, rank: int) -> dict[str, tuple[float, float]]:
    usual = StepTimes(*map(median_low, zip(*medians, strict=True)))
    more = {part: getattr(medians[rank], part) - getattr(usual, part) for part in _CAUSES}
    least = _PART * sum(max(0.0, seconds) for seconds in more.values())
    return {
        part: (getattr(medians[rank], part), getattr(usual, part))
        for part in sorted(more, key=lambda part: -more[part])
        if more[part] >= least and more[part] > 0
    }


def verdict(slow: Sequence[SlowRank], rows: Sequence[RankRow], steps: int) -> str:
    """Describe the slow ranks in words; empty if there are none.

    Args:
        slow: The result of `find_slow_ranks`.
        rows: The rows of all ranks, in their order.
        steps: Number of measured steps.
    """
    told = [_words(each, rows, steps) for each in slow[:_TOLD]]
    rest = len(slow) - len(told)
    return "; ".join([*told, f"{rest} more are slow"] if rest else told)


def _words(slow: SlowRank, rows: Sequence[RankRow], steps: int) -> str:
    row = rows[slow.rank]
    where = f" ({row.host})" if len({each.host for each in rows}) > 1 else ""
    reasons = [
        f"{_CAUSES[part].format(own=fmt.milliseconds(own))}, the median {fmt.milliseconds(usual)}"
        for part, (own, usual) in slow.causes.items()
    ]
    if row.throttle:
        reasons.append(f"its clocks are reduced ({', '.join(row.throttle)})")
    if row.memory_used and row.memory_total and row.memory_used >= _FULL * row.memory_total:
        reasons.append(f"its memory is {fmt.percent(row.memory_used / row.memory_total)} full")
    often = f"was the slowest in {slow.slowest} of {steps} measured steps"
    late = f"{fmt.milliseconds(slow.behind_s)} behind the median"
    return f"rank {slow.rank}{where} {often}, {late}: {', '.join(reasons)}"
