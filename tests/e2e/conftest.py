import os
import signal

import psutil
import pytest

from mptui.runs.store.directory import RANKS
from mptui.runs.store.lock import owner_of
from tests.e2e.terminal import Terminal


@pytest.fixture
def terminal(tmp_path):
    """Start the program on a terminal: `terminal(size=…, environ=…)`; no run outlives the test."""
    started = []

    def start(**kwargs):
        started.append(Terminal(tmp_path, **kwargs))
        return started[-1]

    yield start
    for each in started:
        each.end()
    for run in (tmp_path / "runs").glob("*"):
        if (launcher := owner_of(run / RANKS)) is not None:  # it would start its ranks again
            for process in (parent := psutil.Process(launcher), *parent.children()):
                process.kill()
        if (owner := owner_of(run)) is not None:
            os.kill(owner, signal.SIGKILL)
