"""`mptui run`, `resume` and `runs` from the command line: real files, and a real signal."""

import json
import math
import signal

import numpy as np
import pytest
import tomli
from PIL import Image

from tests import small_cnn
from tests.cli.calls import call
from tests.data.images import class_folders
from tests.made.json_documents import checked, failed
from tests.made.waiting import wait_until
from tests.program import DEADLINE_S, Program

TINY = {
    "MPTUI_DATA_SAMPLES": "24",
    "MPTUI_DATA_IMAGE_SIZE": "32",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_TRAINING_BATCH_SIZE": "8",
    "MPTUI_LOGGING_STEP_INTERVAL_S": "0",
    "MPTUI_LOGGING_PICTURES": "0",
    "MPTUI_GUARDS_NUMERICS": "off",
    "OMP_NUM_THREADS": "1",
}

SMALLEST = small_cnn.NAME
"""The classifier that trains and saves in the shortest time; forks of the tests have it."""


def mptui(*arguments):
    return call(*arguments, environ=TINY)


def events(run):
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def losses(run):
    return [event["loss"] for event in events(run) if event["event"] == "step"]


def test_a_run_leaves_a_directory_that_says_what_happened_and_repeats_it(tmp_path):
    flags = ("--profile", "fast", "--model", SMALLEST, "--epochs", 2)
    ended = mptui("run", *flags, "--runs-dir", tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    summary = checked("run", json.loads(ended.stdout))
    (run,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert summary["status"] == "completed"
    assert summary["run"] == run.name
    assert summary["optimizer_steps"] == 6
    assert summary["samples_seen"] == 48
    assert summary["dataset"] == {"name": "shapes", "train_samples": 24, "val_samples": 12, "classes": 8}
    assert {"train_loss", "val_loss", "acc1", "acc5", "macro_f1"} <= set(summary["final"])
    assert set(summary["precision"]) == {"requested", "used", "reason"}
    assert json.loads((run / "summary.json").read_text()) == summary
    kinds = [event["event"] for event in events(run)]
    assert kinds[-1] == "run_finished"
    for kind in ("run_started", "epoch_started", "step", "validated", "epoch_finished", "checkpoint_saved"):
        assert kind in kinds
    assert all({"event", "time", "step"} <= set(event) for event in events(run))
    assert (run / "checkpoints" / "last").exists()
    assert (run / "checkpoints" / "best").exists()
    assert json.loads((run / "environment.json").read_text())["packages"]["torch"]
    assert run.stat().st_mode & 0o777 == 0o700

    again = mptui("run", "--profile", run / "run.toml", "--runs-dir", tmp_path, "--name", "again", "--json")
    assert again.returncode == 0, again.stderr
    assert losses(tmp_path / "again") == losses(run)

    listed = mptui("runs", "--runs-dir", tmp_path, "--json")
    assert {entry["run"]: entry["status"] for entry in json.loads(listed.stdout)["runs"]} == {
        run.name: "completed",
        "again": "completed",
    }


def test_dry_run_prints_a_profile_with_the_source_of_each_value(tmp_path):
    ended = mptui("run", "--profile", "stable", "--lr", "0.2", "--dry-run", "--runs-dir", tmp_path)
    assert ended.returncode == 0, ended.stderr
    document = tomli.loads(ended.stdout)
    assert document["training"]["lr"] == 0.2
    assert document["training"]["batch_size"] == 8
    lines = {line.split(" = ")[0]: line for line in ended.stdout.splitlines() if " = " in line}
    assert lines["lr"].endswith("# --lr")
    assert lines["batch_size"].endswith("# MPTUI_TRAINING_BATCH_SIZE")
    assert "# profile stable" in lines["clip_grad_norm"]
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def test_dry_run_says_the_effective_rate_and_where_the_warm_up_is_cut(tmp_path):
    flags = ["--profile", "production", "--model", "resnet18", "--epochs", 5, "--batch-size", 16]
    ended = mptui("run", *flags, "--dry-run", "--runs-dir", tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = ended.stderr.splitlines()
    assert (
        "Effective: lr 0.025 for a batch of 16 (0.1 for 64, scaled linear), after 0.5 epochs of warm-up, "
        "cosine schedule"
    ) in told
    assert "Warm-up: 0.5 epochs, not 5: at most 10% of the run (training.warmup_max_fraction)" in told


LONG = ["--profile", "stable", "--model", SMALLEST, "--epochs", 5, "--seed", 3]
"""Flags of a run that lasts until a signal reaches it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The undisturbed run."""
    runs = tmp_path_factory.mktemp("runs")
    ended = mptui("run", *LONG, "--runs-dir", runs, "--name", "whole", "--quiet")
    assert ended.returncode == 0, ended.stderr
    return runs / "whole"


@pytest.mark.program
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
    ids=["SIGTERM", "SIGINT"],
)
def test_a_signal_saves_and_stops_and_resume_goes_on_bit_for_bit(tmp_path, whole, number, code):
    process = Program("run", *LONG, "--runs-dir", tmp_path, "--name", "cut", environ=TINY)
    run = tmp_path / "cut"
    wait_for(lambda: (run / "events.jsonl").exists() and len(losses_so_far(run)) >= 2, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, told
    taken = len(losses(run))
    assert 2 <= taken < len(losses(whole))
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["exit_code"]) == ("stopped", code)

    resumed = mptui("resume", "cut", "--runs-dir", tmp_path, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(run) == losses(whole)
    assert checked("resume", json.loads(resumed.stdout))["final"] == final(whole)


def test_a_folder_of_pictures_is_learnt_and_its_broken_files_are_named(tmp_path):
    data = tmp_path / "data"
    class_folders(data, {"cat": 3, "dog": 3})
    (data / "cat" / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing more")
    Image.fromarray(np.full((64, 64), np.nan, np.float32)).save(data / "dog" / "nan.tif")
    flags = ["--model", SMALLEST, "--data", data, "--epochs", 1, "--runs-dir", tmp_path / "runs"]
    ended = mptui("run", *flags, "--set", "data.bad_sample_budget=0.2", "--json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["dataset"]["classes"] == 2
    warnings = [warning["message"] for warning in summary["warnings"]]
    assert any("torn.jpg" in message for message in warnings)
    assert any("nan.tif" in message and "NaN" in message for message in warnings)
    assert math.isfinite(summary["final"]["train_loss"])

    strict = mptui("run", *flags, "--set", "data.bad_sample_budget=0")
    assert strict.returncode == 3
    assert "torn.jpg" in strict.stderr
    assert "Traceback" not in strict.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["run", "--profile", "fsat"], 2, "fast"),
        (["run", "--model", "resnet81"], 2, "resnet18"),
        (["run", "--epochs", "many"], 2, "--epochs"),
        (["run", "--set", "training.epoch=3"], 2, "training.epochs"),
        (["run", "--device", "cuda:7"], 2, "cpu"),
        (["run", "--data", "./not/there"], 3, "not/there"),
        (["run", "--model", "unet", "--data", "cifar10"], 3, "unet"),
        (["run", "--data", "cifar10", "--set", "data.path=not-there"], 3, "--download"),
        (["run", "--set", "model.weights=not-there.pth"], 2, "not-there.pth"),
        (["resume", "nothing"], 6, "nothing"),
        (["run", "--name", "../up"], 2, "--name"),
    ],
)
def test_a_mistake_gets_one_line_a_remedy_and_its_code(tmp_path, arguments, code, named):
    ended = mptui(*arguments, "--runs-dir", tmp_path)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line]
    assert any(line.startswith("mptui: ") for line in lines)
    assert lines[-1].startswith("  ")
    assert named in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == []  # an error leaves no failed run behind


def test_a_run_directory_that_cant_be_written_is_a_disk_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ended = mptui("run", "--runs-dir", tmp_path / "file")
    assert ended.returncode == 7
    assert "--runs-dir" in ended.stderr


def test_a_diverging_run_ends_with_its_code_and_a_report(tmp_path):
    ended = mptui(
        *("run", "--model", "unet", "--set", "model.width=4", "--set", "model.depth=2"),
        *("--lr", "1e20", "--epochs", 50, "--runs-dir", tmp_path, "--name", "up"),
        *("--set", "training.warmup_epochs=0", "--set", "guards.max_skipped_streak=3"),
        *("--set", "guards.max_recoveries=1", "--json"),
    )
    assert ended.returncode == 4, ended.stderr
    told = failed(checked("run", json.loads(ended.stdout)))
    assert (told["status"], told["exit_code"]) == ("diverged", 4)
    summary = json.loads((tmp_path / "up" / "summary.json").read_text())
    assert summary["status"] == "diverged"
    assert summary["skipped_steps"] >= 3
    assert "lr" in ended.stderr
    assert "DivergedError" in (tmp_path / "up" / "traceback.txt").read_text()


def test_masks_are_learnt_by_a_unet(tmp_path):
    ended = mptui(
        *("run", "--model", "unet", "--epochs", 1, "--runs-dir", tmp_path, "--json"),
        *("--set", "model.width=4", "--set", "model.depth=2", "--precision", "bf16"),
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["task"] == "segmentation"
    assert summary["precision"]["used"] == "bf16"
    assert {"iou", "dice"} <= set(summary["final"])


def test_images_alone_are_learnt_by_a_diffusion_unet(tmp_path):
    class_folders(tmp_path / "data", {".": 24})
    ended = mptui(
        *("run", "--data", tmp_path / "data", "--epochs", 1, "--runs-dir", tmp_path / "runs", "--json"),
        *("--set", "model.width=8", "--set", "model.depth=1", "--set", "data.image_size=16"),
        *("--set", "sampling.count=2", "--set", "sampling.steps=2"),
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["task"], summary["model"]) == ("diffusion", "diffusion_unet")
    assert set(summary["final"]) == {"train_loss", "val_loss", "r2"}
    assert summary["best"]["metric"] == "r2"
    assert summary["final"]["r2"] == pytest.approx(1 - summary["final"]["val_loss"], abs=0.05)


def losses_so_far(run):
    text = (run / "events.jsonl").read_text()
    return [line for line in text.splitlines() if '"event":"step"' in line]


def final(run):
    return json.loads((run / "summary.json").read_text())["final"]


def wait_for(condition, process):
    """Poll until it holds; fails if the process has ended, or after five minutes."""
    wait_until(lambda: condition() or process.poll() is not None)
    assert process.poll() is None, process.stderr.read()


def test_a_run_whose_data_has_moved_goes_on_with_the_folder_that_is_named(tmp_path):
    class_folders(tmp_path / "photos", {"cat": 3, "dog": 3})
    where = ("--runs-dir", tmp_path / "runs")
    begun = mptui(
        "run", "--data", tmp_path / "photos", "--model", SMALLEST, "--epochs", 1, "--name", "one", *where
    )
    assert begun.returncode == 0, begun.stderr
    (tmp_path / "photos").rename(tmp_path / "moved")
    more = ("resume", "one", "--epochs", 2, *where)
    refused = mptui(*more)
    assert refused.returncode == 3
    assert refused.stderr.splitlines()[-2:] == [
        f"mptui: no such folder: {tmp_path / 'photos'}",
        "  say where the data of the run is now: mptui resume RUN --data DIR",
    ]
    ended = mptui(*more, "--data", tmp_path / "moved")
    assert ended.returncode == 0, ended.stderr
    settings = tomli.loads((tmp_path / "runs" / "one" / "run.toml").read_text())
    assert settings["data"]["path"] == str(tmp_path / "moved")
