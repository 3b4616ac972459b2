"""`mptui runs`: running, finished and crashed told apart, and two runs beside each other."""

import json
import os
import subprocess
import sys
import time

import pytest

from mptui.events import EpochFinished
from mptui.runs.directory import SUMMARY, claim, write_json
from mptui.runs.journal import NAME, Journal


def mptui(*arguments):
    command = [sys.executable, "-m", "mptui", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def a_run(folder, name, *, lr=0.1, losses=(2.0, 1.0), **summary):
    run = folder / name
    run.mkdir()
    run.joinpath("run.toml").write_text(
        f'description = "{name}"\n[training]\nlr = {lr}\nseed = 1\n[precision]\nmode = "auto"\n'
    )
    journal = Journal(run)
    for epoch, loss in enumerate(losses, 1):
        journal.write(
            EpochFinished(
                epoch=epoch,
                epochs=len(losses),
                train_loss=loss,
                train_metrics={},
                val_loss=loss,
                val_metrics={"acc1": 1 / loss},
                lr=lr,
                seconds=1.0,
            )
        )
    journal.close()
    base = {
        "status": "completed",
        "epochs": len(losses),
        "optimizer_steps": 10,
        "final": {"val_loss": losses[-1], "acc1": 1 / losses[-1]},
        "best": {"epoch": 2, "metric": "acc1", "value": 1 / losses[-1]},
        "samples_per_second": 100.0,
        "time": {"total_s": 60.0},
        "memory": {"peak_allocated_bytes": 1 << 30},
        "precision": {"used": "bf16"},
    }
    write_json(run / SUMMARY, base | summary)
    return run


def test_running_finished_crashed_and_silent_are_told_apart(tmp_path):
    a_run(tmp_path, "done")
    a_run(tmp_path, "dead", status="running")
    going = a_run(tmp_path, "going-with-a-name-that-is-rather-long-as-names-of-runs-are", status="running")
    silent = a_run(tmp_path, "silent", status="running")
    for run in (going, silent):
        claim(run)
    os.utime(silent / NAME, (time.time() - 600, time.time() - 600))
    listed = {run["run"]: run for run in json.loads(mptui("runs", "--runs-dir", tmp_path, "--json").stdout)}
    assert {name: run["status"] for name, run in listed.items()} == {
        "done": "completed",
        "dead": "crashed",
        going.name: "running",
        "silent": "running",
    }
    assert [name for name, run in listed.items() if "silent_s" in run] == ["silent"]
    assert listed["silent"]["silent_s"] >= 600
    shown = mptui("runs", "--runs-dir", tmp_path)
    assert going.name in shown.stdout
    assert "mptui attach" in shown.stderr


def test_two_runs_are_put_beside_each_other(tmp_path):
    a_run(tmp_path, "one", samples_per_second=100.0)
    a_run(tmp_path, "other", lr=0.2, losses=(2.0, 1.5, 0.5), samples_per_second=150.0)
    found = json.loads(mptui("runs", "compare", "one", "other", "--runs-dir", tmp_path, "--json").stdout)
    assert found["runs"] == ["one", "other"]
    assert found["settings"] == {"training.lr": [0.1, 0.2]}
    assert found["figures"]["final_acc1"] == [1.0, 2.0]
    assert found["figures"]["best_value"] == [1.0, 2.0]
    assert found["figures"]["samples_per_second"] == [100.0, 150.0]
    assert found["figures"]["peak_allocated_bytes"] == [1 << 30, 1 << 30]
    assert found["figures"]["total_s"] == [60.0, 60.0]
    assert found["curves"]["val_loss"] == [[2.0, 1.0], [2.0, 1.5, 0.5]]
    shown = mptui("runs", "compare", tmp_path / "one", tmp_path / "other").stdout
    lines = {line.split("  ")[0]: line for line in shown.splitlines()}
    assert lines["samples_per_second"].split() == ["samples_per_second", "100", "150", "+50.0", "%"]
    assert lines["training.lr"].split()[1:3] == ["0.1", "0.2"]
    assert lines["val_loss by epoch"].split()[-2:] == ["█▃", "█▆▁"]


def test_a_run_compared_with_one_that_has_nothing_yet(tmp_path):
    a_run(tmp_path, "one")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "run.toml").write_text("")
    found = json.loads(mptui("runs", "compare", "one", "empty", "--runs-dir", tmp_path, "--json").stdout)
    assert found["settings"]["training.lr"] == [0.1, None]
    assert found["figures"]["status"] == ["completed", "crashed"]
    assert found["curves"]["val_loss"] == [[2.0, 1.0], []]
    assert mptui("runs", "compare", "one", "empty", "--runs-dir", tmp_path).returncode == 0


@pytest.mark.parametrize(("second", "said"), [("missing", "no such run"), ("broken", "run.toml")])
def test_a_run_that_cant_be_compared_is_named(tmp_path, second, said):
    a_run(tmp_path, "one")
    (a_run(tmp_path, "broken") / "run.toml").write_bytes(b"[[[\xff")
    ended = mptui("runs", "compare", "one", second, "--runs-dir", tmp_path)
    assert ended.returncode == 6
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
