"""metrics.csv and TensorBoard's event file: equal to the journal, whatever happened between."""

import csv

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mptui.events import Step
from mptui.registry.trackers import TRACKERS
from mptui.runs.store.journal import read_journal
from mptui.runs.trackers import local_files
from mptui.runs.trackers.feeder import TrackerState
from mptui.runs.trackers.local_files import FOLDER
from mptui.testing import TrackerContract
from mptui.testing.tracker import course, scalars_in, write
from tests.runs.trackers.journals import feed
from tests.tui.events import run_started


def csv_of(run):
    with (run / local_files.NAME).open(newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == local_files.COLUMNS
    return [(float(time), int(step), name, float(value)) for time, step, name, value in rows]


def tensorboard_of(run):
    (_,) = (run / FOLDER).iterdir()  # one file over all resumes
    read = EventAccumulator(str(run / FOLDER), size_guidance={"scalars": 0}).Reload()
    return sorted(
        (point.wall_time, point.step, name, point.value)
        for name in read.Tags()["scalars"]
        for point in read.Scalars(name)
    )


def in_float32(entries):
    return sorted((*entry[:3], float(np.float32(entry[3]))) for entry in entries)


class TestCsv(TrackerContract):
    @pytest.fixture
    def spec(self):
        return TRACKERS["csv"]

    def read(self, run):
        return csv_of(run)


class TestTensorBoard(TrackerContract):
    @pytest.fixture
    def spec(self):
        return TRACKERS["tensorboard"]

    def read(self, run):
        return tensorboard_of(run)

    def stored(self, value):
        return float(np.float32(value))


@pytest.mark.parametrize("removed", ["file", "state"])
def test_a_file_is_written_anew_when_it_or_its_state_was_removed(tmp_path, removed):
    write(tmp_path, *course(1, 3))
    feed(tmp_path, trackers=["csv"])
    (tmp_path / (local_files.NAME if removed == "file" else "trackers.json")).unlink()
    write(tmp_path, *course(4, 5))
    feed(tmp_path, trackers=["csv"])
    assert csv_of(tmp_path) == scalars_in(tmp_path)


def test_tensorboard_shows_steps_that_a_resume_repeats_once(tmp_path):
    write(tmp_path, *course(1, 8), run_started(step=5, resumed_from_step=5), *course(6, 9))
    feed(tmp_path, trackers=["tensorboard"])
    last = {event.step: event.loss for event in read_journal(tmp_path) if isinstance(event, Step)}
    shown = {step: value for _, step, name, value in tensorboard_of(tmp_path) if name == "train/loss"}
    assert shown == {step: float(np.float32(loss)) for step, loss in last.items()}
    assert len([1 for entry in tensorboard_of(tmp_path) if entry[2] == "train/loss"]) == 9


def test_no_link_is_followed(tmp_path):
    write(tmp_path / "run", *course(1, 2))
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "run" / local_files.NAME).symlink_to(outside)
    ((kind, _, message),) = feed(tmp_path / "run", trackers=["csv"])
    assert kind == "failed"
    assert "not a regular file" in message
    assert outside.read_text() == "mine"


def test_a_hostile_state_writes_no_other_file(tmp_path):
    run = tmp_path / "run"
    write(run, *course(1, 2))
    TrackerState(run).store("tensorboard", {"file": "../../events.out.tfevents.1.x", "size": 0})
    feed(run, trackers=["tensorboard"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert tensorboard_of(run) == in_float32(scalars_in(run))
