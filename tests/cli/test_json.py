"""`--json`: one vocabulary, which is written in `docs/json.md`, and a document of each error."""

import json
from pathlib import Path

import pytest

from mptui.cli.main import _exit_code
from tests.cli.calls import call, program
from tests.cli.test_every_command import names
from tests.made.json_documents import DOCUMENTS, failed


def with_json():
    """The commands that take --json."""
    commands = program()
    for name in names(commands):
        command = commands
        for word in name.split():
            command = command.commands[word]
        if any("--json" in param.opts for param in command.params):
            yield name


WITH_JSON = sorted(with_json())


def test_the_page_has_the_documents_of_all_commands():
    assert {command.partition(" --")[0] for command in DOCUMENTS} == set(WITH_JSON)


def test_a_test_holds_each_document_to_the_page():
    texts = "".join(path.read_text() for path in Path(__file__).parents[1].glob("**/test_*.py"))
    assert [command for command in DOCUMENTS if f'checked("{command}"' not in texts] == []


@pytest.mark.parametrize("command", WITH_JSON)
def test_a_wrong_flag_is_told_in_a_document_too(command):
    ended = call(*command.split(), "--json", "--no-such-flag")
    told = failed(json.loads(ended.stdout))
    assert (ended.returncode, told["exit_code"]) == (2, 2)
    assert told["error"].startswith("No such option: --no-such-flag")
    assert ended.stderr == f"mptui: {told['error']}\n  {told['hint']}\n"


MISTAKES = {
    "run --set training.lr=-1": 2,
    "run --data /nowhere --device cpu": 3,
    "resume none": 6,
    "runs compare none other": 6,
    "sync none": 6,
    "evaluate none": 6,
    "predict none": 2,
    "memory --card none": 2,
    "data /nowhere": 3,
    "prepare /nowhere": 3,
    "learn none": 2,
    "profiles keys xyzzy": 2,
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_told_in_a_document_with_its_exit_code(words, tmp_path):
    ended = call(*words.split(), "--json", folder=tmp_path)
    told = failed(json.loads(ended.stdout))
    assert (ended.returncode, told["exit_code"]) == (MISTAKES[words], MISTAKES[words]), told
    assert told["hint"]


def test_without_json_an_error_leaves_stdout_empty():
    assert call("runs", "compare", "none", "other").stdout == ""


def test_a_bug_is_told_in_a_document_and_keeps_its_traceback(monkeypatch, capsys):
    def faulty(*_arguments):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("mptui.config.profiles.list_profiles", faulty)
    with pytest.raises(ZeroDivisionError):
        _exit_code(["profiles", "list", "--json"], debug=False)
    told = failed(json.loads(capsys.readouterr().out))
    assert (told["error"], told["exit_code"]) == ("ZeroDivisionError: division by zero", 1)
