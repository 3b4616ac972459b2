"""A new command of the command line is a function and its name in `mptui.cli.main`."""

import copy
import json
from typing import Annotated

import pytest
import typer

from mptui.cli import main as cli
from mptui.cli.options import Output, argument, option
from mptui.cli.output import print_json
from mptui.errors import DataError
from tests.cli.calls import call, program
from tests.cli.test_options import options_of
from tests.made.json_documents import failed


class CountOptions(Output):
    word: str = argument("WORD", "What to count in.")
    times: int = option(1, "N", "How often.", min=1)


def count(options: Annotated[CountOptions, "word times as_json"]) -> int:
    """Count the letters of a word."""
    if not options.word.isalpha():
        raise DataError(f"{options.word}: no word", hint="use letters alone")
    letters = len(options.word) * options.times
    if options.as_json:
        print_json({"letters": letters})
    else:
        typer.echo(f"{letters} letters")
    return 0


@pytest.fixture(autouse=True)
def _added(monkeypatch):
    app = copy.copy(cli.app)
    app.registered_commands = [*app.registered_commands]
    monkeypatch.setattr(cli, "app", app)
    cli.add_commands("Look", count)


def test_it_prints_words_or_a_document():
    assert call("count", "word", "--times", "2").stdout == "8 letters\n"
    assert json.loads(call("count", "word", "--json").stdout) == {"version": 1, "letters": 4}


@pytest.mark.parametrize(("words", "code"), [(("w0rd",), 3), (("word", "--times", "0"), 2), ((), 2)])
def test_its_mistakes_are_told_in_two_lines_and_a_document(words, code):
    ended = call("count", *words, "--json")
    told = failed(json.loads(ended.stdout))
    assert (ended.returncode, told["exit_code"]) == (code, code)
    assert ended.stderr == f"mptui: {told['error']}\n  {told['hint']}\n"


def test_the_help_and_the_list_of_options_have_it():
    look = call("--help").stdout.partition("Look:")[2].partition("Measure:")[0]
    assert "count      Count the letters of a word." in look
    assert [line for line in options_of(program()) if line.startswith("mptui count")] == [
        "mptui count word metavar=WORD required=True",
        "mptui count --times metavar=N default=1 min=1",
        "mptui count --json",
    ]
