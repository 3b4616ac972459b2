"""Signs of life of the ranks, by which those are named that others wait for, and slow ones."""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from statistics import median, median_low
from typing import NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mptui import text as fmt
from mptui.errors import RankError
from mptui.events import DeviceSample, RankRow, from_record, to_record
from mptui.processes.waiting import AwakeClock
from mptui.text import clean

# Signs of life of the ranks, by which those are named that others wait for, and the state of their devices
# ---------------------------------------------------------------------------------------------------------
# Each rank writes to the store of the rendezvous, from a thread of its own: a rank that computes, waits or
# reads still beats, one that is suspended does not. Another thread listens for silence, since the store is
# in the process of rank 0: where that is suspended, an answer of the store never comes.

BEAT_S = 2.0
"""Seconds between two beats."""

SILENT_S = 20.0
"""Seconds without a beat after which a rank is named."""

LOST_S = 120.0
"""Seconds without a beat after which the others end, so that a launcher starts all again. Some code holds the
interpreter for a minute."""

_GAP_S = 5 * BEAT_S
"""Seconds between two beats of this rank beyond which it was suspended itself."""

_ANSWER = timedelta(seconds=10)


@dataclass(slots=True)
class _Sign:
    """The last beat of a rank: the collectives it has come to, its process and device; when it was heard."""

    beat: bytes
    arrived: int
    process: int
    host: str
    device: DeviceSample | None
    since: float
    lives: bool = False
    """Whether it has beaten since this rank listens: the store keeps the beats of an earlier start."""
    told: bool = False

    def name(self, rank: int) -> str:
        """Name the rank, its process and its host."""
        return f"rank {rank} (process {self.process} on {self.host})"

    def silence(self, rank: int, now: float) -> str:
        """Say for how long there has been no beat."""
        return f"{self.name(rank)} has given no sign of life for {now - self.since:.0f} s"


class Beats:
    """Beats for this rank, and listens to the others: rank 0 to all, all to rank 0.

    Args:
        rank: Number of this rank.
        world_size: Number of ranks.
        arrived: Returns how many collectives this rank has come to.
        environ: Has the address of the store, MASTER_ADDR and MASTER_PORT.

    Attributes:
        on_silent: Called in a thread of this object with a sentence about a rank that is silent.
        device: Returns the state of this rank's device, which the others hear.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        arrived: Callable[[], int],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._rank = rank
        self._arrived = arrived
        self.on_silent: Callable[[str], None] = _print
        self.device: Callable[[], DeviceSample | None] = lambda: None
        self._others = [r for r in range(world_size) if r != rank] if rank == 0 else [0]
        self._signs: dict[int, _Sign] = {}
        self._address = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        # torchrun keeps a store over its restarts
        self._word = f"mptui/word/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._clock = AwakeClock(_GAP_S)
        self._closing = threading.Event()
        works = {"mptui-beats": self._work, "mptui-silence": self._watch}
        self._threads = [threading.Thread(target=w, name=name, daemon=True) for name, w in works.items()]
        for thread in self._threads:
            thread.start()

    def late(self) -> list[str]:
        """Return a sentence for each rank that this one waits for."""
        own, now = self._arrived(), self._clock()
        told = []
        for rank, sign in sorted(self._signs.items()):
            if now - sign.since > SILENT_S:
                told.append(sign.silence(rank, now))
            elif sign.arrived < own:
                told.append(f"{sign.name(rank)} has not arrived")
        return told

    def last_beats(self) -> dict[int, tuple[str, float, DeviceSample | None]]:
        """Return the host, the seconds since the last beat, and the device of each rank that has beaten."""
        now = self._clock()
        return {rank: (sign.host, now - sign.since, sign.device) for rank, sign in self._signs.copy().items()}

    def post_failure(self, words: str) -> None:
        """Leave words for rank 0 that it reads when it finds that this rank has ended."""
        with suppress(RuntimeError):
            self._store().set(self._word, words)

    def posted_failure(self) -> str | None:
        """Return the words that a rank has left in this start of the group."""
        with suppress(RuntimeError):
            store = self._store()
            if store.check([self._word]):
                return store.get(self._word).decode()
        return None

    def close(self) -> None:
        """Stop beating."""
        self._closing.set()
        for thread in self._threads:
            thread.join(BEAT_S)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the store has gone with rank 0, whose silence tells
            store = self._store()
            number = 0
            while not self._closing.is_set():
                number += 1
                store.set(_key(self._rank), self._beat(number))
                self._listen(store)
                self._closing.wait(BEAT_S)

    def _store(self) -> TCPStore:
        return TCPStore(*self._address, is_master=False, timeout=_ANSWER, wait_for_workers=False)

    def _beat(self, number: int) -> str:
        sample = self.device()
        device = None if sample is None else to_record(sample)
        return json.dumps([number, self._arrived(), os.getpid(), socket.gethostname(), device])

    def _listen(self, store: TCPStore) -> None:
        now = self._clock()
        for rank in self._others:
            if not store.check([_key(rank)]):
                continue
            beat, before = store.get(_key(rank)), self._signs.get(rank)
            if before is None or before.beat != beat:
                _, arrived, process, host, device = json.loads(beat)
                sample = None if device is None else from_record(device, DeviceSample)
                lives = before is not None
                self._signs[rank] = _Sign(beat, arrived, process, clean(host), sample, now, lives=lives)

    def _watch(self) -> None:
        while not self._closing.wait(BEAT_S):
            now = self._clock()
            for rank, sign in self._signs.copy().items():
                if sign.lives and now - sign.since > (LOST_S if sign.told else SILENT_S):
                    self.on_silent(sign.silence(rank, now))
                    if sign.told:
                        os._exit(RankError.exit_code)  # the other threads wait for that rank
                    sign.told = True


def _print(words: str) -> None:
    print(words, file=sys.stderr, flush=True)  # noqa: T201 - the log of this rank


def _key(rank: int) -> str:
    return f"mptui/beat/{rank}"


# Who is slower than the other ranks, how often, and why: computed from the measured steps of all
# -----------------------------------------------------------------------------------------------
# DDP makes the backward passes of all ranks end together, as each waits for the gradients of the slowest.
# What counts is therefore a rank's own time: waiting for its data, its forward pass, and its backward pass
# until it hands over its last bucket of gradients.

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
    full = row.memory_used / row.memory_total if row.memory_used and row.memory_total else 0.0
    if full >= _FULL:
        reasons.append(f"its memory is {fmt.percent(full)} full")
    often = f"was the slowest in {slow.slowest} of {steps} measured steps"
    late = f"{fmt.milliseconds(slow.behind_s)} behind the median"
    return f"rank {slow.rank}{where} {often}, {late}: {', '.join(reasons)}"
