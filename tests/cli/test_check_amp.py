"""`mptui check-amp` from the command line: a table, one JSON document, a profile for `run`."""

import json

import pytest

from tests.made.json_documents import checked
from tests.program import run_to_end

pytestmark = pytest.mark.slow

DIFFERS = "fp16: no operation differs from fp32 by more than rounding"
TINY = {
    "MPTUI_DATA_SAMPLES": "16",
    "MPTUI_DATA_IMAGE_SIZE": "32",
    "MPTUI_TRAINING_BATCH_SIZE": "8",
    "MPTUI_HARDWARE_DEVICE": "cpu",
    "OMP_NUM_THREADS": "1",
}


def mptui(*arguments, folder):
    environ = {**TINY, "MPTUI_CONFIG_DIR": str(folder / "config")}
    return run_to_end(*arguments, folder=folder, environ=environ)


def test_one_document_and_a_profile_and_nothing_else_is_left(tmp_path):
    flags = ("--model", "resnet18", "--precision", "fp16", "--batches", 1, "--save", "mine.toml", "--json")
    data = ("--set", "data.augment=none", "--set", "data.crop_pct=0.5")
    ended = mptui("check-amp", *flags, *data, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    document = checked("check-amp", json.loads(ended.stdout))
    assert set(document["precisions"]) == {"fp32", "bf16", "fp16"}
    assert (document["use"], document["precisions"]["fp16"]["safe"]) == ("fp16", True)
    assert document["precisions"]["fp16"]["verdict"] == "as fp32"
    assert (document["batches"], document["batch_size"]) == (1, 8)
    assert len(document["layers"]) > 40
    assert {path.name for path in tmp_path.iterdir()} == {"mine.toml"}
    shown = mptui("run", "--profile", "mine.toml", "--dry-run", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert 'mode = "fp16"' in shown.stdout
    assert 'name = "resnet18"' in shown.stdout
    assert 'augment = "none"' in shown.stdout  # the data that was checked
    assert "crop_pct = 0.5" in shown.stdout


def test_a_table_for_people(tmp_path):
    ended = mptui("check-amp", "--model", "resnet18", "--batches", 1, "--diff", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for words in ("resnet18 on shapes, 1 batch of 8", "bf16: safe", "fp16: safe", "use ", "and ", DIFFERS):
        assert words in ended.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--data", "no/such/folder"), 3, "no/such/folder"),
        (("--set", "precision.fp32_layers=3"), 2, "a list, in brackets"),
    ],
)
def test_a_mistake_has_its_exit_code(tmp_path, flags, code, words):
    environ = {name: value for name, value in TINY.items() if name != "MPTUI_DATA_SAMPLES"}
    ended = run_to_end("check-amp", *flags, folder=tmp_path, environ=environ)
    assert ended.returncode == code
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) <= 3
    assert "Traceback" not in ended.stderr
