"""A run on tar shards or Parquet files equals one on the folder of the same images, also after a kill."""

import signal

import pytest

from mptui.events import RunStarted, Warned
from mptui.runs.store.journal import read_journal
from tests.chaos.killer import outcome_of
from tests.chaos.runs import LIMIT_S, SHUFFLENET, Case, finished, started, stepped, wait_for
from tests.data.images import class_folders
from tests.data.packed_sets import classes_to_parquet, classes_to_tar

pytestmark = pytest.mark.slow


def test_runs_on_packed_sets_equal_that_on_their_folder_also_after_a_kill(fork_server, tmp_path):
    folder = class_folders(tmp_path / "folder", {"cat": 10, "dog": 9})
    sets = {
        "tar": classes_to_tar(folder, tmp_path / "tar"),
        "parquet": classes_to_parquet(folder, tmp_path / "parquet"),
    }
    expected = outcome_of(finished(fork_server, on(folder), tmp_path / "runs", "folder"))
    for name, data in sets.items():
        case, run = on(data), tmp_path / "runs" / name
        child = started(fork_server, case, tmp_path / "runs", name)
        wait_for(child, run, stepped(2))
        child.send(signal.SIGKILL)
        child.wait(LIMIT_S)
        assert outcome_of(finished(fork_server, case, tmp_path / "runs", name)) == expected
        events = read_journal(run)
        assert sum(isinstance(event, RunStarted) for event in events) == 2
        assert not [event for event in events if isinstance(event, Warned) and event.code == "data_changed"]


def on(data: object) -> Case:
    case = SHUFFLENET.but(data__cache="off", data__workers=1, data__val_fraction=0.2)
    sets = {key: value for key, value in case.sets.items() if key != "data.samples"}
    return Case(case.name, (*case.flags, "--data", str(data)), sets)
