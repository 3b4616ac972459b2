import csv
import errno
import math
import os
import re
from dataclasses import replace
from typing import Any

import pytest

from mptui.events import DeviceProcess, DeviceSample, EpochFinished, EpochStarted, Event, RunFinished
from mptui.hardware.describe import COLUMNS
from mptui.io.files import LineFile
from mptui.runs.store.files import DEVICE_CSV, TRAIN_LOG, Records
from mptui.runs.view.specs import epoch_lines
from tests.made.events import step_of

START = 1_700_000_000.0


def step(number, moment, lr=1e-5):
    speed: dict[str, Any] = {"samples_per_second": 128.0, "step_time_s": 0.25}
    return step_of(number, time=START + moment, loss=2.0, lr=lr, **speed)


def recorded(run, *events: Event):
    records = Records(run)
    for event in events:
        records.handle(event)
    records.beat(lambda _: None, 0)
    records.close()


def log(run):
    return (run / TRAIN_LOG).read_text().splitlines()


def test_the_log_has_the_rate_of_steps_for_grep(tmp_path):
    finished = EpochFinished(
        time=START + 13, epoch=1, epochs=1, train_loss=2.0, train_metrics={}, lr=1e-5, seconds=13.0
    )
    steps = [step(1, 1), step(2, 2), step(3, 12, lr=5e-6), step(4, 13)]
    recorded(tmp_path, EpochStarted(time=START, epoch=1, epochs=1, steps=4), *steps, finished)

    with_rate = [line for line in log(tmp_path) if "lr:" in line]
    # the first, one ten seconds later, and the last of the epoch
    assert [re.findall(r"step \S+", line)[0] for line in with_rate] == ["step 1/4", "step 3/4", "step 4/4"]
    assert with_rate[1].endswith("loss: 2.0000  lr: 5.00e-06  128.0 img/s  4.00 it/s")
    assert "Epoch 1/1" in log(tmp_path)[-1]
    (line,) = epoch_lines(replace(finished, samples_per_second=800.0, training_s=12.5, seconds=14.1))
    assert line.endswith("  800.0 img/s in 12.5 s of 14.1 s")  # 10,000 images, and their validation


def test_a_resumed_run_appends_and_a_torn_line_goes(tmp_path):
    recorded(tmp_path, step(1, 0))
    with (tmp_path / TRAIN_LOG).open("a") as file:
        file.write("2023-11-14 torn")
    end: dict[str, Any] = {"status": "completed", "exit_code": 0, "directory": "runs/one", "seconds": 7.0}

    recorded(tmp_path, step(2, 60), RunFinished(time=START + 60, **end))

    assert [line.split("  ")[1] for line in log(tmp_path)] == [
        "epoch 1 step 1",
        "epoch 1 step 2",
        "completed after 7 s",
    ]


def test_rows_of_the_device_repeat_the_processes_until_they_change(tmp_path):
    process = DeviceProcess(pid=7, user="anna", command="python train.py", memory=1024)
    sample = DeviceSample(time=START, name="gpu", device="cuda:0", utilisation=0.5, processes=[process])
    recorded(tmp_path, sample, DeviceSample(time=START + 1, name="gpu", device="cuda:0"))
    recorded(tmp_path, DeviceSample(time=START + 2, name="gpu", device="cuda:0", processes=[]))

    with (tmp_path / DEVICE_CSV).open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert [row["processes"] for row in rows] == ["7 anna 1024 python train.py"] * 2 + [""]
    assert [row["utilisation_percent"] for row in rows] == ["50.0", "", ""]
    assert rows[0]["time"] == "2023-11-14T22:13:20+00:00"


def test_a_full_disk_loses_no_line_and_leaves_none_torn(tmp_path, monkeypatch):
    file, write = LineFile(tmp_path / "log"), os.write
    file.append(["first"])

    def full(descriptor, data):
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "full")
        return write(descriptor, data[:4])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        file.append(["second"])
    assert (tmp_path / "log").read_text() == "first\n"
    monkeypatch.setattr(os, "write", write)
    file.append(["second"])
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").write_text("mine\n")
    (tmp_path / TRAIN_LOG).symlink_to("elsewhere")

    recorded(tmp_path, step(1, 0))

    assert (tmp_path / "elsewhere").read_text() == "mine\n"


def test_an_epoch_without_an_applied_step_is_told_so_and_not_as_a_loss(tmp_path):
    finished = EpochFinished(
        time=START,
        epoch=1,
        epochs=2,
        train_loss=math.nan,
        train_metrics={},
        val_loss=2.0,
        lr=1e-5,
        seconds=1.0,
        samples_trained=0,
    )
    recorded(tmp_path, finished, replace(finished, samples_trained=8))
    none, some = log(tmp_path)
    assert "train: no step was applied  val: loss 2.0000" in none
    assert "nan" not in none
    assert "train: loss nan  val: loss 2.0000" in some
