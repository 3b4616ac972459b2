"""The time of a run before it starts, by earlier runs of the same network on the same device."""

import json
from dataclasses import replace

import pytest

from mptui.config.resolve import resolve
from mptui.io.own_files import mark_run
from mptui.runs.listing.expected_time import expected_time, time_words
from mptui.runs.listing.rows import RunList
from mptui.runs.planning.plan import filled
from mptui.runs.store.directory import SUMMARY, write_json
from tests.hardware.machines import H200, cpu


def config_of(**flags):
    given = {key: ("", value) for key, value in {"model.name": "resnet18", **flags}.items()}
    return filled(resolve("stable", task="classification", flags=given, sets=(), environ={}), cpu())[0].config


def trained(folder, name, *, size=64, batch=64, seen=1000, total_s=110.0, rate=12.0, **summary):
    """A run of 1,000 samples in 100 s after a start of 10 s."""
    run = folder / name
    run.mkdir()
    mark_run(run)
    (run / "run.toml").write_text(
        f'[model]\nname = "resnet18"\n[data]\nname = "shapes"\nimage_size = {size}\n'
        f'[training]\nbatch_size = {batch}\n[speed]\ncompile = "off"\n'
    )
    write_json(
        run / SUMMARY,
        {
            "status": "completed",
            "started": 1.0,
            "model": "resnet18",
            "device": cpu().name,
            "precision": {"used": "fp32"},
            "samples_seen": seen,
            "samples_per_second": rate,
            "dataset": {"name": "shapes", "train_samples": 128},
            "time": {"total_s": total_s, "session_s": total_s, "first_step_s": 10.0},
            **summary,
        },
    )


def found(folder, device=None, samples=200, **flags):
    return expected_time(RunList(folder).rows(), config_of(**flags), device or cpu(), samples=samples)


def test_the_time_is_the_start_and_the_samples_at_the_pace_of_the_whole_earlier_run(tmp_path):
    trained(tmp_path, "before")
    told = found(tmp_path, **{"training.epochs": 3})
    assert told.seconds == pytest.approx(10 + 600 * 0.1)
    assert told.run == "before"
    assert found(tmp_path, **{"training.epochs": 3, "training.max_steps": 2}).seconds == pytest.approx(22.8)
    assert found(tmp_path, samples=None, **{"training.epochs": 1}).seconds == pytest.approx(22.8)


def test_of_runs_alike_the_most_alike_tells(tmp_path):
    trained(tmp_path, "other_batch", batch=8, total_s=210.0)
    trained(tmp_path, "same_batch", started=0.5)
    assert found(tmp_path).run == "same_batch"


@pytest.mark.parametrize(
    "differs",
    [
        {"size": 32},
        {"device": "another"},
        {"precision": {"used": "bf16"}},
        {"ranks": 2},
        {"total_s": 12.0},
        {"rate": 100.0},  # ten times as fast in its steps: it was paused
        {"samples_seen": None},
        {"time": []},
    ],
)
def test_no_time_is_told_by_a_run_that_says_nothing_of_it(tmp_path, differs):
    trained(tmp_path, "before", **differs)
    assert found(tmp_path) is None


def test_another_device_of_the_same_name_is_the_same(tmp_path):
    trained(tmp_path, "before", device=H200.name, precision={"used": "bf16"})
    second = replace(H200, index=1)
    assert found(tmp_path, second, **{"precision.mode": "bf16"}).run == "before"


def test_a_damaged_summary_tells_nothing(tmp_path):
    trained(tmp_path, "before")
    document = json.loads((tmp_path / "before" / SUMMARY).read_text())
    document |= {"dataset": {"train_samples": "many"}, "time": {"total_s": "x", "first_step_s": True}}
    (tmp_path / "before" / SUMMARY).write_text(json.dumps(document))
    assert found(tmp_path) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "about 5 s"),
        (62, "about 60 s"),
        (125, "about 2 min"),
        (7200, "about 2.0 h"),
        (2e5, "about 2.3 d"),
    ],
)
def test_a_time_in_advance_is_told_roughly(seconds, words):
    assert time_words(seconds) == words
