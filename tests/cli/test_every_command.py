"""What all commands have in common: a wrong flag is told, and so is a result that can't be written."""

import os
from pathlib import Path

import pytest
import typer

from tests.cli.calls import call, program


def names(group, before=""):
    """The commands of a group, with those of the groups in it."""
    for name, command in group.commands.items():
        if command.hidden:  # of earlier versions
            continue
        yield f"{before}{name}"
        if isinstance(command, typer.core.TyperGroup):
            yield from names(command, f"{before}{name} ")


COMMANDS = sorted(names(program()))
FLAGS_OF = {"slurm": "run"}
"""Commands that pass flags on to another one."""
NO_ROOM = "mptui: standard output: No space left on device\n  free disk space, or redirect the output\n"


def test_all_commands_are_here():
    assert {"run", "runs", "runs compare", "profiles list", "sync"} <= set(COMMANDS)


@pytest.mark.parametrize("words", [(), ("--kills", "2", "--json"), ("--help",)])
def test_a_command_of_earlier_versions_is_told_with_what_to_use_instead(words):
    ended = call("selftest", *words)
    assert ended.returncode == 2
    assert bool(ended.stdout) == ("--json" in words)
    assert ended.stderr.startswith("mptui: selftest is no longer a command\n  kill runs in a folder")
    assert "selftest" not in call("--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_flag_is_told_with_the_help_to_read(command):
    ended = call(*command.split(), "--no-such-flag")
    first, second = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (2, "")
    assert first.startswith("mptui: No such option: --no-such-flag")
    assert second == f"  see `mptui {FLAGS_OF.get(command, command)} --help`"


@pytest.mark.parametrize("command", COMMANDS)
def test_what_can_not_be_written_is_told_and_a_reader_that_leaves_is_no_fault(command):
    with Path("/dev/full").open("wb") as full:
        ended = call(*command.split(), "--help", stdout=full)
    assert (ended.returncode, ended.stderr) == (7, NO_ROOM)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        ended = call(*command.split(), "--help", stdout=pipe)
    assert (ended.returncode, ended.stderr) == (141, "")
