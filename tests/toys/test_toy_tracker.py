"""A new tracker is one entry of `TRACKERS`: it receives the metrics of a run, and of its resume."""

import os

import pytest

from mptui.config.keys import SETTINGS
from mptui.errors import MptuiError
from mptui.registry.trackers import TRACKERS, TrackerSpec
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from tests.toys.training import LIMIT_S, SMALL

TINY = {**SMALL, "model.name": "unet", "model.width": 2, "model.depth": 1, "data.image_size": 16}


class ToyTracker:
    """Stores what it receives in a list."""

    def __init__(self, logged):
        self._logged = logged

    def log(self, scalars, step):
        self._logged.append((step, scalars))

    def close(self):
        self._logged.append("closed")


@pytest.fixture
def logged(monkeypatch):
    entries: list[object] = []
    spec = TrackerSpec(open=lambda run, config: ToyTracker(entries), package="toy")
    monkeypatch.setitem(TRACKERS, "toy", spec)
    return entries


def planned(name, epochs=1):
    flags = {key: ("test", value) for key, value in {**TINY, "training.epochs": epochs}.items()}
    return plan_run(Request("stable", flags, (f"logging.trackers=[{name!r}]",), os.environ))


def train(run, epochs):
    session = Session(planned("toy", epochs), run, resume=epochs > 1)
    session.start()
    assert session.wait(LIMIT_S)
    assert session.result.exit_code == 0


def test_it_gets_the_metrics_of_a_run_and_of_its_resume(logged, tmp_path):
    run = create_run(tmp_path, "test", "unet", "run")
    train(run, epochs=1)
    train(run, epochs=2)
    first, second = logged[: logged.index("closed")], logged[logged.index("closed") + 1 : -1]
    for steps, entries in (([1, 2], first), ([3, 4], second)):
        assert [step for step, scalars in entries if "train/loss" in scalars] == steps
        assert [step for step, scalars in entries if "val/iou" in scalars] == steps[-1:]
    assert logged[-1] == "closed"


def test_its_name_is_checked_and_completed(logged):
    assert "toy" in SETTINGS["logging.trackers"].choices
    with pytest.raises(MptuiError, match=r"logging\.trackers.*'tensorboard' or 'wandb' or 'toy'"):
        planned("tuy")
