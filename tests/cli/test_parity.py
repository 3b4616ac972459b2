"""`mptui parity` from the command line: real CPU runs, interrupted, resumed, and made to disagree."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest

from mptui.cli.measure.parity import _report
from mptui.errors import ConfigError, DiskError
from mptui.lab.measure.parity import (
    Stop,
    _failure,
    is_done,
    make_folder,
    plan_comparison,
    read_outcome,
    train,
)
from mptui.runs.planning.plan import Request
from mptui.runs.store.directory import write_json
from mptui.runs.store.lock import owner_of
from tests.forks import FORKING
from tests.made.json_documents import checked
from tests.program import DEADLINE_S, Program, run_to_end, server

pytestmark = pytest.mark.slow

TINY = {
    "MPTUI_DATA_SAMPLES": "16",
    "MPTUI_DATA_IMAGE_SIZE": "16",
    "MPTUI_DATA_WORKERS": "0",
    "MPTUI_MODEL_WIDTH": "4",
    "MPTUI_MODEL_DEPTH": "1",
    "MPTUI_TRAINING_BATCH_SIZE": "4",
    "MPTUI_TRAINING_OPTIMIZER": "adamw",
    "MPTUI_LOGGING_STEP_INTERVAL_S": "0",
    # a loss scale so low that all fp16 gradients are 0: it trains, and learns nothing
    "MPTUI_PRECISION_GRAD_SCALER_INIT_SCALE": "1e-9",
    "MPTUI_PRECISION_GRAD_SCALER_MIN_SCALE": "1e-9",
    "MPTUI_PRECISION_GRAD_SCALER_GROWTH_INTERVAL": "1000000",
    "OMP_NUM_THREADS": "1",
}
ENVIRON = {**os.environ, **TINY}


def command(folder, precision, *arguments):
    flags = ["--model", "unet", "--epochs", "3", "--lr", "0.03", "--runs-dir", str(folder), "--name", "both"]
    return ["parity", *flags, "--precision", precision, *arguments]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A comparison that ctrl+c interrupted in its first training."""
    runs = tmp_path_factory.mktemp("runs")
    process = Program(*command(runs, "bf16"), environ=TINY, call=FORKING)
    journal = runs / "both/fp32-seed0/events.jsonl"
    deadline = time.monotonic() + DEADLINE_S
    while not (journal.exists() and '"event":"step"' in journal.read_text()):
        assert process.poll() is None
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
def fp16(folder):
    """The same comparison, continued to its end in a precision that can't learn here."""
    ended = run_to_end(*command(folder, "fp16", "--strict"), environ=TINY, call=FORKING)
    assert "Traceback" not in ended.stderr
    return ended


@pytest.fixture(scope="module")
def comparison():
    flags = {
        "model.name": ("--model", "unet"),
        "training.epochs": ("--epochs", 3),
        "training.lr": ("--lr", 0.03),
    }
    return plan_comparison(
        Request(None, {**flags, "precision.mode": ("--precision", "bf16")}, (), ENVIRON), 1
    )


def test_a_planted_disagreement_is_told(fp16, folder):
    assert fp16.returncode == 1, fp16.stdout + fp16.stderr
    assert "undecided: one seed does not show the noise between seeds" in fp16.stdout
    assert "to decide: --seeds 3 or more" in fp16.stdout
    assert "training loss differs most in" in fp16.stdout
    assert [line.split()[:3] for line in fp16.stdout.splitlines()[:3]] == [
        ["seed", "precision", "status"],
        ["0", "fp32", "completed"],
        ["0", "fp16", "completed"],
    ]
    assert json.loads((folder / "both/parity.json").read_text())["verdict"] == "undecided"


def test_another_precision_takes_the_fp32_that_is_there_and_tells_all_of_both(
    fp16, folder, comparison, capsys
):
    both = make_folder(comparison, folder, "both")
    before = (both / "fp32-seed0/summary.json").stat().st_mtime_ns
    outcomes = []
    for piece in comparison.pieces(both):
        summary = train(piece, server(), ENVIRON, Stop(), quiet=True)
        assert summary is not None
        outcomes.append(read_outcome(piece, summary))
    assert (both / "fp32-seed0/summary.json").stat().st_mtime_ns == before
    assert _report(both, comparison, outcomes, Stop(), as_json=True, strict=False) == 0
    document = checked("parity", json.loads(capsys.readouterr().out))
    assert json.loads((both / "parity.json").read_text()) == document
    assert (document["metric"], document["precision"]) == ("iou", "bf16")
    assert document["verdict"] == "undecided"
    assert document["difference_points"]["low"] is None
    assert document["difference_points"]["noise"]["images"] > 1
    assert any("one seed does not show the noise" in line for line in document["sentences"])
    assert {gap["curve"] for gap in document["largest_gaps"]} == {"training loss", "validation loss", "iou"}
    assert document["speedup"] > 0
    runs = {run["precision"]: run for run in document["runs"]}
    assert all(runs[name]["status"] == "completed" for name in ("fp32", "bf16"))
    assert all(runs[name]["peak_bytes"] > 0 for name in ("fp32", "bf16"))
    configs = [(both / f"{name}-seed0/run.toml").read_text() for name in ("fp32", "bf16")]
    assert [line for line in configs[0].splitlines() if line not in configs[1]] == [
        'mode = "fp32"',
        'matmul = "highest"',
    ]
    losses = [first_loss(both / f"{name}-seed0") for name in ("fp32", "bf16")]
    assert losses[0] != losses[1]  # the same weights and batches, other values
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_comparison_of_the_same_name_with_other_settings_is_refused(folder, comparison):
    other = plan_comparison(replace(comparison.request, sets=("model.width=8",)), 1)
    with pytest.raises(ConfigError, match="other settings"):
        make_folder(other, folder, "both")
    more = plan_comparison(comparison.request, 3)
    assert make_folder(more, folder, "both") == folder / "both"
    assert len(list(more.pieces(folder))) == 6


@pytest.mark.parametrize(
    ("sets", "seeds", "word"), [(("precision.mode=fp32",), 1, "FP32 against FP32"), ((), 0, "--seeds 0")]
)
def test_what_can_not_be_compared_is_refused(comparison, sets, seeds, word):
    with pytest.raises(ConfigError, match=word):
        plan_comparison(replace(comparison.request, sets=sets), seeds)


def test_a_training_that_fails_ends_the_comparison_with_its_code(comparison, tmp_path):
    piece = next(iter(comparison.pieces(tmp_path)))
    piece.run.mkdir()
    write_json(
        piece.run / "summary.json", {"status": "failed", "error": {"message": "no room", "hint": "make room"}}
    )
    with pytest.raises(DiskError, match="fp32, seed 0: no room"):
        raise _failure(piece, 7, json.loads((piece.run / "summary.json").read_text()))
    assert "SIGKILL" in str(_failure(piece, -9, {}))
    assert not is_done(piece, {"status": "diverged"})  # without FP32 there is no reference
    assert is_done(replace(piece, precision="bf16"), {"status": "diverged"})


def test_a_stop_before_a_training_trains_nothing(comparison, tmp_path):
    stop = Stop()
    stop.ask(signal.SIGTERM)
    piece = next(iter(comparison.pieces(tmp_path)))
    assert train(piece, server(), ENVIRON, stop, quiet=True) is None
    assert not piece.run.exists()


def test_own_code_is_trusted_in_the_trainings_too(tmp_path):
    (tmp_path / "mynet.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),\n"
        "                         nn.Linear(4, num_classes))\n"
    )
    flags = ["--model", "mynet:Net", "--data", "shapes", "--precision", "bf16", "--epochs", "1"]
    flags += ["--seeds", "2", "--trust-code", "--strict", "--json"]
    environ = {name: value for name, value in TINY.items() if not name.startswith("MPTUI_MODEL")}
    ended = run_to_end("parity", *flags, folder=tmp_path, environ=environ, call=FORKING)
    assert ended.returncode == 1, ended.stderr
    document = json.loads(ended.stdout)
    assert [run["status"] for run in document["runs"]] == ["completed"] * 4
    found = document["difference_points"]
    assert (document["verdict"], found["low"] < found["mean"] < found["high"]) == ("undecided", True)
    assert found["needed"]


def first_loss(run):
    lines = (run / "events.jsonl").read_text().splitlines()
    return next(json.loads(line)["loss"] for line in lines if '"event":"step"' in line)
