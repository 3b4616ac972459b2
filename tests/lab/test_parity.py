"""Parity: the verdict on two precisions, from the metrics and journals of their runs."""

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptui.events import EpochFinished, Validated
from mptui.lab.measure.parity import (
    Piece,
    compare,
    largest_gaps,
    read_curves,
    read_outcome,
    sentences,
    to_document,
)
from mptui.runs.store.journal import Journal
from tests.made.events import step_of
from tests.tui.events import run_started

# -- journals


@pytest.fixture
def journal(tmp_path):
    """Write a run's journal: step events of the given sizes, and then an epoch."""

    def write(name, loss, sizes, *, metrics=(0.5,), more=()):
        run = tmp_path / name
        run.mkdir()
        events, step = [], 0
        for size in sizes:
            values = [loss(s) for s in range(step + 1, step + size + 1)]
            step += size
            events.append(step_of(step, steps=size, loss=sum(values) / size))
        for epoch, metric in enumerate(metrics, 1):
            events.append(
                Validated(
                    epoch=epoch,
                    step=step,
                    loss=1 - metric,
                    metrics={"acc1": metric, "acc5": 1.0},
                    seconds=0.0,
                    best=True,
                )
            )
            events.append(
                EpochFinished(
                    epoch=epoch,
                    step=step,
                    epochs=9,
                    train_loss=1.0,
                    train_metrics={},
                    val_metrics={"acc1": metric},
                    lr=0.1,
                    seconds=1,
                )
            )
        written = Journal(run)
        for event in (*events, *more):
            written.write(event)
        written.close()
        return run

    return write


def gap_of(ours, theirs, curve):
    return next(g for g in largest_gaps([read_curves(ours)], [read_curves(theirs)]) if g.curve == curve)


def test_where_the_training_losses_part_is_found_though_their_events_end_elsewhere(journal):
    fp32 = journal("fp32", lambda step: 2.0, [7] * 14 + [2])
    ours = journal("ours", lambda step: 2.0 + (0.5 if 40 < step <= 60 else 0.0), [10] * 10)
    gap = gap_of(ours, fp32, "training loss")
    assert gap.value == pytest.approx(0.5)
    assert gap.fp32 == pytest.approx(2.0)
    first, last = (int(word) for word in gap.where.removeprefix("steps ").split(" to "))
    assert 40 < first <= last <= 60


def test_equal_losses_told_in_other_pieces_do_not_part(journal):
    a = journal("a", lambda step: 3.0, [1] * 60)
    b = journal("b", lambda step: 3.0, [9, 20, 1, 30])
    assert gap_of(a, b, "training loss").value == pytest.approx(0)


def test_the_epoch_in_which_the_metric_parts_most(journal):
    a = journal("a", lambda step: 1.0, [5], metrics=(0.2, 0.5, 0.8))
    b = journal("b", lambda step: 1.0, [5], metrics=(0.2, 0.6, 0.79))
    gap = gap_of(a, b, "acc1")
    assert (gap.where, gap.value, gap.fp32) == ("epoch 2", pytest.approx(-0.1), pytest.approx(0.6))


def test_a_curve_that_is_no_number_parts_most(journal):
    a = journal("a", lambda step: 1.0, [5], metrics=(0.2, nan, 0.8))
    b = journal("b", lambda step: 1.0, [5], metrics=(0.9, 0.6, 0.79))
    assert gap_of(a, b, "acc1").where == "epoch 2"
    losing = journal("c", lambda step: inf if step > 8 else 1.0, [2] * 5)
    assert gap_of(losing, journal("d", lambda step: 1.0, [2] * 5), "training loss").where == "steps 9 to 10"


def test_steps_that_a_resumed_run_took_again_count_once(journal):
    again = [run_started(resumed_from_step=4), step_of(6, steps=2, loss=5.0)]
    run = journal("cut", lambda step: 1.0, [2, 2, 2], more=again)
    assert read_curves(run).steps == [(2, 2, 1.0), (4, 2, 1.0), (6, 2, 5.0)]


# -- results


def piece(precision: str, seed: int, run: Path) -> Piece:
    plan: Any = None  # the end of a run is read from its directory
    return Piece(precision, seed, plan, run)


@pytest.fixture
def result(journal, tmp_path):
    """Return the result of runs with these final metrics; other entries of a summary can be changed."""

    def build(ours, fp32, by_image=None, **changes):
        outcomes = []
        for seed, pair in enumerate(zip(fp32, ours, strict=True)):
            for precision, metric in zip(("fp32", "bf16"), pair, strict=True):
                run = journal(f"{precision}-{seed}", lambda step: 1.0, [5, 5], metrics=(metric,))
                summary = {
                    "status": "completed",
                    "precision": {"used": precision},
                    "dataset": {"val_samples": 5000},
                    "samples_per_second": 100.0 if precision == "fp32" else 150.0,
                    "memory": {"peak_allocated_bytes": 4 << 30 if precision == "fp32" else 3 << 30},
                    "time": {"total_s": 9.0},
                    **(changes if precision != "fp32" else {}),
                }
                outcomes.append(read_outcome(piece(precision, seed, run), summary))
        return compare(tmp_path, "bf16", outcomes, by_image)

    return build


def flips(seeds, images, better, worse):
    """Return of each seed's images the first ones as turned right, the last ones as turned wrong."""
    by_image = np.zeros((seeds, images))
    by_image[:, :better] += 1
    by_image[:, images - worse :] -= 1
    return by_image


def test_one_seed_decides_nothing_and_says_what_would(result):
    found = result([0.9001], [0.9], flips(1, 10000, 5, 4))
    told = sentences(found)
    assert found.verdict == "undecided"
    assert told[0].startswith(
        "undecided: one seed does not show the noise between seeds: +0.01 points of acc1"
    )
    assert "to decide: --seeds 3 or more" in told
    assert any("1.50 times" in line for line in told)
    assert any("75 %" in line for line in told)


def test_more_seeds_put_the_noise_beside_the_difference(result):
    found = result([0.90, 0.92, 0.88], [0.9005, 0.9215, 0.881], flips(3, 20000, 0, 20))
    told = sentences(found)
    assert (found.verdict, found.difference.mean) == ("undecided", pytest.approx(-0.1))
    assert "95 % interval -0.23 to +0.03, 3 seeds" in told[0]
    assert any("FP32 2.03, bf16 2.00" in line for line in told)
    document = to_document(found)
    assert json.loads(json.dumps(document))["noise_points"] == {
        "fp32": pytest.approx(2.026, rel=1e-3),
        "bf16": pytest.approx(2.0),
    }
    assert len(document["runs"]) == 6


def test_an_undecided_comparison_names_the_seeds_or_the_images_that_would_decide(result):
    found = result([0.905, 0.907, 0.902], [0.9, 0.9, 0.9], flips(3, 1000, 50, 45))
    (told,) = [line for line in sentences(found) if line.startswith("to decide")]
    seeds, images = found.difference.needed()[0].seeds, found.difference.noise.images
    assert found.verdict == "undecided"
    assert f"--seeds {seeds}" in told or f"{images:,} validation images" in told


def test_a_metric_that_no_image_has_a_share_in_is_undecided(result):
    found = result([0.95, 0.96, 0.955], [0.9, 0.9, 0.9])
    assert found.verdict == "undecided"
    assert "can't be compared image by image" in sentences(found)[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"status": "diverged"}, "ended as diverged"),
        ({"status": "out_of_memory"}, "ended as out of memory"),
        ({"precision": {"used": "fp32"}}, "fell back to fp32"),
    ],
)
def test_a_precision_that_did_not_hold_out_differs_whatever_its_metric(result, changes, word):
    found = result([0.9], [0.9], **changes)
    assert found.verdict == "differs"
    assert any(word in line for line in sentences(found))


def test_a_metric_that_is_no_number_is_a_difference(result):
    found = result([nan], [0.9])
    assert found.verdict == "differs"
    assert sentences(found)


def test_a_validation_set_too_small_for_the_tolerance_is_told(result):
    (told,) = [
        line
        for line in sentences(result([0.9, 0.9], [0.9, 0.9], flips(2, 50, 0, 0)))
        if "validation images alone" in line
    ]
    assert told == "the 50 validation images alone leave 7.68 points either way open"
