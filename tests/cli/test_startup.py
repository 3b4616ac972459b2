"""The command line before any command runs: a fast start, and messages for errors."""

import os
import subprocess
import sys

import pytest

from tests.cli.calls import call
from tests.program import run_to_end

HEAVY = {"torch", "torchvision", "textual", "rich", "pydantic", "numpy"}
LIGHT = {
    "--version": HEAVY,
    "--help": HEAVY,
    "run --help": HEAVY,
    "profiles list": HEAVY,
    "profiles list --json": HEAVY,
    "profiles show fast": {"torch", "textual"},
    "profiles validate fast": {"torch", "textual"},
}
"""Commands in the order in which one interpreter runs them, and what none so far may have imported."""
IN_TURN = """
import sys, typer
from mptui.cli.main import main
for line, heavy in {light}:
    sys.argv[1:] = line.split()
    try:
        main()
    except SystemExit as end:
        found = sorted(heavy & set(sys.modules))
        print(line, end.code, *found, sep=", ", file=sys.stderr, flush=True)
"""


def fresh(code, *arguments, environ=None):
    """Run code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environ or {})},
    )


def test_light_commands_load_nothing_heavy():
    ended = fresh(IN_TURN.format(light=list(LIGHT.items())))
    told = [line for line in ended.stderr.splitlines() if line.partition(", ")[0] in LIGHT]
    assert told == [f"{line}, 0" for line in LIGHT]
    assert "Usage: mptui run" in ended.stdout
    assert '"name": "fast"' in ended.stdout
    assert ended.stdout.endswith("ok\n")


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["profiles", "show", "fsat"], "mptui: no profile fsat; nearest: fast", "mptui profiles list"),
        (["profiles", "validate", "gone.toml"], "mptui: gone.toml: no such file", "mptui profiles list"),
        (
            ["run", "--epoch", "3"],
            "mptui: No such option: --epoch (Possible options:",
            "mptui run --help",
        ),
        (["profile"], "mptui: No such command 'profile'. Did you mean 'profiles'?", "mptui --help"),
    ],
)
def test_a_mistake_is_two_lines_and_exit_code_2(arguments, message, hint):
    ended = call(*arguments)
    first, second = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert first.startswith(message)
    assert second.startswith("  ")
    assert hint in second


@pytest.mark.parametrize(
    "arguments", [["--debug", "profiles", "show", "fsat"], ["profiles", "show", "fsat", "--debug"]]
)
def test_debug_adds_the_traceback_before_the_two_lines(arguments):
    ended = call(*arguments)
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert ended.stderr.splitlines()[-2].startswith("mptui: no profile fsat")


def test_text_from_outside_cannot_command_the_terminal():
    ended = call("profiles", "show", "\x1b[31mred")
    assert "\x1b" not in ended.stderr
    assert "\\x1b[31mred" in ended.stderr


def test_a_reader_that_leaves_is_no_fault():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        ended = call("profiles", "show", "fast", stdout=pipe)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_an_interrupt_ends_with_130_and_no_traceback():
    program = (
        "import mptui.cli.look.profiles as p, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job is started deaf to it
        "p.print_next = lambda _: os.kill(os.getpid(), signal.SIGINT)\n"
        "from mptui.cli.main import main\nmain()"
    )
    ended = run_to_end(program, "profiles", "list", call="tests.program:execute")
    assert (ended.returncode, ended.stderr) == (130, "")


def test_each_summary_of_the_help_fits_its_line():
    ended = call("--help", environ={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    commands = ended.stdout.partition("First:\n")[2].partition("Options:\n")[0].splitlines()
    assert len(commands) >= 14
    for line in commands:
        assert line.endswith((".", ":")) or not line, line
        assert not line.endswith("..."), line
        assert len(line) <= 80, line


def test_an_argument_that_may_be_left_out_has_one_pair_of_brackets():
    told = call("attach", "--help").stdout
    assert told.startswith("Usage: mptui attach [OPTIONS] [RUN]\n")
    assert "[[" not in told


BROKEN = """
import sys
if hasattr(sys, "torch_has_been_imported"):
    raise RuntimeError("a name of torch is registered twice")
sys.torch_has_been_imported = True
raise ValueError("Invalid log settings: no_such_log")
"""
"""A torch that fails at the end of its import: what it has registered makes a second import fail for that."""


@pytest.fixture
def broken_torch(tmp_path):
    """The environment of an interpreter whose torch is broken."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(BROKEN)
    return {"PYTHONPATH": str(tmp_path)}


MAIN = "from mptui.cli.main import main; main()"


@pytest.mark.program
def test_a_torch_that_can_not_be_imported_is_told_by_its_first_failure(broken_torch, tmp_path):
    ended = fresh(MAIN, "run", "--data", "shapes", "--runs-dir", str(tmp_path / "runs"), environ=broken_torch)
    assert ended.returncode == 2
    problem, hint = ended.stderr.splitlines()[-2:]
    assert problem.startswith("mptui: torch can't be imported: Invalid log settings: no_such_log")
    assert "python -c 'import torch'" in hint
    assert not (tmp_path / "runs").exists()


@pytest.mark.program
@pytest.mark.slow
def test_devices_are_listed_where_torch_can_not_be_imported(broken_torch):
    ended = fresh(MAIN, "detect", environ=broken_torch)
    assert ended.returncode == 0
    assert "torch can't be imported: Invalid log settings: no_such_log" in " ".join(ended.stdout.split())
