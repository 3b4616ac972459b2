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
from mptui.errors import ConfigError, MemoryExhaustedError
from mptui.lab.measure import Measured, MeasureError, Measurer

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
    ("number", "code", "after"),
    [
        (signal.SIGINT, 130, "is in force, tries"),
        pytest.param(signal.SIGTERM, 143, "round 1", marks=pytest.mark.chaos),
    ],
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


def test_without_a_name_the_profile_is_printed_with_its_evidence(places, tmp_path, monkeypatch):
    def measure(self, request, settings, effort):
        return Measured(90.0 if settings["speed.channels_last"] else 100.0, 2**20, 0.1, 2.0, 0.0, 1000)

    monkeypatch.setattr(Measurer, "measure", measure)
    result = CliRunner().invoke(app, ["tune", *TINY, "--precision", "fp32", "--minutes", "60"])

    assert result.exit_code == 0, result.output
    head = "".join(line for line in result.stdout.splitlines() if line.startswith("# "))
    assert head.startswith("# Measured by mptui tune")
    assert "speed.channels_last: false in force; false 1.11 times (1.11 to 1.11, 4 rounds)" in head
    assert "precision.mode" not in head  # it was asked for, and so it stays
    (tmp_path / "printed.toml").write_text(result.stdout)
    resolved = resolve("./printed.toml", task=None, flags={}, sets=(), environ=places)
    assert resolved.config.speed.channels_last is False
    assert resolved.config.precision.mode == "fp32"
    assert {each.name for each in tmp_path.iterdir()} == {"printed.toml"}


def test_a_run_that_does_not_start_ends_with_its_code(places, monkeypatch):
    def measure(self, request, settings, effort):
        raise MeasureError("out of memory", 5)

    monkeypatch.setattr(Measurer, "measure", measure)
    ended = CliRunner().invoke(app, ["tune", *TINY])

    assert isinstance(ended.exception, MemoryExhaustedError)
    assert "training.batch_size = 2 does not fit; tries memory.micro_batch = 1" in ended.stderr
