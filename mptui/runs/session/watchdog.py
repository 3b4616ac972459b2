"""A watchdog: writes the stacks of all threads to `stacks.txt` when a run makes no progress.

It checks events and the position of the trainer once per second, in the heartbeat thread, at no cost to the
training loop.
"""

import faulthandler
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mptui.engine.context import TrainContext
from mptui.events import Event, PhaseChanged, Step
from mptui.processes.awake_clock import AwakeClock
from mptui.regular import open_regular
from mptui.runs.view.events.event_registry import EVENTS
from mptui.text import clean_name

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
        self._path, self._limit_s, self._warn = run / NAME, limit_s, warn
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
        still_s = self._clock() - self._since
        if self._limit_s() and not self._reported and self._phase not in OFF and still_s > self._allowed_s():
            self._reported = True
            self._dump(still_s)

    def _allowed_s(self) -> float:
        return max(self._limit_s() * PATIENCE.get(self._phase, 1), USUAL_STEPS * self._usual_s)

    def _progressed(self) -> None:
        self._since, self._reported = self._clock(), False

    def _dump(self, still_s: float) -> None:
        what = f"no progress for {still_s:.0f} s ({self._phase}, after step {self._step:,})"
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
