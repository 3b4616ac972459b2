"""Several processes train as one does with the same global batch."""

import shutil

import pytest
import torch
from PIL import Image

from mptui.engine.ranks.group import ALONE
from tests.engine.small import until_stopped
from tests.ranks.groups import in_group
from tests.ranks.training import (
    built,
    choose_precision,
    decide,
    dropout_masks,
    find_files,
    resume_in_a_window,
    take_pictures,
    train,
    train_both_ways,
    train_in_float64,
)

pytestmark = pytest.mark.slow

STEPS = {"batch_size": 8, "accumulate": 3, "lr": 0.05, "epochs": 25, "max_steps": 24, "clip_grad_norm": 1.0}
FORMS = {
    "fp32": (train, 1e-5, {"train": 42, "training": {**STEPS, "ema_decay": 0.9}}),
    "fp64": (train_in_float64, 1e-9, {"train": 42, "training": STEPS, "speed": {"fused": False}}),
    "ignored pixels": (
        train,
        1e-5,
        {"train": 26, "masks": True, "training": {**STEPS, "class_weights": [1.0, 3.0]}},
    ),
}

FEW_STEPS = {"batch_size": 8, "epochs": 25, "max_steps": 12, "lr": 0.02}
ADAMW = {**FEW_STEPS, "optimizer": "adamw", "lr": 0.01, "layer_decay": 0.9}
CLIPPED = {"clip_grad_norm": 1.0}  # its norm is rounded otherwise, which 16 bits make a step of
SHARDED_FORMS = {
    "an average, passes that some ranks lack": {
        "blocks": 2,
        "train": 42,
        "training": {**FEW_STEPS, **CLIPPED, "accumulate": 3, "ema_decay": 0.9},
    },
    "bf16 of which layers thaw": {"blocks": 2, "precision": "bf16", "training": {**ADAMW, "freeze": 2}},
    "fp16 in small passes": {
        "precision": "fp16",
        "train": 26,
        "training": {**FEW_STEPS, "optimizer": "adamw_schedule_free"},
        "memory": {"micro_batch": 3},
    },
    "foreach": {"masks": True, "training": {**ADAMW, **CLIPPED}, "speed": {"fused": False}},
}


@pytest.mark.parametrize("form", FORMS)
def test_two_and_three_ranks_train_as_one_process_does(form, tmp_path):
    """Of the last batch of an epoch with 2 samples, all but one rank read none."""
    function, tolerance, options = FORMS[form]
    (alone,) = in_group(1, function, str(tmp_path / "1"), options)
    assert len(alone["losses"]) == STEPS["max_steps"]
    assert alone["losses"][-1] < alone["losses"][0] / 2
    for world_size in (2, 3):
        found = in_group(world_size, function, str(tmp_path / str(world_size)), options)
        assert all(rank == found[0] for rank in found)
        for what in ("losses", "val_losses", "weights"):
            torch.testing.assert_close(
                torch.tensor(found[0][what], dtype=torch.float64),
                torch.tensor(alone[what], dtype=torch.float64),
                rtol=tolerance,
                atol=0,
            )
        assert found[0]["validations"] == alone["validations"]


def test_a_limited_time_is_that_of_the_first_rank(tmp_path):
    first, second = in_group(2, train, str(tmp_path), {"training": {"time": "6s", "batch_size": 8}})
    assert first == second
    assert len(first["losses"]) > 10  # of the 2 epochs of 5 steps without it


def test_what_is_measured_on_each_machine_is_decided_for_all(tmp_path):
    """The last rank has 8 GiB free, none for a snapshot; steps of 9 s, no compiler, room for 3 samples."""
    first, last = in_group(2, decide, str(tmp_path))
    assert first == last
    mode, reason, (slow, impossible), (snapshot, micro_batch) = first
    assert mode == "off"
    assert "do not fit in 2,048 MiB of memory" in reason
    assert slow[:2] == [6, True]
    assert impossible[:2] == [0, False]
    assert impossible[2][0] == "compile_impossible"
    assert (snapshot, micro_batch) == (False, 2)


def test_pictures_of_a_validation_are_those_of_all_ranks(tmp_path):
    (alone,) = in_group(1, take_pictures, str(tmp_path / "1"))
    first, *others = in_group(3, take_pictures, str(tmp_path / "3"))
    assert others == [[], []]
    for (groups, confusion), (expected, expected_confusion) in zip(first, alone, strict=True):
        assert confusion == expected_confusion
        for name, rows in expected.items():
            assert len(rows) == (12 if name == "by class" else 16)
            assert [row[:3] for row in groups[name]] == [row[:3] for row in rows]
            assert [row[4] for row in groups[name]] == [row[4] for row in rows]
            errors = [row[3] for row in rows]
            assert [row[3] for row in groups[name]] == pytest.approx(errors, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("world_size", [2, 3])
def test_sharded_weights_take_the_steps_of_whole_ones(world_size, tmp_path):
    found = in_group(world_size, train_both_ways, str(tmp_path), SHARDED_FORMS)
    assert all(rank == found[0] for rank in found)
    for form, (whole, sharded) in found[0].items():
        assert len(whole["losses"]) == FEW_STEPS["max_steps"]
        assert min(whole["losses"]) < 0.7 * whole["losses"][0], form
        for what in ("losses", "val_losses", "weights"):
            assert sharded[what] == pytest.approx(whole[what], rel=1e-5), (form, what)
        assert sharded["validations"] == whole["validations"], form
        assert sharded["others"] == whole["others"], form


def test_ranks_on_different_devices_switch_to_the_same_precision(tmp_path):
    """`auto` is bf16 on rank 0 and fp32 on the other; so are the precisions to fall back to."""
    assert in_group(2, choose_precision, str(tmp_path)) == [["bf16", ["bf16", "fp32"]]] * 2


def test_rank_0_scans_files_for_all(tmp_path):
    for number in range(12):
        folder = tmp_path / "data" / ("dark", "bright")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / f"{number}.png")
    (*first, scans), (*last, none) = in_group(2, find_files, str(tmp_path / "data"), False)
    assert first == last
    assert len(first[0]) == 10
    assert (scans, none) == (1, 0)
    first, last = in_group(2, find_files, str(tmp_path / "data"), True)
    assert first == f"rank 1: {last}"
    assert last.startswith("the data differs: rank 0 has ")


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled_ranks_take_the_steps_of_one_eager_process(tmp_path, monkeypatch):
    """With accumulation, and DDP's buckets of gradients in between, for which dynamo splits the graph."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"training": {"epochs": 2, "batch_size": 8, "accumulate": 2, "lr": 0.05}, "val": 8}
    compiled = {**options, "speed": {"compile": "default", "channels_last": False}, "force_compile": True}
    (alone,) = in_group(1, train, str(tmp_path / "1"), options)
    first, last = in_group(2, train, str(tmp_path / "2"), compiled)
    assert first == last
    assert first["others"] == [], "neither undone nor failed"
    for what in ("losses", "val_losses", "weights"):
        assert first[what] == pytest.approx(alone[what], rel=1e-5)


def test_ranks_draw_different_dropout_masks(tmp_path):
    first, last = in_group(2, dropout_masks, str(tmp_path))
    masks = [tuple(mask) for mask in (*first, *last)]
    assert len(set(masks)) == len(masks) == 4


@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_a_run_stopped_in_a_window_counts_each_sample_once_with_more_ranks(pieces, tmp_path):
    """It stops after so many micro-batches of 4 samples, two of each batch, in windows of three batches."""
    options = {
        "training": {"epochs": 1, "batch_size": 8, "accumulate": 3},
        "memory": {"micro_batch": 4},
        "train": 42,
    }
    trainer, _ = built(ALONE, tmp_path / "1", **options)
    until_stopped(trainer, pieces)
    accuracies = []
    for world_size in (1, 2, 3):
        folder = tmp_path / f"on {world_size}"
        shutil.copytree(tmp_path / "1", folder)
        (counts, metrics), *others = in_group(world_size, resume_in_a_window, str(folder), options)
        assert counts == [42]
        assert all(each == [counts, metrics] for each in others)
        accuracies.append(metrics["acc1"])
    assert accuracies == [accuracies[0]] * 3
