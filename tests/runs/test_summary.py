"""Long lists in a summary are shortened in the middle; the first and latest entries stay."""

import random

import pytest

from mptui.cli.console import final_lines
from mptui.events import DeviceSample, EpochFinished, Recovered, Validated, Warned
from mptui.runs.session.ending import concerns_of
from mptui.runs.store.directory import SUMMARY, json_text, read_summary
from mptui.runs.store.files import Summary
from mptui.runs.view.doubts import what_helps
from mptui.runs.view.specs import LIST_LIMIT
from tests.tui.events import run_started, step_event

HALF = LIST_LIMIT // 2


def warning(n):
    return Warned(code=str(n), message="")


def recovery(n):
    return Recovered(step=n, problem="divergence", action="")


@pytest.mark.parametrize(
    ("event_of", "entries", "number"),
    [
        (warning, "warnings", lambda entry: int(entry["code"])),
        (recovery, "recoveries", lambda entry: entry["step"]),
    ],
    ids=["warnings", "recoveries"],
)
@pytest.mark.parametrize("count", [LIST_LIMIT - 1, LIST_LIMIT, LIST_LIMIT + 1, 3 * LIST_LIMIT])
def test_a_long_list_keeps_its_first_half_and_the_latest(event_of, entries, number, count):
    summary = Summary("run", "runs/run")
    for n in range(count):
        summary.handle(event_of(n))
    kept = [number(entry) for entry in summary.document[entries]]
    if count <= LIST_LIMIT:
        assert kept == list(range(count))
    else:
        assert kept == [*range(HALF), *range(count - HALF, count)]


def test_a_loss_is_told_with_what_is_in_it():
    terms = ["label smoothing 0.1"]
    summary = Summary("run", "runs/run")
    for loss_terms in ([], terms):
        summary.handle(
            Validated(step=1, epoch=1, loss=2.0, loss_terms=loss_terms, metrics={}, seconds=1, best=False)
        )
    again = Summary("run", "runs/run")
    again.go_on_from(summary.document)
    assert again.document["loss_terms"] == terms
    final = again.document | {"final": {"val_loss": 2.0}}
    assert "val_loss 2.0000  (losses with label smoothing 0.1)" in final_lines(final)
    del final["loss_terms"]  # of an older run
    assert "val_loss 2.0000" in final_lines(final)


def test_the_limit_is_a_hundred():
    assert LIST_LIMIT == 100


def test_a_resume_that_ends_before_it_trains_leaves_the_run_known():
    summary = Summary("run", "runs/run")
    summary.handle(run_started(model="unet", ranks=2, nodes=1, price_per_hour=2.0))
    resumed = Summary("run", "runs/run")
    resumed.go_on_from(summary.document)
    resumed.measure(None)
    for name in ("profile", "task", "model", "parameters", "dataset", "device", "ranks", "precision"):
        assert resumed.document[name] == summary.document[name] is not None
    assert resumed.document["cost"] is not None


def samples(*moments, watts=360.0):
    return [DeviceSample(name="gpu", time=1000.0 + moment, power_w=watts) for moment in moments]


def test_energy_is_power_over_time_without_the_time_in_which_nobody_looked(tmp_path):
    summary = Summary("run", "runs/run")
    assert summary.document["energy"]["watt_hours"] is None
    for sample in [*samples(0, 1, 2), *samples(3600, 3601, watts=720.0)]:
        summary.handle(sample)
    assert summary.document["energy"]["watt_hours"] == pytest.approx(0.2 + 0.2)
    assert summary.document["energy"]["seconds"] == 3

    # another process goes on
    (tmp_path / SUMMARY).write_text(json_text(summary.document))
    resumed = Summary("run", "runs/run")
    resumed.go_on_from(read_summary(tmp_path))
    for sample in samples(7200, 7201):
        resumed.handle(sample)
    assert resumed.document["energy"]["watt_hours"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "odd", ['{"watt_hours": "1"}', '{"seconds": 1, "until": NaN}', "[]", '{"until": {}}']
)
def test_an_odd_energy_of_a_file_is_left_out(tmp_path, odd):
    (tmp_path / SUMMARY).write_text(f'{{"energy": {odd}}}')

    assert "energy" not in read_summary(tmp_path)


def test_the_cost_goes_on_where_the_process_before_ended():
    summary = Summary("run", "runs/run")
    summary.go_on_from({"cost": 2.5})
    summary.measure(None)
    assert summary.document["cost"] is None

    summary.document["price_per_hour"] = 3600e6
    summary.measure(None)
    assert float(summary.document["cost"] or 0) > 2.5


# -- results that are doubtful, though the run has ended as it should


def validated(loss, accuracy, *, best=False):
    metrics = {"acc1": accuracy}
    return Validated(step=9, epoch=1, loss=loss, metrics=metrics, seconds=1.0, best=best, primary="acc1")


def epoch(val_loss):
    return EpochFinished(
        step=9, epoch=1, epochs=1, train_loss=1.0, train_metrics={}, val_loss=val_loss, val_metrics={},
        lr=0.1, seconds=1.0,
    )  # fmt: skip


def concerns(*events, classes=10, status="completed"):
    summary = Summary("run", "runs/run")
    for event in (run_started(classes=[str(n) for n in range(classes)], val_samples=1000), *events):
        summary.handle(event)
    return concerns_of({**summary.document, "status": status})


def test_a_run_that_went_well_leaves_no_doubt():
    assert concerns(step_event(10, 0.0, random.Random(0)), validated(1.0, 0.5, best=True), epoch(1.2)) == []
    assert concerns() == []


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([step_event(10, 0.0, random.Random(0), skipped_steps=8)], "8 of 10 steps were skipped"),
        ([recovery(1), recovery(2), recovery(3)], "rolled back 3 times"),
        ([validated(1.3, 0.5, best=True), validated(6.6e10, 0.4), epoch(6.6e10)], "from 1.30 up to 6.6e+10"),
        ([validated(float("nan"), 0.5), epoch(float("nan"))], "validation loss is not finite"),
        (
            [validated(2.3, 0.115, best=True), epoch(2.3)],
            "accuracy is 11.5 %, where guesses have 10.0 %",
        ),
    ],
)
def test_a_result_is_doubtful_and_says_why(events, words):
    (told,) = concerns(*events)
    assert words in told


def test_a_run_that_was_stopped_has_not_had_its_time_to_be_better_than_guesses():
    assert concerns(validated(2.3, 0.1, best=True), epoch(2.3), status="stopped") == []
    assert concerns(validated(1.3, 0.5, best=True), epoch(1e9), status="stopped") != []


def test_a_loss_of_an_earlier_version_s_run_whose_lowest_is_not_known_is_no_doubt():
    assert concerns(epoch(1.2)) == []


def test_an_accuracy_that_no_guesses_have_is_none_of_chance():
    assert concerns(validated(2.2, 0.13, best=True), epoch(2.2)) == []
    assert concerns(validated(0.7, 0.52, best=True), epoch(0.7), classes=2) != []


def helps(train_loss, val_loss, accuracy, *, epochs=10, is_random=True, samples=40_000, metric="acc1"):
    summary = {
        "best": {"metric": metric, "value": accuracy},
        "final": {"train_loss": train_loss, "val_loss": val_loss},
        "dataset": {"name": "photos", "train_samples": samples},
        "epochs": epochs,
        "directory": "runs/one",
    }
    return what_helps(summary, is_random=is_random)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples": 392}, "trained weights: random ones saw 392 images"),
        ({"samples": 392, "is_random": False}, "mptui resume runs/one --epochs 20"),
        ({"samples": 392, "metric": "iou"}, "mptui resume runs/one --epochs 20"),
        ({}, "mptui resume runs/one --epochs 20"),
        ({"val_loss": 1.5}, ""),  # it has learnt its images by heart
        ({"accuracy": 0.97, "samples": 392}, ""),
        ({"epochs": 2}, ""),
        ({"val_loss": None}, ""),
        ({"metric": "r2"}, ""),
    ],
)
def test_a_run_ends_with_what_would_help_most(given, words):
    told = helps(**{"train_loss": 1.0, "val_loss": 0.9, "accuracy": 0.6, **given})
    assert words in told
    assert bool(words) == bool(told)
