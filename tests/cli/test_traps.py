"""In a folder with a `json.py` or a `typer.py` nothing that mptui starts runs them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mptui.processes import start
from mptui.processes.start import mptui_command
from tests.e2e.terminal import Terminal
from tests.program import run_to_end

pytestmark = pytest.mark.slow

TRAPS = ("json", "typer", "random", "torch", "numpy", "mptui", "tomli", "PIL", "pydantic", "psutil")
TINY = (
    *("--model", "unet", "--set", "model.width=2", "--set", "model.depth=1", "--set", "data.samples=8"),
    *("--set", "data.image_size=16", "--device", "cpu", "--max-steps", "1", "--no-compile", "-q"),
)


@pytest.fixture
def traps(tmp_path):
    """A folder with modules that note that they were run."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name in TRAPS:
        code = f"open({str(tmp_path / 'sprung')!r}, 'a').write(__name__ + ' ')\nraise SystemExit(99)\n"
        (folder / f"{name}.py").write_text(code)
    return folder


def mptui(folder, *arguments):
    """Run the program as installed, whose script keeps the current folder out of the module path."""
    program = Path(sys.executable).with_name("mptui")
    words = [str(program)] if program.exists() else mptui_command()
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*words, *arguments], cwd=folder, env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    "how",
    [
        ("--isolate", "--workers", "1"),
        ("--nproc-per-node", "2", "--workers", "0"),
        ("--workers", "0", "--set", "logging.tensorboard=true"),
    ],
    ids=["isolate-workers", "ranks", "trackers"],
)
def test_no_process_of_a_run_runs_a_module_of_the_current_folder(traps, how):
    ended = mptui(traps, "run", *TINY, "--runs-dir", traps.parent / "runs", *how)
    assert not (traps.parent / "sprung").exists(), (traps.parent / "sprung").read_text()
    assert ended.returncode == 0, ended.stderr


def test_the_line_of_a_batch_script_runs_none_either(traps):
    script = mptui(traps, "slurm", "--", *TINY).stdout
    (line,) = [line for line in script.splitlines() if line.startswith("srun")]
    words = shlex.split(line)[1:]
    end = words.index("run")
    ended = subprocess.run([*words[:end], "profiles"], cwd=traps, capture_output=True, text=True)
    assert not (traps.parent / "sprung").exists(), (traps.parent / "sprung").read_text()
    assert ended.returncode == 0, ended.stderr


MODEL = TINY[:10]
LATER = [
    ("run", *TINY, "--name", "one", "--detach", "--workers", "1"),
    ("stop", "one"),
    ("resume", "one", "-q"),
    ("sync", "one", "--set", 'logging.trackers=["csv"]'),
    ("doctor",),
    ("bench", *MODEL, "--scaling", "1", "--rounds", "1", "--seconds", "0.1", "--minutes", "1"),
    ("parity", *TINY, "--precision", "bf16"),
]


def test_no_command_that_starts_processes_runs_one(traps):
    """The commands themselves are forked, so that this takes no starts; what they start is as ever."""
    environ = {"MPTUI_RUNS_DIR": str(traps.parent / "runs")}
    for words in LATER:
        ended = run_to_end(*words, folder=traps, environ=environ)
        assert not (traps.parent / "sprung").exists(), f"{words[0]}: {(traps.parent / 'sprung').read_text()}"
        assert ended.returncode == 0, ended.stderr


def test_the_screen_of_a_run_starts_none(traps):
    runs = ("--runs-dir", traps.parent / "runs")
    assert run_to_end("run", *TINY, "--name", "one", *runs, folder=traps).returncode == 0
    screen = Terminal(traps, arguments=("attach", "one", *map(str, runs)))
    try:
        screen.shows("completed")
        screen.press("q")
        assert screen.exit_code() == 0
    finally:
        screen.end()
    assert not (traps.parent / "sprung").exists(), (traps.parent / "sprung").read_text()


NOTEBOOK = """
import os, sys
sys.path.insert(0, "")
import {traps}
from mptui import train
os.chdir(sys.argv[1])
train(
    "unet", runs_dir=sys.argv[2], compile=False,
    **{{"model.width": 2, "model.depth": 1, "data.samples": 8, "data.image_size": 16}},
    **{{"training.max_steps": 1, "logging.trackers": ["csv"], "data.workers": 1, "hardware.device": "cpu"}},
)
"""


def test_no_process_of_a_notebook_that_has_entered_such_a_folder_runs_one(traps):
    """The notebook itself has imported all before: what it starts has not."""
    code = NOTEBOOK.format(traps=", ".join(name for name in TRAPS if name != "mptui"))
    words = [sys.executable, "-c", code, traps, traps.parent / "runs"]
    ended = subprocess.run(words, cwd=traps.parent, capture_output=True, text=True)
    assert not (traps.parent / "sprung").exists(), (traps.parent / "sprung").read_text()
    assert ended.returncode == 0, ended.stderr


def test_every_interpreter_is_started_without_the_current_folder():
    """By `child.start` or with the words of `mptui_command`, which the launcher's agent takes as its own."""
    room = Path(start.__file__).parents[1]
    starts = {
        str(path.relative_to(room)) for path in room.rglob("*.py") if "sys.executable" in path.read_text()
    }
    assert starts == {"processes/start.py", "runs/launch/launcher.py"}
