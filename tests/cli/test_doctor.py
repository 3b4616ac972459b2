"""`mptui doctor` from the command line."""

import json
from functools import partial

import pytest

from tests.cli.calls import call
from tests.data.images import class_folders
from tests.forks import FORKING
from tests.made.json_documents import checked
from tests.program import run_to_end

ACCELERATE = "distributed_type: MULTI_GPU\ngpu_ids: all\nmixed_precision: bf16\n"


@pytest.fixture
def doctor(tmp_path):
    """Call it in an empty folder, with an empty home."""
    places = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(*arguments, how=call):
        return how("doctor", *arguments, folder=tmp_path, environ=places)

    return run


def test_the_machine_the_data_and_the_configuration_in_one_document(doctor, tmp_path):
    class_folders(tmp_path / "data", {"cat": 8, "dog": 8})
    (tmp_path / "data/cat/torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    flags = ("--data", "data", "--model", "resnet18", "--set", "data.bad_sample_budget=0.5", "--json")
    ended = doctor(*flags, how=partial(run_to_end, call=FORKING))
    document = checked("doctor", json.loads(ended.stdout))
    assert (ended.returncode, document["exit_code"], document["errors"]) == (0, 0, 0), document
    found = {(f["area"], f["name"]): f for f in document["findings"]}
    for name in ("driver", "torch", "cpu", "memory", "shm", "nofile", "disk", "locale", "terminal", "logout"):
        assert ("machine", name) in found
    assert "torn.jpg" in found["data", "file"]["what"]
    assert found["configuration", "values"]["state"] == "ok"
    assert not (tmp_path / "runs").exists()


def test_the_learning_rate_can_be_given_as_to_a_run(doctor):
    ended = doctor("--no-torch", "--model", "resnet18", "--lr", "-1")
    assert ended.returncode == 2
    assert "--lr = -1: must be greater than 0" in ended.stdout + ended.stderr


def test_two_configurations_against_each_other_at_the_usual_place(doctor, tmp_path):
    (tmp_path / "train.yaml").write_text("amp: False\nfp16: False\n")
    (tmp_path / "hf/accelerate").mkdir(parents=True)
    place = tmp_path / "hf/accelerate/default_config.yaml"
    place.write_text(ACCELERATE)
    ended = doctor("--no-torch", "--config", "train.yaml")
    assert ended.returncode == 2
    assert "conflicting precision settings" in ended.stdout
    assert "fix: write `amp: True` in train.yaml:1" in ended.stdout

    (tmp_path / "train.yaml").write_text("amp: True\nfp16: False\n")
    ended = doctor("--no-torch", "--config", "train.yaml", "--accelerate", place)
    assert ended.returncode == 0, ended.stdout
    assert "Configuration is properly aligned!" in ended.stdout
    assert place.read_text() == ACCELERATE

    place.write_text("x: !!python/object/apply:os.system ['touch ran']\n")
    ended = doctor("--no-torch", "--config", "train.yaml")
    assert (ended.returncode, "Traceback" in ended.stderr) == (2, False)
    assert "a tag is not allowed" in ended.stdout
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--profile", "fsat"], 2, "fast"),
        (["--set", "training.epoch=3"], 2, "training.epochs"),
        (["--config", "gone.yaml"], 2, "gone.yaml"),
        (["--runs-dir", "/proc/runs"], 7, "/proc/runs"),
    ],
)
def test_an_error_is_a_finding_with_its_exit_code(doctor, arguments, code, word):
    ended = doctor("--no-torch", *arguments)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "  error   " in ended.stdout
    assert word in ended.stdout
    assert "Traceback" not in ended.stderr
