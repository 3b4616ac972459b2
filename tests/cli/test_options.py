"""Numeric flags: invalid values are refused before any work."""

import pytest

from mptui.cli.main import _exit_code


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize(
    "command",
    [
        ("tune", "--minutes"),
        ("bench", "--seconds"),
        ("stop", "run", "--timeout"),
        ("prepare", "data", "--bad-budget"),
    ],
    ids=lambda command: command[0],
)
def test_a_number_that_is_none_is_a_wrong_flag(command, value, capsys):
    assert _exit_code([*command, value], debug=False) == 2
    assert command[-1] in capsys.readouterr().err
