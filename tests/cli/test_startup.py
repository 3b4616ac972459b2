"""The command line before any command runs: a fast start, and messages for errors."""

import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "torchvision", "textual", "rich", "pydantic", "numpy"}


def mptui(*arguments, code="", environ=None):
    """Run the command in a fresh interpreter; `code` runs when it ends."""
    at_end = f"import sys, atexit\natexit.register(lambda: exec({code!r}))\n"
    program = at_end + "from mptui.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environ or {})},
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["profiles", "list"], ["profiles", "list", "--json"], ["--version"]],
)
def test_light_commands_load_nothing_heavy(arguments):
    code = f"print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    ended = mptui(*arguments, code=code)
    assert ended.returncode == 0
    assert ended.stdout
    assert ended.stderr.splitlines()[-1] == ""


@pytest.mark.parametrize("arguments", [["profiles", "show", "fast"], ["profiles", "validate", "fast"]])
def test_no_profile_command_loads_torch_or_the_screen(arguments):
    ended = mptui(*arguments, code="print({'torch', 'textual'} & set(sys.modules), file=sys.stderr)")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (0, "set()")


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
    ended = mptui(*arguments)
    first, second = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert first.startswith(message)
    assert second.startswith("  ")
    assert hint in second


@pytest.mark.parametrize(
    "arguments", [["--debug", "profiles", "show", "fsat"], ["profiles", "show", "fsat", "--debug"]]
)
def test_debug_adds_the_traceback_before_the_two_lines(arguments):
    ended = mptui(*arguments)
    assert ended.returncode == 2
    assert "Traceback" in ended.stderr
    assert ended.stderr.splitlines()[-2].startswith("mptui: no profile fsat")


def test_text_from_outside_cannot_command_the_terminal():
    ended = mptui("profiles", "show", "\x1b[31mred")
    assert "\x1b" not in ended.stderr
    assert "\\x1b[31mred" in ended.stderr


def test_a_reader_that_leaves_is_no_fault():
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "mptui", "profiles", "show", "fast"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert ended.stderr == ""


def test_an_interrupt_ends_with_130_and_no_traceback():
    program = (
        "import mptui.cli.look.profiles as p, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job is started deaf to it
        "p.print_next = lambda _: os.kill(os.getpid(), signal.SIGINT)\n"
        "from mptui.cli.main import main\nmain()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "profiles", "list"], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


def test_each_summary_of_the_help_fits_its_line():
    ended = mptui("--help", environ={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    commands = ended.stdout.partition("Commands:\n")[2].splitlines()
    assert len(commands) >= 14
    for line in commands:
        assert line.endswith("."), line
        assert not line.endswith("..."), line
        assert len(line) <= 80, line


def test_an_argument_that_may_be_left_out_has_one_pair_of_brackets():
    told = mptui("attach", "--help").stdout
    assert told.startswith("Usage: mptui attach [OPTIONS] [RUN]\n")
    assert "[[" not in told


@pytest.mark.program
def test_a_torch_that_can_not_be_imported_is_told_by_its_first_failure(tmp_path):
    """It fails at the end of its import: what it has registered makes a second import fail for that."""
    broken = {"TORCH_LOGS": "no_such_log"}
    ended = mptui("run", "--data", "shapes", "--runs-dir", str(tmp_path), environ=broken)
    assert ended.returncode == 2
    problem, hint = ended.stderr.splitlines()[-2:]
    assert problem.startswith("mptui: torch can't be imported: Invalid log settings: no_such_log")
    assert "python -c 'import torch'" in hint
    assert not list(tmp_path.iterdir())


@pytest.mark.program
def test_devices_are_listed_where_torch_can_not_be_imported():
    ended = mptui("detect", environ={"TORCH_LOGS": "no_such_log"})
    assert ended.returncode == 0
    assert "torch can't be imported: Invalid log settings: no_such_log" in " ".join(ended.stdout.split())
