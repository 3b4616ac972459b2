"""The throughput at numbers of processes: what is run, and what the figures say."""

import json
import math
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.cli.measure import bench
from mptui.errors import ConfigError
from mptui.lab.measure.bench import efficiency, variants
from mptui.lab.measure.core import AblationRun, Deadline, Effort, MeasureError, SampleSpan, ShortRunResult
from tests.forks import FORKING, words
from tests.made.json_documents import checked
from tests.program import run_to_end

TINY = ["--model", "unet", "--batch-size", "4", "--device", "cpu", "--workers", "0"]
SETS = ["model.width=2", "model.depth=1", "data.image_size=8", "data.samples=64"]


def test_each_process_has_the_batch_of_one_and_its_share_of_the_speed_is_the_efficiency():
    asked = []

    def measure(settings, effort):
        asked.append(dict(settings))
        if settings["processes"] == 4:
            raise MeasureError("out of memory")
        rate, wait = {1: (100.0, 0.1), 2: (150.0, 0.2)}[settings["processes"]]
        return ShortRunResult(SampleSpan(rate, 1.0), None, None, None, wait)

    effort, deadline = Effort(1.0, loss_at=0), Deadline(math.inf)
    lab = AblationRun(variants([1, 2, 4], 8), measure, effort, deadline=deadline)
    lab.measure_rounds(2, lambda row: None)
    assert [each["training.batch_size"] for each in asked[:3]] == [8, 16, 32]
    assert [efficiency(lab, row) for row in lab.rows] == pytest.approx([1.0, 0.75, None])
    one, two, four = (bench._described(lab, row) for row in lab.rows)
    assert (one["lost_to_data"], one["lost_to_sums_and_waiting"]) == (0, 0)
    assert two["lost_to_data"] == pytest.approx(0.1)
    assert two["lost_to_sums_and_waiting"] == pytest.approx(0.15)
    assert (four["efficiency"], four["failed"]) == (None, "out of memory")


@pytest.mark.parametrize("given", ["0,2", "two", "1,65", "1,-2"])
def test_numbers_that_are_none_are_refused(given):
    ended = CliRunner().invoke(app, ["bench", *TINY, "--scaling", given])
    assert isinstance(ended.exception, ConfigError)
    assert ended.exception.message == f"--scaling {given}: not numbers of processes from 1 to 64"


@pytest.mark.slow
def test_two_processes_are_measured_beside_one(monkeypatch):
    def run(command, *, env, **_):
        return run_to_end(*words(command), environ=env, call=FORKING)

    monkeypatch.setattr("mptui.lab.measure.bench.subprocess", SimpleNamespace(run=run))
    flags = [*TINY, *(part for each in SETS for part in ("--set", each))]
    asked = ["bench", *flags, "--scaling", "2,1", "--rounds", "1", "--seconds", "0.1", "--json"]
    document = checked("bench --scaling", json.loads(CliRunner().invoke(app, asked).stdout))
    one, two = document["processes"]
    assert (one["processes"], two["processes"], document["batch_size_per_process"]) == (1, 2, 4)
    assert two["failed"] is None
    assert two["efficiency"] == pytest.approx(two["samples_per_second"] / one["samples_per_second"] / 2)
