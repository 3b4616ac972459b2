"""A run of two processes on the screen that started it, and on another one."""

import json
import os
import signal

import pytest

from mptui.events import CheckpointSaved, PresetSwitched, RunFinished
from mptui.runs.store.directory import RANKS
from tests.e2e.test_terminal import ENDLESS, count
from tests.forks import FORKING, rank_pids
from tests.made.waiting import wait_until
from tests.program import run_to_end

pytestmark = [pytest.mark.program, pytest.mark.slow]

TWO = ("--nproc-per-node", "2", "--device", "cpu")
FAST = {"MPTUI_DATA_WORKERS": "0", "MPTUI_TRAINING_BATCH_SIZE": "8"}


@pytest.fixture
def folder(tmp_path):
    """A folder with a run of two steps."""
    settings = ("--profile", "debug", "--name", "two", "--max-steps", "2")
    ended = run_to_end("run", *settings, folder=tmp_path, environ=ENDLESS | FAST)
    assert ended.returncode == 0, ended.stderr
    return tmp_path


def test_keys_of_two_screens_act_on_all_ranks_and_a_loss_is_told(terminal, folder):
    more = ("--set", "training.max_steps=100000")
    program = terminal(environ=ENDLESS, arguments=("resume", "two", *TWO, *more), call=FORKING)
    program.shows("● training")
    program.shows("2 ranks")
    ranks = rank_pids(folder / "runs" / "two" / RANKS)
    assert set(ranks) == {0, 1}
    program.press("space")
    program.shows("■ paused")
    program.shows("2 ranks")

    watcher = terminal(environ=ENDLESS, arguments=("attach", "two"))
    watcher.shows("■ paused")
    watcher.shows("2 ranks")
    watcher.press("space")
    program.shows("● training")
    program.press("2")
    program.shows("switch to stable?")
    program.press("enter")
    program.until(lambda: count(program, PresetSwitched), "the switch")
    watcher.shows("mptui  stable")
    saved = count(program, CheckpointSaved)
    watcher.press("c")
    program.until(lambda: count(program, CheckpointSaved) > saved, "a checkpoint")
    drawn = [(screen, len(screen.output)) for screen in (program, watcher)]
    os.kill(ranks[1], signal.SIGKILL)
    for screen, before in drawn:
        screen.until(lambda s=screen, b=before: "▲ restarting".encode() in s.drawn[b:], "the restart")
    for screen in (program, watcher):
        screen.shows("● training")
        screen.shows("2 ranks")
    program.close()  # the run goes on
    wait_until(program.ended)
    watcher.press("xx")
    watcher.shows("■ stopped")
    watcher.press("q")
    assert watcher.exit_code() == 0
    assert watcher.is_restored()
    last = program.journal()[-1]
    assert isinstance(last, RunFinished)
    summary = json.loads((folder / "runs" / "two" / "summary.json").read_text())
    assert (summary["status"], summary["ranks"], summary["nodes"]) == ("stopped", 2, 1)
    (lost,) = (warning for warning in summary["warnings"] if warning["code"] == "rank_lost")
    assert lost["message"].startswith("rank 1 (process")
