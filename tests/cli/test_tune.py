"""`mptui tune` as a person meets it: real runs, a real signal, and a profile that trains."""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.config.merge import check_profile, resolve
from mptui.errors import ConfigError

DEADLINE_S = 300
FLAGS = ["--model", "unet", "--data", "shapes", "--batch-size", "2", "--device", "cpu"]
SETS = ["model.width=4", "model.depth=1", "data.image_size=16", "data.samples=8", "speed.compile=off"]
TINY = [*FLAGS, *(part for given in SETS for part in ("--set", given))]


def command(*arguments):
    return [sys.executable, "-m", "mptui", "tune", *TINY, *arguments]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Where this test's profiles are; one thread leaves the other processor to the other tests."""
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return os.environ


@pytest.mark.parametrize(
    ("number", "code", "after"), [(signal.SIGINT, 130, "round 1"), (signal.SIGTERM, 143, "the start")]
)
def test_a_stop_saves_the_best_so_far_as_a_profile_that_trains(places, tmp_path, number, code, after):
    process = subprocess.Popen(
        command("--minutes", "60", "--save", "mine", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told = [process.stderr.readline()]
    while after not in told[-1]:
        assert told[-1], "".join(told)
        told.append(process.stderr.readline())
    process.send_signal(number)
    out, rest = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    assert rest.splitlines()[-1] == "Next: mptui run --profile mine"

    document = json.loads(out)
    path = tmp_path / "own/profiles/mine.toml"
    assert document["profile"] == str(path)
    assert document["toml"] == path.read_text()
    assert [part for part in path.parent.iterdir() if part != path] == []
    check_profile("mine", places)
    asked = {**dict(given.split("=") for given in SETS), "training.batch_size": "2", "model.name": "unet"}
    resolved = resolve("mine", task=None, flags={}, sets=(), environ=places)
    kept = {key: str(value_of(resolved.config, key)) for key in asked}
    assert kept == asked

    if number == signal.SIGINT:
        run = ["run", "--profile", "mine", "--device", "cpu", "--max-steps", "2", "--json"]
        ended = CliRunner().invoke(app, run)
        assert json.loads(ended.stdout)["model"] == "unet"
        assert json.loads(ended.stdout)["optimizer_steps"] == 2


def value_of(config, key):
    table, name = key.split(".")
    return getattr(getattr(config, table), name)


def test_a_profile_that_is_there_is_told_before_anything_is_measured(places, tmp_path):
    path = tmp_path / "own/profiles/mine.toml"
    path.parent.mkdir(parents=True)
    path.write_text('description = "mine"\n')

    ended = CliRunner().invoke(app, ["tune", *TINY, "--save", "mine"])

    assert isinstance(ended.exception, ConfigError)
    assert "--force" in ended.exception.hint
    assert path.read_text() == 'description = "mine"\n'


def test_the_time_is_kept_and_the_evidence_is_printed(places, tmp_path):
    result = CliRunner().invoke(app, ["tune", *TINY, "--precision", "fp32", "--minutes", "0.25"])

    assert result.exit_code == 0, result.output
    head = [line for line in result.stdout.splitlines() if line.startswith("# ")]
    assert head[0].startswith("# Measured by mptui tune")
    assert "precision.mode" not in "".join(head)  # it was asked for, and so it stays
    (tmp_path / "printed.toml").write_text(result.stdout)
    check_profile("./printed.toml", places)
    assert {each.name for each in tmp_path.iterdir()} == {"printed.toml"}
