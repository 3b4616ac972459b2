"""One thread a second: heartbeat, samples, reports of ranks, and stacks where a run makes no progress."""

import contextlib
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mptui.config.schema import RunConfig
from mptui.engine.context import TrainContext
from mptui.engine.ranks.beats import find_slow_ranks, median_times, times_slowest, verdict
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.sync import shares_of
from mptui.events import (
    Advice,
    DeviceSample,
    Event,
    Paused,
    PhaseChanged,
    RankRow,
    RanksSampled,
    Resumed,
    Step,
    Suspended,
)
from mptui.hardware.sampler import DeviceSampler
from mptui.io.files import open_regular
from mptui.processes.waiting import AwakeClock
from mptui.runs.view.specs import EVENTS
from mptui.text import clean_name

# A watchdog: writes the stacks of all threads to `stacks.txt` when a run makes no progress
# -----------------------------------------------------------------------------------------
# It checks events and the position of the trainer once per second, in the heartbeat thread, at no cost to
# the training loop.

NAME = "stacks.txt"

USUAL_STEPS = 20
"""Number of usual step times without progress that are allowed for a run with slow steps."""

PATIENCE = {"starting": 4, "preparing": 4, "warming_up": 4, "compiling": 8, "saving": 4}
"""Phases without progress events -> their multiple of the usual limit."""

_GAP_S = 10.0
"""Seconds between two checks beyond which this process was suspended: they are no hang of the run."""

OFF = frozenset({"paused", "finished"})
_NAMES_SHOWN = 5


class Watchdog:
    """Watches one run.

    Args:
        run: The run's directory.
        limit_s: Returns the seconds without progress that count as a hang, by the settings in force; 0:
            never.
        warn: Called with (code, message), once per hang.

    Attributes:
        reading: Returns the samples that are being read, for the message.
        late: Returns a sentence for each rank that this one waits for.
    """

    def __init__(
        self,
        run: Path,
        limit_s: Callable[[], float],
        warn: Callable[[str, str], None],
    ) -> None:
        self._path = run / NAME
        self._limit_s = limit_s
        self._warn = warn
        self.reading: Callable[[], Sequence[str]] = tuple
        self.late: Callable[[], Sequence[str]] = tuple
        self._phase = "starting"
        self._step = 0
        self._usual_s = 0.0
        self._position: object = None
        self._clock = AwakeClock(_GAP_S, time.monotonic)
        self._since = self._clock()
        self._reported = False

    def follow(self, context: TrainContext) -> None:
        """Watch a trainer, and the ranks that it waits for."""
        self.reading = lambda: context.job.train_loader.reading
        self.late = context.ranks.late
        if context.ranks.beats is not None:
            context.ranks.beats.on_silent = partial(self._warn, "rank_silent")

    def handle(self, event: Event) -> None:
        """Handle an event, which counts as progress for most kinds."""
        if not EVENTS[event.kind].is_progress:
            return
        if isinstance(event, PhaseChanged):
            self._phase = event.phase
        elif isinstance(event, Step) and event.step_time_s is not None:
            self._usual_s = max(event.step_time_s, 0.9 * self._usual_s)
        self._step = event.step
        self._progressed()

    def check(self, position: object) -> None:
        """Check whether the run hangs.

        Args:
            position: A value that changes whenever a step has ended.
        """
        if position != self._position:
            self._position = position
            self._progressed()
        seconds_idle = self._clock() - self._since
        is_watched = not self._reported and self._limit_s() > 0 and self._phase not in OFF
        if is_watched and seconds_idle > self._allowed_s():
            self._reported = True
            self._dump(seconds_idle)

    def _allowed_s(self) -> float:
        return max(self._limit_s() * PATIENCE.get(self._phase, 1), USUAL_STEPS * self._usual_s)

    def _progressed(self) -> None:
        self._since = self._clock()
        self._reported = False

    def _dump(self, seconds_idle: float) -> None:
        what = f"no progress for {seconds_idle:.0f} s ({self._phase}, after step {self._step:,})"
        what = "; ".join([what, *self.late()])
        names = self.reading()
        files = ", ".join(clean_name(name, 300) for name in names[:_NAMES_SHOWN])
        if files:
            what += f"; reading: {files}{' …' if len(names) > _NAMES_SHOWN else ''}"
        try:
            file = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
            try:
                os.write(file, f"\n{time.strftime('%F %T')} {what}\n".encode())
                faulthandler.dump_traceback(file, all_threads=True)
            finally:
                os.close(file)
            what += f"; the stacks of all threads are in {NAME}"
        except OSError as error:
            what += f"; {NAME} can't be written: {error.strerror}"
        self._warn("hang", what)


# A thread that calls a function once per second, independently of the worker thread
# ----------------------------------------------------------------------------------

PULSE_S = 1.0


def _uptime() -> float:
    """Return the seconds of a clock that goes on while the machine sleeps, if the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class RunClock:
    """Counts the seconds that a run has taken: in all its processes, but not while it is paused or suspended.

    Args:
        begun_s: Seconds since this process began with it.

    Attributes:
        before: Seconds of earlier processes.
    """

    def __init__(self, begun_s: float = 0.0) -> None:
        self.before = 0.0
        self._began = _uptime() - begun_s
        self._left_out = 0.0
        self._paused_at: float | None = None

    def handle(self, event: Event) -> None:
        """Stop at a pause, and leave out the time of an absence."""
        if isinstance(event, Paused):
            self._paused_at = _uptime()
        elif isinstance(event, Resumed) and self._paused_at is not None:
            self._left_out += _uptime() - self._paused_at
            self._paused_at = None
        elif isinstance(event, Suspended) and self._paused_at is None:
            self._left_out += event.seconds

    def seconds(self) -> float:
        """Return the seconds until now."""
        return self.before + (self._paused_at or _uptime()) - self._began - self._left_out


class Absence:
    """Tells how long this process did not run, from a thread that waits a second, again and again.

    Its clock goes on while the machine sleeps, where the system has such a clock. Only waits count: whatever
    else takes long, as a disk that hangs, is no absence.
    """

    def __init__(self) -> None:
        self._waits_since: float | None = None

    def start(self) -> None:
        """Take note that a wait of `PULSE_S` begins."""
        self._waits_since = _uptime()

    def stop(self) -> None:
        """Take note that the wait is over."""
        self._waits_since = None

    def take(self) -> float:
        """Return, once, the seconds of an absence that is over; 0.0: there was none."""
        since, now = self._waits_since, _uptime()
        seconds = 0.0 if since is None else now - since - PULSE_S
        if seconds < _GAP_S:
            return 0.0
        self._waits_since = now
        return seconds


@contextlib.contextmanager
def pulse(
    sampler: DeviceSampler, beat: Callable[[DeviceSample | None], bool], absence: Absence
) -> Iterator[None]:
    """Call `beat` once per second within the context, as long as it returns True.

    Args:
        sampler: Samples the device.
        beat: Receives the latest sample, or None if there is no new one.
        absence: Is told of each wait; `beat` ends it.
    """
    sampler.start()
    ending = threading.Event()

    def work() -> None:
        last, going = DeviceSample(name="", time=0.0), True
        while going:
            absence.start()
            if ending.wait(PULSE_S):
                break
            sample = sampler.latest()
            if sample is None or sample.time == last.time:
                going = beat(None)
                continue
            is_same = sample.processes == last.processes  # a journal needs no list twice
            going = beat(replace(sample, processes=None) if is_same else sample)
            last = sample

    thread = threading.Thread(target=work, name="mptui-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        absence.stop()
        sampler.stop()


# Reports of all ranks, which rank 0 writes
# -----------------------------------------

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
        self._ranks = ranks
        self._emit = emit
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
        last_beats = {} if beats is None else beats.last_beats()
        last_beats[self._ranks.rank] = socket.gethostname(), 0.0, self._own
        for rank in range(self._ranks.world_size):
            host, silent_s, sample = last_beats.get(rank, ("", None, None))
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
