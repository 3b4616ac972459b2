"""The options of all commands; numbers that are none are refused before any work."""

from pathlib import Path

import pytest

from mptui.cli.main import _exit_code
from tests.cli.calls import program

FROZEN = Path(__file__).with_name("options.txt")
"""A new option is a decision: `python -m tests.cli.test_options` prints this file anew."""


def options_of(command, name="mptui"):
    """A line for each option and argument: its command, its names, and what else a person may rely on."""
    for each in command.params:
        if each.name in {"install_completion", "show_completion"}:  # typer's own, by the shell that it finds
            continue
        facts = {
            "metavar": each.metavar,
            "required": each.required,
            "default": each.default,
            "envvar": each.envvar,
            "min": each.min,
            "max": each.max,
            "repeatable": each.nargs == -1 or getattr(each, "multiple", False),
            "completed": each._custom_shell_complete is not None,
            "checked": each.callback is not None,
        }
        known = [
            f"{fact}={value}" for fact, value in facts.items() if value is not None and value is not False
        ]
        yield " ".join([name, *each.opts, *each.secondary_opts, *known])
    for word, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, f"{name} {word}")


def test_the_options_are_those_that_were_decided():
    assert list(options_of(program())) == FROZEN.read_text().splitlines()


NUMBERS = [
    line.partition(" metavar=")[0] for line in FROZEN.read_text().splitlines() if "checked=True" in line
]


@pytest.mark.parametrize("words", NUMBERS)
def test_a_number_that_is_none_is_a_wrong_flag(words, capsys):
    _, *command = words.split()
    for value in ("nan", "inf", "-1"):
        assert _exit_code([*command, value], debug=False) == 2
        assert f"Invalid value for '{command[-1]}': " in capsys.readouterr().err


if __name__ == "__main__":
    print(*options_of(program()), sep="\n")
