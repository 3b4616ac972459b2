"""The process that feeds the trackers of a run from its journal.

Each tracker has a thread: one that waits for a server, or fails, delays no other. The process ends soon after
that of the run, however that one ended. What a tracker has not got by then stays in the journal, and a resume
or `mptui sync` sends it.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from mptui.events import Event
from mptui.registry.tracker import Kept, Tracker
from mptui.registry.trackers import TrackerSpec, chosen_trackers
from mptui.regular import open_regular
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.store.journal import parsed
from mptui.runs.trackers.tracker_state import TrackerState, feeding_lock
from mptui.runs.view.events.event_registry import EVENTS

POLL_S = 3.0
"""Seconds between two looks at the journal."""
SLOW_S = 60.0
"""Seconds in one call of a tracker after which it is reported, and after which `mptui sync` gives it up."""
END_S = 10.0
"""Seconds for what is missing, once the run has ended."""

FOLLOW, ONCE = "follow", "once"
"""Feed until the run ends; feed what is there."""

_WATCH_S = 0.5
_BATCH = 500
_NICE = 10

Report = Callable[[str, str, str], None]
"""Receives a kind (done, missing, failed, slow, busy), the tracker, and a message."""


def scalars_of(event: Event) -> dict[str, float]:
    """Return the scalars of an event by their names in trackers; empty if it has none."""
    return {name: value for name, value in EVENTS[event.kind].scalars(event) if value is not None}


class Feed(threading.Thread):
    """Feeds one tracker.

    Args:
        name: The tracker's name.
        spec: The tracker.
        run: The run directory.
        config: The configuration of the run.
        state: Where the tracker has got to.
        ending: Set when the journal grows no more.
        report: Receives how it ends.

    Attributes:
        moved: When a call of the tracker last returned, by `time.monotonic`.
    """

    def __init__(
        self,
        name: str,
        spec: TrackerSpec,
        run: Path,
        config: Mapping[str, Any],
        state: TrackerState,
        ending: threading.Event,
        report: Report,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._spec, self._run, self._config, self._state = spec, run, config, state
        self._ending, self._report = ending, report
        self._rows = 0
        self.moved = time.monotonic()

    def run(self) -> None:
        """Feed the tracker until the end of the journal, and report how it went."""
        try:
            self._feed()
        except ImportError as error:
            if error.name is not None and error.name.partition(".")[0] == self._spec.package:
                self._report("missing", self.name, f"{self.name} is not installed")
            else:
                self._fail(error)
        except BaseException as error:  # noqa: BLE001 - another project's code; it ends only this thread
            self._fail(error)
        else:
            self._report("done", self.name, str(self._rows))

    def _fail(self, error: BaseException) -> None:
        traceback.print_exception(error)  # into trackers.log
        first = str(error).strip().partition("\n")[0]
        self._report("failed", self.name, f"{self.name}: {first or type(error).__name__}")

    def _feed(self) -> None:
        kept = self._state.of(self.name)
        tracker = self._spec.open(self._run, self._config, kept)
        while True:
            ended = self._ending.is_set()  # before reading, which then finds all
            self._feed_new(tracker, kept)
            if ended:
                break
            self._ending.wait(POLL_S)
        self._store(kept, tracker.close())

    def _feed_new(self, tracker: Tracker, kept: Kept) -> None:
        size = (self._run / JOURNAL).stat().st_size
        kept["position"] = min(kept["position"], size)  # it is shorter after a power failure
        events = read_from(self._run, kept["position"])
        while batch := list(islice(events, _BATCH)):
            before = self._rows
            for position, event in batch:
                kept["position"] = position
                if event is not None:
                    scalars = scalars_of(event)
                    tracker.log(event, scalars)
                    self._rows += bool(scalars)
                    self.moved = time.monotonic()
            if self._rows > before:
                self._store(kept, tracker.flush())
        self.moved = time.monotonic()

    def _store(self, kept: Kept, more: Kept | None) -> None:
        if more is not None:
            kept.update(more)
            self._state.store(self.name, kept)


def read_from(run: Path, position: int) -> Iterator[tuple[int, Event | None]]:
    """Yield the events after a byte of the journal, each with the byte after it; None for an invalid line.

    Raises:
        OSError: The journal can't be read.
    """
    with os.fdopen(open_regular(run / JOURNAL), "rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                return
            position += len(line)
            yield position, parsed(line)


def main() -> int:
    """Feed the trackers of a run; the arguments are its directory, its process, and FOLLOW or ONCE.

    The first line of standard input is the configuration; a second one, or its end, is that of the run. Each
    line on standard output is a report.
    """
    run, parent, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    report = _reporter(os.dup(1))
    os.dup2(2, 1)  # what libraries print is for trackers.log
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _ignore)  # a signal to all processes of a job: the run ends first
    if how == FOLLOW:
        os.nice(_NICE)
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
        config = json.loads(stdin.readline())
    end = _RunEnd(parent)
    while True:
        with feeding_lock(run) as alone:
            if alone:
                _feed_all(run, config, end, report, how)
        if how == ONCE or end.has_come():
            report("busy", "", "another process sends what is missing")
            return 0


def _ignore(*_: object) -> None:
    """Do nothing; unlike `SIG_IGN`, only in this process and not in those that a library starts."""


def _reporter(file: int) -> Report:
    lock = threading.Lock()

    def report(kind: str, tracker: str, message: str) -> None:
        line = json.dumps({"kind": kind, "tracker": tracker, "message": message}) + "\n"
        with lock, contextlib.suppress(OSError):
            os.write(file, line.encode())

    return report


class _RunEnd:
    """The end of the run: its process says so on standard input, or is gone."""

    def __init__(self, parent: int) -> None:
        self._parent, self._told = parent, False
        self._gone_since: float | None = None

    def has_come(self) -> bool:
        """Wait a moment for the end; whether it has come."""
        if not self._told and not self._is_gone():
            self._told = bool(select.select([0], [], [], _WATCH_S)[0])
        return self._told or self._is_gone()

    def is_too_long_ago(self) -> bool:
        """Whether nobody is left to limit the time that this process takes."""
        return self._is_gone() and time.monotonic() > (self._gone_since or 0.0) + END_S

    def _is_gone(self) -> bool:
        if self._gone_since is None and os.getppid() != self._parent:
            self._gone_since = time.monotonic()
        return self._gone_since is not None


def _feed_all(run: Path, config: Mapping[str, Any], end: _RunEnd, report: Report, how: str) -> NoReturn:
    """Feed all trackers, and end this process: threads that wait for a server never end by themselves."""
    state, ending = TrackerState(run), threading.Event()
    if how == ONCE:
        ending.set()
    chosen = chosen_trackers(config["logging"])
    feeds = [Feed(name, spec, run, config, state, ending, report) for name, spec in chosen.items()]
    for feed in feeds:
        feed.start()
    slow: set[str] = set()
    while left := [feed for feed in feeds if feed.is_alive()]:
        if ending.is_set():
            left[0].join(_WATCH_S)
        elif end.has_come():
            ending.set()
        for feed in left:
            if time.monotonic() - feed.moved > SLOW_S and feed.name not in slow:
                slow.add(feed.name)
                report("slow", feed.name, f"{feed.name} has not answered for {SLOW_S:.0f} s")
        if end.is_too_long_ago() or (how == ONCE and slow >= {feed.name for feed in left}):
            os.killpg(0, signal.SIGKILL)  # with the processes of the libraries
    os._exit(0)
