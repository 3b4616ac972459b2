"""`mptui run` as a launcher starts it: once for each rank."""

import json

import pytest

from tests.program import Program, run_to_end
from tests.ranks.groups import environs, in_group
from tests.ranks.training import obey_commands

pytestmark = pytest.mark.slow

ARGUMENTS = (
    *("--model", "unet", "--set", "model.width=8", "--set", "model.depth=1", "--set", "model.norm=group"),
    *("--data", "shapes", "--set", "data.image_size=16", "--set", "data.samples=42", "--precision", "fp32"),
    *("--batch-size", "8", "--workers", "0", "--lr", "0.05", "--no-compile"),
    *("--set", "training.schedule=constant", "--set", "training.warmup_epochs=0"),
    *("--set", "guards.numerics=off", "--set", "logging.step_interval_s=0"),
)


def run(world_size, folder, *arguments):
    """Run it in so many processes; return the result of each."""
    each = environs(world_size) if world_size > 1 else [{}]
    ranks = [Program(*arguments, "--runs-dir", folder, environ=environ) for environ in each]
    told = [rank.communicate() for rank in ranks]
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, told, strict=True)]


def events(folder, kind):
    lines = (folder / "a" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_run_goes_on_with_any_number_of_processes_and_only_the_first_tells_of_it(tmp_path):
    """They take the steps that one process takes, each sample once an epoch, with sharded weights or not."""
    alone, several = tmp_path / "alone", tmp_path / "several"
    average = ("--set", "training.ema_decay=0.9")
    run_to_end("run", *ARGUMENTS, *average, "--name", "a", "--runs-dir", alone, "--epochs", "2")
    for world_size, shard, last in ((2, False, 3), (1, False, 5), (2, True, 8), (3, False, 12)):
        how = ("run", *ARGUMENTS, *average, "--name", "a", "--resume", "--epochs", "2")
        sharded = ("--set", f"memory.shard={str(shard).lower()}")
        results = run(world_size, several, *how, *sharded, "--max-steps", str(last))
        assert [code for code, _, _ in results] == [0] * world_size, results
        assert all((out, err) == ("", "") for _, out, err in results[1:])
    found, expected = events(several, "step"), events(alone, "step")
    assert [event["step"] for event in found] == list(range(1, 13))
    assert [event["loss"] for event in found] == pytest.approx([e["loss"] for e in expected], rel=1e-4)
    assert found[-1]["samples_seen"] == expected[-1]["samples_seen"] == 84
    assert events(several, "validated")[-1]["metrics"] == pytest.approx(
        events(alone, "validated")[-1]["metrics"], abs=1e-3
    )


def test_a_signal_to_any_rank_stops_all_at_the_same_step_with_a_checkpoint(tmp_path):
    ranks = [
        Program("run", *ARGUMENTS, "--name", "a", "--epochs", "500", "--runs-dir", tmp_path, environ=environ)
        for environ in environs(2)
    ]
    for line in ranks[0].stderr:
        if "step" in line:
            break
    ranks[1].send_signal(15)
    ends = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [143, 143], ends
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["status"] == "stopped"
    saved = events(tmp_path, "checkpoint_saved")
    assert saved[-1]["step"] == summary["optimizer_steps"]


def test_all_ranks_obey_commands_at_the_same_step(tmp_path):
    """Commands come to rank 0, signals to any rank."""
    first, second = in_group(2, obey_commands, str(tmp_path))
    assert first == second
    assert first["ended"] == 15
    assert first["step"] in {6, 7}
    steps = {what: step for step, what in first["heard"]}
    assert 2 <= steps["Paused"] == steps["Resumed"] <= 3


@pytest.mark.parametrize("shard", [False, True])
def test_rank_0_makes_the_images_of_a_diffusion_run_also_of_sharded_weights(shard, tmp_path):
    small = ("--model", "diffusion_unet", "--set", "model.width=8", "--set", "model.depth=1")
    data = ("--data", "shapes", "--set", "data.image_size=8", "--set", "data.samples=8", "--workers", "0")
    images = ("--set", "sampling.count=3", "--set", "sampling.steps=2", "--set", "training.ema_decay=0.9")
    steps = ("--batch-size", "4", "--epochs", "2", "--precision", "fp32", "--no-compile")
    how = ("--name", "a", "--set", f"memory.shard={str(shard).lower()}")
    results = run(2, tmp_path, "run", *small, *data, *images, *steps, *how)
    assert [code for code, _, _ in results] == [0, 0], results
    made = events(tmp_path, "images_generated")
    assert made
    for event in made:
        assert event["images"] == 3
        assert (tmp_path / "a" / event["path"]).is_file()
    assert made[-1]["step"] == events(tmp_path, "step")[-1]["step"], "those of the trained network"


def test_batches_that_would_leave_a_rank_a_single_sample(tmp_path):
    """Of the last 3 of 19 samples, one rank reads all; whole batches of 3 for two ranks are refused.

    ResNet's last feature maps are 1 x 1 here, so that BatchNorm can't be trained on one sample.
    """
    small = ("--model", "resnet18", "--data", "shapes", "--set", "data.image_size=32", "--workers", "0")
    data = ("--set", "data.samples=19", "--epochs", "1", "--precision", "fp32", "--no-compile", "--name", "a")
    results = run(2, tmp_path / "tail", "run", *small, *data, "--batch-size", "4")
    assert [code for code, _, _ in results] == [0, 0], results
    summary = json.loads((tmp_path / "tail" / "a" / "summary.json").read_text())
    assert summary["samples_seen"] == summary["dataset"]["train_samples"] == 19
    results = run(2, tmp_path / "whole", "run", *small, *data, "--batch-size", "3")
    assert [code for code, _, _ in results] == [2, 2], results
    assert "training.batch_size = 3 over 2 processes: BatchNorm can't be trained" in results[0][2]
    assert "set --batch-size to 4 or more" in results[0][2]
