"""`mptui resume` on a terminal: the live screen, or lines if requested, and one last line."""

import pytest

from mptui.events import RunStarted
from mptui.runs.store.journal import read_journal
from tests.cli.calls import call
from tests.e2e.terminal import Terminal

pytestmark = pytest.mark.program

TINY = {
    "MPTUI_MODEL_NAME": "unet",
    "MPTUI_MODEL_WIDTH": "2",
    "MPTUI_MODEL_DEPTH": "1",
    "MPTUI_DATA_SAMPLES": "16",
    "MPTUI_DATA_IMAGE_SIZE": "16",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_TRAINING_EPOCHS": "1",
    "MPTUI_LOGGING_PICTURES": "0",
    "MPTUI_GUARDS_NUMERICS": "off",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a finished run, whose name needs quotes in a shell."""
    folder = tmp_path_factory.mktemp("my runs")
    ended = call("run", "--quiet", "--name", "one", "--runs-dir", folder / "a b", environ=TINY)
    assert ended.returncode == 0, ended.stderr
    return folder


def resumed(folder, *arguments):
    return Terminal(folder, size=(100, 40), environ=TINY, arguments=("resume", "a b/one", *arguments))


def starts(folder):
    return sum(isinstance(event, RunStarted) for event in read_journal(folder / "a b" / "one"))


def test_it_has_the_live_screen_and_leaves_one_line_in_the_shell(folder):
    before = starts(folder)
    program = resumed(folder)
    program.until(lambda: "✓ completed" in program.text.splitlines()[0], "the end of the run")
    assert b"\x1b[?1049h" in program.output
    program.press("q")
    assert program.exit_code() == 0
    assert starts(folder) == before + 1
    last = program.output.rpartition(b"\x1b[?1049l")[2].decode()
    assert "a b/one: completed after step" in last
    assert "mptui resume 'a b/one' --epochs N" in last


@pytest.mark.parametrize("told", ["--no-tui", pytest.param("--quiet", marks=pytest.mark.slow)])
def test_it_has_lines_where_these_are_asked_for(folder, told):
    program = resumed(folder, told)
    assert program.exit_code() == 0
    assert b"\x1b[?1049h" not in program.output
    assert b"completed after 1 epoch, " in program.output
