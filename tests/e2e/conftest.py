import os
import shutil
import signal

import psutil
import pytest

from mptui.events import Step
from mptui.runs.store.directory import RANKS
from mptui.runs.store.lock import owner_of
from tests.cli.calls import call
from tests.e2e.terminal import Terminal

TINY = {
    "MPTUI_MODEL_NAME": "unet",
    "MPTUI_MODEL_WIDTH": "4",
    "MPTUI_MODEL_DEPTH": "1",
    "MPTUI_DATA_SAMPLES": "32",
    "MPTUI_DATA_IMAGE_SIZE": "32",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_GUARDS_DETECT_ANOMALY": "false",
    "MPTUI_GUARDS_NUMERICS": "off",
    "MPTUI_LOGGING_PICTURES": "0",
    "MPTUI_LOGGING_STEP_INTERVAL_S": "0",
}


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


@pytest.fixture(scope="session")
def one_epoch(tmp_path_factory):
    """A run of one epoch with the profile debug."""
    runs = tmp_path_factory.mktemp("one epoch")
    ended = call(
        "run", "--profile", "debug", "--epochs", 1, "--runs-dir", runs, "--name", "one", environ=TINY
    )
    assert ended.returncode == 0, ended.stderr
    return runs / "one"


@pytest.fixture
def training(terminal, one_epoch, tmp_path):
    """Go on with a run on the live screen, for ever: `training(size=…)` returns once it has taken a step."""

    def start(**kwargs):
        shutil.copytree(one_epoch, tmp_path / "runs" / "one", symlinks=True)
        words = ("resume", "runs/one", "--epochs", "100000")
        program = terminal(environ=TINY, arguments=words, **kwargs)
        program.shows("space pause")
        before = steps(program)
        program.until(lambda: steps(program) > before, "a step")
        return program

    def steps(program):
        return sum(isinstance(event, Step) for event in program.journal())

    return start
