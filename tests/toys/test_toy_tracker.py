"""A new tracker is one entry of `TRACKERS`: it receives the metrics of a run, and of its resume."""

import pytest

from mptui.config.keys import SETTINGS
from mptui.errors import MptuiError
from mptui.registry.trackers import TRACKERS
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from mptui.runs.trackers import feeder
from mptui.testing import TrackerContract
from mptui.testing.tracker import scalars_in
from tests.made.runs import UNET, ended, plan_of
from tests.runs.trackers import toys
from tests.toys.training import losses

TINY = {**UNET, "data.samples": 16, "training.schedule": "constant"}


class TestLines(TrackerContract):
    @pytest.fixture
    def spec(self):
        return toys.TOYS["lines"]

    def read(self, run):
        return toys.lines_of(run, "lines")


@pytest.fixture
def _toys(monkeypatch):
    for name, spec in toys.TOYS.items():
        monkeypatch.setitem(TRACKERS, name, spec)
    monkeypatch.setattr(feeder, "FEEDER", toys.CALL)
    monkeypatch.setattr(feeder, "END_S", 60.0)  # on a busy machine


def planned(*names, epochs=1):
    return plan_of({**TINY, "training.epochs": epochs}, sets=[f"logging.trackers={list(names)!r}"])


def train(run, *names, epochs):
    session = ended(Session(planned(*names, epochs=epochs), run, resume=epochs > 1))
    assert session.result.exit_code == 0
    return session


@pytest.mark.slow
@pytest.mark.usefixtures("_toys")
def test_it_gets_the_metrics_of_a_run_and_of_its_resume(tmp_path):
    run = create_run(tmp_path, "test", "unet", "run")
    train(run, "lines", "raises", epochs=1)
    assert toys.lines_of(run, "lines") == scalars_in(run)
    session = train(run, "lines", "raises", epochs=2)
    got = toys.lines_of(run, "lines")
    assert got == scalars_in(run)
    assert [step for _, step, name, _ in got if name == "train/loss"] == [1, 2, 3, 4]
    assert [step for _, step, name, _ in got if name == "val/iou"] == [2, 4]
    assert session.trackers.unsent == ["raises"]

    plain = create_run(tmp_path, "test", "unet", "plain")
    train(plain, epochs=1)
    train(plain, epochs=2)
    assert losses(plain) == losses(run)


@pytest.mark.usefixtures("_toys")
def test_its_name_is_checked_and_completed():
    assert "lines" in SETTINGS["logging.trackers"].choices
    with pytest.raises(MptuiError, match=r"logging\.trackers.*'csv' or 'tensorboard' or .* or 'lines'"):
        planned("liness")
