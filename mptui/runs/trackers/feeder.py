"""The process that feeds the trackers of a run from its journal: what was sent, and what is sent again."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from mptui.config.schema import RunConfig
from mptui.errors import ConfigError, DiskError, RunDirectoryError, TrackerError
from mptui.events import Event
from mptui.io.files import open_regular, replace_file
from mptui.processes.start import exit_code_name, start
from mptui.registry.names import Kept, Tracker
from mptui.registry.trackers import TrackerSpec, chosen_trackers
from mptui.runs.store.directory import read_json
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.store.journal import parsed
from mptui.runs.view.specs import EVENTS
from mptui.text import clean, shell_word

# Starts the process that feeds the trackers of a run, and ends it with the run
# -----------------------------------------------------------------------------

LOG = "trackers.log"
"""File in the run directory with what the libraries of the trackers print."""
FEEDER = "mptui.runs.trackers.feeder:main"
"""What the process calls."""

_REPORT_BYTES = 1 << 16

Warn = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class TrackerReport:
    """What the process says of a tracker.

    Attributes:
        kind: done, missing (its package), failed, slow, or busy: another process feeds the trackers.
        tracker: Its name; "" for all.
        message: What has happened; for done, the number of events with scalars that were sent.
    """

    kind: str
    tracker: str
    message: str


class TrackerProcess:
    """A process that feeds the trackers of a run.

    Args:
        run: The run directory.
        config: Its configuration.

    Attributes:
        left: The trackers that have not got all yet.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, run: Path, config: RunConfig) -> None:
        document = config.model_dump(mode="json")
        self.left = set(chosen_trackers(document["logging"]))
        self._rest = b""
        log = open_regular(run / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "bufsize": 0}
            self._process = start(FEEDER, str(run.absolute()), str(os.getpid()), **streams)
        finally:
            os.close(log)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        with contextlib.suppress(OSError):  # it has ended
            self._stdin.write(json.dumps(document).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` has it; None while it runs."""
        return self._process.poll()

    def reports(self) -> list[TrackerReport]:
        """Return the new reports; never waits."""
        with contextlib.suppress(BlockingIOError, ValueError):  # no data; closed by another thread
            while data := os.read(self._stdout.fileno(), _REPORT_BYTES):
                self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        found = [
            TrackerReport(**{key: clean(text) for key, text in json.loads(line).items()}) for line in lines
        ]
        self.left -= {report.tracker for report in found if report.kind == "done"}
        return found

    def tell_end(self) -> None:
        """Say that the journal grows no more; the process ends once the trackers have all of it."""
        with contextlib.suppress(OSError, ValueError):  # it has ended; it has been told
            self._stdin.write(b"\n")  # a fork of this process may hold the stream open
        with contextlib.suppress(OSError):
            self._stdin.close()

    def end(self, wait_s: float) -> None:
        """Say that the journal grows no more, wait up to `wait_s` seconds, then kill what has not ended."""
        self.tell_end()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)  # with the processes of the libraries
            self._process.wait()
        self.reports()
        self._stdout.close()


class RunTrackers:
    """The trackers of a run that trains in this process; no method raises, and none but `finish` waits.

    Args:
        run: The run directory.
        warn: Called with a code and a message for what goes wrong.

    Attributes:
        unsent: Once the run has ended, the trackers that have not got all.
    """

    def __init__(self, run: Path, warn: Warn) -> None:
        self._run = run
        self._warn = warn
        self._process: TrackerProcess | None = None
        self._later = f"what is missing is sent later: mptui sync {shell_word(run)}"
        self._is_told = False
        self.unsent: list[str] = []

    def start(self, config: RunConfig) -> None:
        """Start to feed the trackers that a configuration asks for."""
        if not chosen_trackers(config.logging.model_dump()):
            return
        try:
            self._process = TrackerProcess(self._run, config)
        except OSError as error:
            self._warn("tracker_failed", f"no tracker gets anything: {error}; {self._later}")

    def beat(self) -> None:
        """Warn of what has gone wrong since the last call."""
        process = self._process
        if process is None:
            return
        for report in process.reports():
            if report.kind != "done":
                self._warn(f"tracker_{report.kind}", f"{with_hint(report)}; {self._later}")
        if process.exit_code and not self._is_told:
            self._is_told = True
            words = f"the process of the trackers ended ({exit_code_name(process.exit_code)}), see {LOG}"
            self._warn("tracker_failed", f"{words}; {self._later}")

    def finish(self) -> None:
        """Give the trackers at most `END_S` seconds for the end of the journal."""
        process, self._process = self._process, None
        if process is not None:
            process.end(END_S)
            self.unsent = sorted(process.left)

    def kill(self) -> None:
        """End the process at once: the run belongs to another one now."""
        process, self._process = self._process, None
        if process is not None:
            process.end(0)


def install_hint(tracker: str) -> str:
    """Return the command that installs the package of a tracker."""
    return f"pip install 'mptui[{tracker}]'"


def with_hint(report: TrackerReport) -> str:
    """Return the message of a report, with what to do."""
    return f"{report.message}: {install_hint(report.tracker)}" if report.kind == "missing" else report.message


# Sends what the trackers of a run have not got, once it has ended: the work of `mptui sync`
# ------------------------------------------------------------------------------------------

_POLL_S = 0.05


def send_missing(run: Path, config: RunConfig) -> dict[str, int]:
    """Send what each tracker has not got; the others get theirs if one fails.

    Returns:
        The number of events with scalars that were sent, by tracker.

    Raises:
        ConfigError: No tracker is chosen, or the package of one is missing.
        RunDirectoryError: Another process feeds the trackers.
        DiskError: The run directory can't be written.
        TrackerError: A tracker failed, or did not answer.
    """
    if not chosen_trackers(config.logging.model_dump()):
        raise ConfigError(
            f"{run}: no tracker is chosen", hint="""name one: --set 'logging.trackers=["csv"]'"""
        )
    try:
        process = TrackerProcess(run, config)
    except OSError as error:
        raise DiskError(f"{run}: {error.strerror or error}", hint="make its folder writable") from error
    process.tell_end()
    reports: list[TrackerReport] = []
    try:
        while process.exit_code is None:
            time.sleep(_POLL_S)
            reports += process.reports()
        reports += process.reports()
    finally:
        process.end(0)
    _raise_for(run, reports, process.left)
    return {report.tracker: int(report.message) for report in sorted(reports, key=lambda each: each.tracker)}


def _raise_for(run: Path, reports: list[TrackerReport], left: set[str]) -> None:
    if any(report.kind == "busy" for report in reports):
        raise RunDirectoryError(
            f"{run}: another process feeds its trackers",
            hint="wait until the run, or that process, has ended",
        )
    told = {report.tracker: report for report in reports if report.kind != "done"}
    if not left:
        return
    lines = [with_hint(told[name]) if name in told else f"{name}: its process ended" for name in sorted(left)]
    missing = [name for name in sorted(left) if name in told and told[name].kind == "missing"]
    if missing:
        raise ConfigError("\n".join(lines), hint=install_hint(",".join(missing)))
    raise TrackerError(
        "\n".join(lines), hint=f"see {run / LOG}; then try again: mptui sync {shell_word(run)}"
    )


# trackers.json: how far each tracker has got in the journal of a run, and what it needs to go on there
# -----------------------------------------------------------------------------------------------------

NAME = "trackers.json"
LOCK = "trackers.lock"
VERSION = 2

_LONGEST_LINE = 4096
_ID = re.compile(r"[A-Za-z0-9._+-]{1,128}")


class TrackerState:
    """The state of all trackers of a run. Any thread may call its methods.

    Args:
        run: The run directory; this process holds its `feeding_lock`.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / NAME
        self._lock = threading.Lock()
        trackers = read_json(self._path).get("trackers")
        self._trackers: dict[str, Kept] = {
            name: kept
            for name, kept in (trackers.items() if isinstance(trackers, dict) else ())
            if isinstance(kept, dict)
        }

    def of(self, name: str) -> Kept:
        """Return a copy of what a tracker has kept, with a valid `position` and `id`."""
        kept = dict(self._trackers.get(name, {}))
        position, known = kept.get("position"), kept.get("id")
        kept["position"] = position if isinstance(position, int) and position > 0 else 0
        kept["id"] = known if isinstance(known, str) and _ID.fullmatch(known) else token_of(self._path.parent)
        return kept

    def store(self, name: str, kept: Kept) -> None:
        """Replace what a tracker has kept.

        Raises:
            OSError: The disk is full or not writable.
        """
        with self._lock:
            self._trackers[name] = dict(kept)
            document = {"version": VERSION, "trackers": self._trackers}
            replace_file(self._path, json.dumps(document).encode())


def token_of(run: Path) -> str:
    """Return an ID for the run at a tracker: its name, and eight digits of the first line of its journal.

    The line has the time at which the run began, so that it is the same after each resume, and runs of the
    same name have different ones.

    Raises:
        OSError: The journal can't be read.
    """
    with os.fdopen(open_regular(run / JOURNAL), "rb") as file:
        first = file.readline(_LONGEST_LINE)
    name = run.resolve().name
    return f"{name[:64]}-{hashlib.sha256(name.encode() + first).hexdigest()[:8]}"


@contextlib.contextmanager
def feeding_lock(run: Path) -> Iterator[bool]:
    """Let one process at a time feed the trackers of a run; yields whether it is this one.

    The kernel releases the lock when the process ends, however it ends.

    Raises:
        OSError: The run directory can't be written.
    """
    file = open_regular(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True
    finally:
        os.close(file)


# The process that feeds the trackers of a run from its journal
# -------------------------------------------------------------
# Each tracker has a thread: one that waits for a server, or fails, delays no other. The process ends soon
# after that of the run, however that one ended. What a tracker has not got by then stays in the journal,
# and a resume or `mptui sync` sends it.

POLL_S = 3.0
"""Seconds between two looks at the journal."""
SLOW_S = 60.0
"""Seconds in one call of a tracker after which it is reported; once the run has ended, it is given up."""
END_S = 10.0
"""Seconds for what is missing, once the run has ended."""

_WATCH_S = 0.5
_BATCH = 500
_NICE = 10

Report = Callable[[str, str, str], None]
"""Receives a kind (done, missing, failed, slow, busy), the tracker, and a message."""


def scalars_of(event: Event) -> dict[str, float]:
    """Return the scalars of an event by their names in trackers; empty if it has none."""
    return {name: value for name, value in EVENTS[event.kind].scalars(event) if value is not None}


class Feeder(threading.Thread):
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
        *,
        state: TrackerState,
        ending: threading.Event,
        report: Report,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._spec = spec
        self._run = run
        self._config = config
        self._state = state
        self._ending = ending
        self._report = report
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
    """Feed the trackers of a run; the arguments are its directory and the process that asks for it.

    The first line of standard input is the configuration; a second one, or its end, is that of the run. Each
    line on standard output is a report.
    """
    run, parent = Path(sys.argv[1]), int(sys.argv[2])
    report = _reporter(os.dup(1))
    os.dup2(2, 1)  # what libraries print is for trackers.log
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _ignore)  # a signal to all processes of a job: the run ends first
    os.nice(_NICE)
    with os.fdopen(0, "rb", buffering=0, closefd=False) as stdin:
        config = json.loads(stdin.readline())
    end = _RunEnd(parent)
    while True:
        with feeding_lock(run) as alone:
            if alone:
                _feed_all(run, config, end, report)
        if end.has_come():
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
        self._parent = parent
        self._told = False
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


def _feed_all(run: Path, config: Mapping[str, Any], end: _RunEnd, report: Report) -> NoReturn:
    """Feed all trackers, and end this process: threads that wait for a server never end by themselves."""
    state, ending = TrackerState(run), threading.Event()
    chosen = chosen_trackers(config["logging"])
    feeds = [
        Feeder(name, spec, run, config, state=state, ending=ending, report=report)
        for name, spec in chosen.items()
    ]
    for feed in feeds:
        feed.start()
    told: set[Feeder] = set()
    while left := [feed for feed in feeds if feed.is_alive()]:
        if ending.is_set():
            left[0].join(_WATCH_S)
        elif end.has_come():
            ending.set()
        slow = {feed for feed in left if time.monotonic() - feed.moved > SLOW_S}
        for feed in slow - told:
            report("slow", feed.name, f"{feed.name} has not answered for {SLOW_S:.0f} s")
        told |= slow
        has_only_slow_ones = ending.is_set() and len(slow) == len(left)
        if has_only_slow_ones or end.is_too_long_ago():
            os.killpg(0, signal.SIGKILL)  # with the processes of the libraries
    os._exit(0)
