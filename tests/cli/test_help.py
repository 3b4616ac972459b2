"""`--help`: what is needed first stands first, each command and option once, and all fits 80 columns."""

import re

import pytest

from tests.cli.calls import call, program
from tests.cli.test_every_command import COMMANDS

COLUMNS = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
_ROW = re.compile(r"  (-\w, )?(?P<name>[-\w]+)")


def headed(*command):
    """The help of a command: heading -> the names below it."""
    found: dict[str, list[str]] = {}
    below: list[str] = []
    for line in call(*command, "--help", environ=COLUMNS).stdout.splitlines():
        if line and not line.startswith(" "):
            found[line] = below = []
        elif match := _ROW.match(line):
            below.append(match["name"])
    return {heading.rstrip(":"): names for heading, names in found.items() if heading.endswith(":")}


def test_the_commands_are_under_headings_and_those_needed_first_at_the_top():
    told = headed()
    assert [*told] == ["First", "Train", "Look", "Measure", "Use", "Options"]
    assert told["First"] == ["detect", "run", "attach", "stop", "resume", "runs"]
    named = [name for heading, names in told.items() if heading != "Options" for name in names]
    assert sorted(named) == sorted(name for name, each in program().commands.items() if not each.hidden)
    assert "--install-completion" in told["Options"]


def test_the_options_of_a_run_begin_with_those_needed_first():
    told = headed("run")
    assert [*told] == ["Options", "The training", "Several processes", "The run"]
    assert told["Options"][:4] == ["--profile", "--model", "--data", "--epochs"]
    assert len(told["Options"]) <= 15
    assert "--nnodes" in told["Several processes"]


def test_a_command_of_few_options_has_no_further_headings():
    assert [*headed("stop")] == [*headed("report")] == ["Arguments", "Options"]


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_are_named_in_one_way_and_explained(command):
    told = call(*command.split(), "--help", environ=COLUMNS).stdout
    usage = told.splitlines()[0].removesuffix(" COMMAND [ARGS]...")
    arguments = told.partition("\nArguments:\n")[2].partition("\n\n")[0]
    assert not re.search(r"[{}<>]|\.\.\.", usage + arguments)
    for line in filter(_ROW.match, arguments.splitlines()):
        assert re.fullmatch(r"  [A-Z|…]+ +\w.*", line), line


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_fits_80_columns(command):
    told = call(*command.split(), "--help", environ=COLUMNS).stdout
    assert max(map(len, told.splitlines())) <= 80
