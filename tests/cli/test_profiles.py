import json
from pathlib import Path

import pytest
import tomli
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.config.keys import RETIRED, SETTINGS, nearest_setting
from mptui.config.profiles import ORDER
from mptui.errors import ConfigError
from tests.made.json_documents import checked


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Call `mptui …` in an empty folder, with a separate configuration folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "own"))
    return lambda *arguments: CliRunner().invoke(app, ["profiles", *arguments])


def test_list_shows_each_profile_on_a_line_and_what_to_do_next(run):
    ended = run("list")
    assert [line.split()[0] for line in ended.stdout.splitlines()] == list(ORDER)
    assert "mptui run --profile" in ended.stderr


def test_without_a_command_the_profiles_are_listed(run):
    assert run().stdout == run("list").stdout


def test_list_as_json_is_one_document(run):
    document = checked("profiles list", json.loads(run("list", "--json").stdout))["profiles"]
    assert [entry["name"] for entry in document] == list(ORDER)
    assert set(document[0]) == {"name", "description", "path", "origin"}


def test_show_prints_the_file(run):
    text = run("show", "fast").stdout
    assert tomli.loads(text)["training"]["epochs"] == 50
    assert "# " in text


def test_show_makes_what_a_terminal_would_obey_visible(run):
    Path("odd.toml").write_text('description = "a"\n\t# \u202etxt.exe\n')
    assert run("show", "odd.toml").stdout.splitlines()[1] == "    # \\u202etxt.exe"


def test_validate_says_ok_or_all_that_is_wrong(run):
    assert run("validate", "fast").stdout == "ok\n"
    Path("bad.toml").write_text("[training]\nlr = 0\nepoch = 1\n")
    fault = run("validate", "bad.toml").exception
    assert isinstance(fault, ConfigError)
    assert fault.message.splitlines() == [
        "bad.toml:2: [training] lr = 0: must be greater than 0",
        "bad.toml:3: [training] epoch: unknown key; nearest: training.epochs",
    ]
    assert "mptui profiles validate bad.toml" in fault.hint


def test_new_copies_a_profile_and_prints_where_it_is(run, tmp_path):
    ended = run("new", "mine", "--from", "debug")
    path = Path(ended.stdout.strip())
    assert path == tmp_path / "own/profiles/mine.toml"
    assert tomli.loads(path.read_text())["description"] == "A copy of debug"
    assert run("validate", "mine").exit_code == 0
    assert "mptui run --profile mine" in ended.stderr


def test_a_copy_never_takes_the_name_of_a_built_in_profile(run, tmp_path):
    refused = run("new", "fast", "--from", "stable")
    assert isinstance(refused.exception, ConfigError)
    assert "is a built-in profile" in str(refused.exception)
    assert not (tmp_path / "own").exists()


def test_keys_explains_each_setting_with_this_word(run):
    told = run("keys", "label smooth").stdout
    assert [line.split() for line in told.splitlines()[-5:]] == [
        ["validation", "loss."],
        ["takes", "a", "number,", "0", "or", "more", "and", "below", "1"],
        ["default", "0.0"],
        ["acts", "with", "classification"],
        ["changes", "live,", "between", "two", "steps", "of", "a", "run"],
    ]
    assert "none unsets it" in run("keys", "max_steps").stdout
    assert "never in a run that has begun" in run("keys", "training.optimizer").stdout


def test_keys_as_json_has_all_that_the_schema_declares(run):
    document = checked("profiles keys", json.loads(run("keys", "--json").stdout))
    keys = {about["key"]: about for about in document["keys"]}
    assert keys.keys() == SETTINGS.keys()
    assert keys["memory.budget_gib"]["values"]["anyOf"][0]["maximum"] == 4096
    assert keys["memory.budget_gib"]["unit"] == "GiB"
    assert keys["training.optimizer"]["choices"][:2] == ["sgd", "adamw"]
    assert keys["data.augment"]["choices"] == ["default", "none"]
    assert keys["data.augment"]["item_choices"][:2] == ["crop", "flip"]
    assert keys["logging.trackers"]["item_choices"][:2] == ["csv", "tensorboard"]
    assert keys["training.lr"]["default_by_task"]["diffusion"] == 0.0005
    assert keys["training.label_dropout"]["acts_with"][1] == ["model.class_conditional: true"]
    assert {about["changes"] for about in keys.values()} == {"live", "resume", "never"}


@pytest.mark.parametrize("name", ["learning_rate", "LR", "num_workers"])
def test_keys_knows_what_other_programs_call_a_setting(run, name):
    assert run("keys", name).stdout.splitlines()[0] == nearest_setting(name)


def test_keys_says_what_there_is_in_place_of_a_setting_of_an_earlier_version(run):
    for name, instead in RETIRED.items():
        assert run("keys", name).stdout == f"{name} is a setting of earlier versions: {instead}\n"
    assert "use precision.matmul" in run("keys", "precision.tf32").stdout


def test_keys_refuses_a_word_of_no_setting(run):
    fault = run("keys", "xyzzy").exception
    assert isinstance(fault, ConfigError)
    assert fault.hint == "list all: mptui profiles keys"


@pytest.mark.parametrize(
    ("key", "takes"),
    {
        "memory.micro_batch": "a whole number, 1 or more, or auto; none unsets it",
        "training.betas": "a list of 2 values, each a number, 0 or more and below 1; none unsets it",
        "speed.compile": "off | default | reduce-overhead | max-autotune",
        "speed.fused": "true or false, or auto",
        "memory.budget_gib": "a number, above 0 and at most 4096, in GiB; none unsets it",
    }.items(),
)
def test_keys_says_in_words_which_values_a_setting_takes(run, key, takes):
    assert f"  takes     {takes}" in run("keys", key).stdout.splitlines()
