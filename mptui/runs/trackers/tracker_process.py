"""Starts the process that feeds the trackers of a run, and ends it with the run."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mptui.config.schema import RunConfig
from mptui.processes.child import exit_code_name, start
from mptui.registry.trackers import chosen_trackers
from mptui.regular import open_regular
from mptui.runs.trackers.feeder import END_S, FOLLOW
from mptui.text import clean, shell_word

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
        how: FOLLOW or ONCE of `mptui.runs.trackers.feeder`.

    Attributes:
        left: The trackers that have not got all yet.

    Raises:
        OSError: It can't be started.
    """

    def __init__(self, run: Path, config: RunConfig, how: str) -> None:
        document = config.model_dump(mode="json")
        self.left = set(chosen_trackers(document["logging"]))
        self._rest = b""
        log = open_regular(run / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "bufsize": 0}
            self._process = start(FEEDER, str(run.absolute()), str(os.getpid()), how, **streams)
        finally:
            os.close(log)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
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

    def end(self, wait_s: float) -> None:
        """Say that the journal grows no more, wait up to `wait_s` seconds, then kill what has not ended."""
        with contextlib.suppress(OSError):
            self._stdin.write(b"\n")
        with contextlib.suppress(OSError):
            self._stdin.close()
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
        self._run, self._warn = run, warn
        self._process: TrackerProcess | None = None
        self._later = f"what is missing is sent later: mptui sync {shell_word(run)}"
        self._is_told = False
        self.unsent: list[str] = []

    def start(self, config: RunConfig) -> None:
        """Start to feed the trackers that a configuration asks for."""
        if not chosen_trackers(config.logging.model_dump()):
            return
        try:
            self._process = TrackerProcess(self._run, config, FOLLOW)
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
