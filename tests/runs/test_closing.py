"""The last line of a run in the shell: its text, and a command that can be copied from it."""

import shlex
from pathlib import Path

import pytest

from mptui.runs.view.words import closing_line

BEST = {"epoch": 3, "metric": "acc1", "value": 0.764}


@pytest.mark.parametrize(
    ("status", "command"),
    [
        ("stopped", ["mptui", "resume", "runs/my run"]),
        ("crashed", ["mptui", "resume", "runs/my run"]),
        ("completed", ["mptui", "resume", "runs/my run", "--epochs", "N"]),
        ("running", ["mptui", "attach", "runs/my run"]),
    ],
)
def test_it_says_where_the_run_is_its_best_and_a_command_for_the_shell(status, command):
    line = closing_line(Path("runs/my run"), {"status": status, "optimizer_steps": 1200, "best": BEST})
    assert line.startswith(f"runs/my run: {status} after step 1,200, best top-1 0.7640 in epoch 3; ")
    assert shlex.split(line.rpartition(": ")[2]) == command
    assert "\n" not in line


def test_what_is_not_known_is_left_out():
    line = closing_line(Path("runs/one"), {"status": "failed", "best": {"value": None}})
    assert line == "runs/one: failed; resume: mptui resume runs/one"
