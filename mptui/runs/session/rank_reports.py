"""Reports of all ranks, which rank 0 writes."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from mptui.config.schema import RunConfig
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.rank_times import shares_of
from mptui.engine.ranks.slow_ranks import find_slow_ranks, median_times, times_slowest, verdict
from mptui.events import Advice, DeviceSample, Event, RankRow, RanksSampled

EVERY_S, RANK_S = 2.0, 0.125
"""Seconds between two reports, and at least so many for each rank: a bound on the size of the journal."""


class RankReports:
    """Emits the state of all ranks at a bounded rate, and once that a rank is slow.

    Args:
        ranks: The ranks, of which this is the first.
        emit: Called with each event.
        every_s: Seconds between two reports; None: as many as suit the number of ranks.
    """

    def __init__(self, ranks: Ranks, emit: Callable[[Event], None], *, every_s: float | None = None) -> None:
        self._ranks, self._emit = ranks, emit
        self._every_s = max(EVERY_S, RANK_S * ranks.world_size) if every_s is None else every_s
        self._reported = time.monotonic()
        self._own: DeviceSample | None = None
        self._told: set[tuple[int, str]] = set()

    def beat(self, sample: DeviceSample | None, step: int, config: RunConfig) -> None:
        """Report if it is due; call it about once per second.

        Args:
            sample: The latest sample of this rank's device, if there is a new one.
            step: Current step of the run.
            config: The settings in force.
        """
        self._own = sample or self._own
        if self._ranks.is_alone or time.monotonic() - self._reported < self._every_s:
            return
        self._reported = time.monotonic()
        steps = self._ranks.steps
        slow = find_slow_ranks(steps, shares_of(config.training.batch_size, self._ranks.world_size))
        sharded = config.memory.shard or config.training.sync_batch_norm
        rows = [replace(row, forward_s=None, backward_s=None) if sharded else row for row in self._rows()]
        words = verdict(slow, rows, len(steps))
        named = [each.rank for each in slow]
        self._emit(
            RanksSampled(step=step, rows=rows, steps=len(steps), verdict=words, slow=named, sharded=sharded)
        )
        news = {(each.rank, next(iter(each.causes), "")) for each in slow} - self._told
        if news:
            self._told |= news
            self._emit(Advice(step=step, code="slow_rank", message=words))

    def _rows(self) -> Iterator[RankRow]:
        steps, beats = self._ranks.steps, self._ranks.beats
        medians, slowest = median_times(steps), times_slowest(steps)
        heard = {} if beats is None else beats.heard()
        heard[self._ranks.rank] = socket.gethostname(), 0.0, self._own
        for rank in range(self._ranks.world_size):
            host, silent_s, sample = heard.get(rank, ("", None, None))
            sample = sample or DeviceSample(name="")
            times = medians[rank] if medians else None
            is_process = sample.utilisation_own is not None
            yield RankRow(
                rank=rank,
                host=host,
                utilisation=sample.utilisation_own if is_process else sample.utilisation,
                memory_used=sample.memory_own if is_process else sample.memory_used,
                memory_total=sample.memory_total,
                temperature_c=sample.temperature_c,
                throttle=sample.throttle,
                data_s=times and round(times.data_s, 6),
                forward_s=times and round(times.forward_s, 6),
                backward_s=times and round(times.backward_s, 6),
                wait_s=times and round(times.wait_s, 6),
                slowest=slowest[rank] if slowest else 0,
                silent_s=None if silent_s is None else round(silent_s, 1),
            )
