"""`mptui tune` from the command line: real runs, a real signal, and a profile that trains."""

import json
import os
import signal

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.config.resolve import resolve
from mptui.errors import ConfigError, MemoryExhaustedError
from mptui.lab.measure.core import MeasureError, Measurer, SampleSpan, ShortRunResult, StoppedError
from tests.forks import FORKING
from tests.made.json_documents import checked
from tests.program import Program

DEADLINE_S = 300
FLAGS = ["--model", "unet", "--data", "shapes", "--batch-size", "2", "--device", "cpu"]
SETS = ["model.width=4", "model.depth=1", "data.image_size=16", "data.samples=8", "speed.compile=off"]
TINY = [*FLAGS, *(part for given in SETS for part in ("--set", given))]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """This test's profile folder; one thread leaves the other core to other tests."""
    monkeypatch.setenv("MPTUI_CONFIG_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return os.environ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.chaos)]
)
def test_a_stop_before_anything_is_known_to_be_better_saves_nothing(places, tmp_path, number, code):
    process = Program(
        "tune", *TINY, "--minutes", "60", "--save", "mine", "--json", folder=tmp_path, call=FORKING
    )
    told = [process.stderr.readline()]
    while ", trying " not in told[-1]:
        assert told[-1], "".join(told)
        told.append(process.stderr.readline())
    process.send_signal(number)
    out, rest = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    assert "no setting was measured to be better than fast" in rest
    assert rest.splitlines()[-1].startswith("Next: mptui run --profile fast")

    document = checked("tune", json.loads(out))
    assert (document["better"], document["profile"], document["toml"]) == (False, None, None)
    assert not (tmp_path / "own").exists()


def measured_until(monkeypatch, runs):
    """Simulate a machine on which NCHW is faster, and end the time after so many runs."""
    asked = []

    def measure(self, request, settings, effort):
        asked.append(settings)
        if len(asked) > runs:
            raise StoppedError
        return ShortRunResult(
            SampleSpan(90.0 if settings["speed.channels_last"] else 100.0, 1.0), 2**20, 0.1, 2.0, 0.0, 1000
        )

    monkeypatch.setattr(Measurer, "measure", measure)


@pytest.mark.slow
def test_what_was_not_measured_stays_as_the_profile_has_it_and_the_rest_trains(places, tmp_path, monkeypatch):
    measured_until(monkeypatch, 10**6)
    sets = [*FLAGS, *(part for given in SETS[:-1] for part in ("--set", given))]
    asked = ["tune", *sets, "--precision", "fp32", "--minutes", "2", "--save", "mine", "--json"]
    result = CliRunner().invoke(app, asked)

    document = checked("tune", json.loads(result.stdout))
    path = tmp_path / "own/profiles/mine.toml"
    assert document["profile"] == str(path)
    assert document["toml"] == path.read_text()
    assert [part for part in path.parent.iterdir() if part != path] == []
    assert document["settings"] == {"speed.channels_last": False}
    resolved = resolve("mine", task=None, flags={}, sets=(), environ=places)
    fast = resolve("fast", task=None, flags={}, sets=(), environ=places).config
    assert resolved.config.speed == fast.speed.model_copy(update={"channels_last": False})
    assert resolved.config.precision.mode == "fp32"
    given = dict(each.split("=") for each in SETS[:-1]) | {"training.batch_size": "2", "model.name": "unet"}
    assert {key: str(value_of(resolved.config, key)) for key in given} == given

    run = ["run", "--profile", "mine", "--device", "cpu", "--max-steps", "2", "--json"]
    ended = CliRunner().invoke(app, run)
    assert json.loads(ended.stdout)["optimizer_steps"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 3])
def test_a_time_too_short_to_measure_anything_saves_nothing(places, tmp_path, monkeypatch, runs):
    measured_until(monkeypatch, runs)
    result = CliRunner().invoke(app, ["tune", *TINY, "--minutes", "1", "--save", "mine"])

    assert result.exit_code == 0
    assert "no setting was measured to be better than fast: no profile saved" in result.stderr
    assert not (tmp_path / "own").exists()


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


@pytest.mark.slow
def test_without_a_name_the_profile_is_printed_with_its_evidence(places, tmp_path, monkeypatch):
    def measure(self, request, settings, effort):
        return ShortRunResult(
            SampleSpan(90.0 if settings["speed.channels_last"] else 100.0, 1.0), 2**20, 0.1, 2.0, 0.0, 1000
        )

    monkeypatch.setattr(Measurer, "measure", measure)
    result = CliRunner().invoke(app, ["tune", *TINY, "--precision", "fp32", "--minutes", "60"])

    assert result.exit_code == 0, result.output
    head = "".join(line for line in result.stdout.splitlines() if line.startswith("# "))
    assert head.startswith("# Measured by mptui tune")
    assert "speed.channels_last: false chosen; false 1.11 times (1.11 to 1.11, 4 rounds)" in head
    assert "precision.mode" not in head  # explicitly requested, so it stays
    (tmp_path / "printed.toml").write_text(result.stdout)
    resolved = resolve("./printed.toml", task=None, flags={}, sets=(), environ=places)
    assert resolved.config.speed.channels_last is False
    assert resolved.config.precision.mode == "fp32"
    assert {each.name for each in tmp_path.iterdir()} == {"printed.toml"}


@pytest.mark.slow
def test_a_run_that_does_not_start_ends_with_its_code(places, monkeypatch):
    def measure(self, request, settings, effort):
        raise MeasureError("out of memory", 5)

    monkeypatch.setattr(Measurer, "measure", measure)
    ended = CliRunner().invoke(app, ["tune", *TINY])

    assert isinstance(ended.exception, MemoryExhaustedError)
    assert "training.batch_size = 2 does not fit; tries memory.micro_batch = 1" in ended.stderr
