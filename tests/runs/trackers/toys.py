"""Trackers of tests in the process that feeds trackers, which imports this module."""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from mptui.config.schema import LoggingConfig, RunConfig
from mptui.registry.trackers import TRACKERS, TrackerSpec
from mptui.runs.trackers import feeder
from mptui.runs.trackers.feeder import RunTrackers
from mptui.runs.trackers.local_files import GrowingFile

CALL = "tests.runs.trackers.toys:main"
PORT = "TOY_PORT"


class Lines:
    """Appends a line for each scalar to a file of its name in the run directory."""

    name = "lines"

    def __init__(self, run, config, kept):
        self._file = GrowingFile(run / f"{self.name}.jsonl", kept)

    def log(self, event, scalars):
        for item in scalars.items():
            self._file.write(json.dumps([event.time, event.step, *item]).encode() + b"\n")

    def flush(self):
        self._file.flush()
        return {"size": self._file.size}

    def close(self):
        return self.flush()


class Blocked(Lines):
    """Waits for an answer of a server before it writes anything."""

    name = "blocked"

    def flush(self):
        with socket.create_connection(("127.0.0.1", int(os.environ[PORT]))) as connection:
            connection.sendall(b"scalars")
            assert connection.recv(1)
        return super().flush()


class Raises(Lines):
    """Fails at the first scalar."""

    name = "raises"

    def log(self, event, scalars):
        if scalars:
            raise ConnectionRefusedError("no server")


class Absent(Lines):
    """Lacks its package."""

    name = "absent"

    def __init__(self, run, config, kept):
        raise ModuleNotFoundError("No module named 'absent'", name="absent")


class Kills(Lines):
    """Ends its process."""

    name = "kills"

    def flush(self):
        os.kill(os.getpid(), signal.SIGKILL)


TOYS = {
    kind.name: TrackerSpec(open=kind, package=kind.name) for kind in (Lines, Blocked, Raises, Absent, Kills)
}


def lines_of(run, name):
    """What a toy has written."""
    with contextlib.suppress(FileNotFoundError):
        return [tuple(json.loads(line)) for line in (run / f"{name}.jsonl").read_text().splitlines()]
    return []


def main():
    """Feed the toys, in steps of a test's patience."""
    TRACKERS.update(TOYS)
    feeder.POLL_S, feeder.END_S, feeder.SLOW_S = 0.05, 0.5, 2.0
    return feeder.main()


def run_with_toys():
    """Be the process of a run that has a blocked tracker: prints the process that feeds it, and waits."""
    TRACKERS.update(TOYS)
    feeder.FEEDER = CALL
    trackers = RunTrackers(Path(sys.argv[1]), lambda *_: None)
    trackers.start(RunConfig(logging=LoggingConfig(trackers=["blocked"])))
    assert trackers._process is not None
    print(trackers._process.pid, flush=True)
    signal.pause()
