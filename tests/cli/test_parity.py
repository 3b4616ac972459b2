"""`mptui parity` as a person meets it: real runs on the CPU, stopped, gone on with, and made to disagree."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mptui.runs.directory import owner_of

DEADLINE_S = 300
TINY = {
    "MPTUI_DATA_SAMPLES": "16",
    "MPTUI_DATA_IMAGE_SIZE": "16",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_MODEL_WIDTH": "4",
    "MPTUI_MODEL_DEPTH": "1",
    "MPTUI_TRAINING_BATCH_SIZE": "4",
    "MPTUI_TRAINING_OPTIMIZER": "adamw",
    "MPTUI_LOGGING_STEP_INTERVAL_S": "0",
    # a loss scaled so low that all fp16 gradients are 0: it trains, and learns nothing
    "MPTUI_PRECISION_GRAD_SCALER_INIT_SCALE": "1e-9",
    "MPTUI_PRECISION_GRAD_SCALER_MIN_SCALE": "1e-9",
    "MPTUI_PRECISION_GRAD_SCALER_GROWTH_INTERVAL": "1000000",
    "OMP_NUM_THREADS": "1",
}


def command(folder, precision, *arguments):
    flags = ["--model", "unet", "--epochs", "3", "--lr", "0.03", "--runs-dir", str(folder), "--name", "both"]
    return [sys.executable, "-m", "mptui", "parity", *flags, "--precision", precision, *arguments]


def parity(folder, precision, *arguments):
    return subprocess.run(
        command(folder, precision, *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, **TINY},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison that ctrl+c stopped in its first training."""
    runs = tmp_path_factory.mktemp("runs")
    process = subprocess.Popen(
        command(runs, "bf16"),
        env={**os.environ, **TINY},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = runs / "both/fp32-seed0/events.jsonl"
    deadline = time.monotonic() + DEADLINE_S
    while not (journal.exists() and '"event":"step"' in journal.read_text()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, told
    assert "--name both" in told
    assert "Traceback" not in told
    assert owner_of(journal.parent) is None
    assert not (runs / "both/parity.json").exists()
    return runs


@pytest.fixture(scope="module")
def bf16(folder):
    """The same comparison, gone on with to its end."""
    ended = parity(folder, "bf16", "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_stopped_comparison_goes_on_and_tells_all_of_both(bf16, folder):
    assert bf16["metric"] == "iou"
    assert bf16["verdict"] in {"agrees", "differs"}
    assert bf16["difference_points"]["low"] is None
    assert any("noise between seeds is unknown" in line for line in bf16["sentences"])
    assert {gap["curve"] for gap in bf16["largest_gaps"]} == {"training loss", "validation loss", "iou"}
    assert bf16["speedup"] > 0
    runs = {run["precision"]: run for run in bf16["runs"]}
    assert all(runs[name]["status"] == "completed" for name in ("fp32", "bf16"))
    assert all(runs[name]["peak_bytes"] > 0 for name in ("fp32", "bf16"))
    configs = [(folder / "both" / f"{name}-seed0/run.toml").read_text() for name in ("fp32", "bf16")]
    assert [line for line in configs[0].splitlines() if line not in configs[1]] == [
        'mode = "fp32"',
        "tf32 = false",
    ]
    assert json.loads((folder / "both/parity.json").read_text()) == bf16


def test_both_begin_from_the_same_weights_and_batches(bf16, folder):
    losses = [first_loss(folder / "both" / f"{name}-seed0") for name in ("fp32", "bf16")]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_planted_disagreement_is_told(bf16, folder):
    before = (folder / "both/fp32-seed0/summary.json").stat().st_mtime_ns
    ended = parity(folder, "fp16", "--strict")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "fp16 differs from FP32 with this one seed" in ended.stdout
    assert "training loss parts most in" in ended.stdout
    assert "Traceback" not in ended.stderr
    assert (folder / "both/fp32-seed0/summary.json").stat().st_mtime_ns == before  # taken as it was


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("fp32",), 2, "--precision bf16"),
        (("bf16", "--seeds", "0"), 2, "--seeds"),
        (("bf16", "--set", "training.epoch=3"), 2, "training.epochs"),
        (("bf16", "--set", "model.width=8"), 2, "other settings"),
    ],
)
def test_a_mistake_is_two_lines_and_its_code(folder, arguments, code, word):
    ended = parity(folder, *arguments)
    assert ended.returncode == code, ended.stderr
    assert word in ended.stderr
    assert "Traceback" not in ended.stderr


def first_loss(run):
    lines = (run / "events.jsonl").read_text().splitlines()
    return next(json.loads(line)["loss"] for line in lines if '"event":"step"' in line)
