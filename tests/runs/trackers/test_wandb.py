"""What W&B is asked for; `test_services.py` reads back what the real one stores."""

import sys
from types import SimpleNamespace

import pytest

from mptui.registry.trackers import TRACKERS
from mptui.runs.trackers.feeder import token_of
from mptui.runs.trackers.services import STEP
from mptui.testing import TrackerContract
from mptui.testing.tracker import course, write
from tests.runs.trackers.journals import end, feed, step


class FakeWandb:
    """Records the arguments of its calls."""

    def __init__(self):
        self.offline, self.fails = False, False
        self.opened, self.steps, self.finished = [], [], []
        self.rows = {}
        self.Settings = SimpleNamespace

    def init(self, **options):
        self.opened.append(options)
        return self

    def define_metric(self, *names, **options):
        pass

    def log(self, scalars, step):
        self.steps.append(step)
        self.rows.setdefault((self.opened[-1]["id"], step), scalars)  # it drops those that it has

    def finish(self, exit_code):
        if self.fails:
            raise OSError("no network")
        self.finished.append(exit_code)

    def teardown(self):
        pass


@pytest.fixture
def wandb(monkeypatch):
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


class TestWandb(TrackerContract):
    @pytest.fixture
    def spec(self, wandb):
        self.service = wandb
        return TRACKERS["wandb"]

    @pytest.fixture
    def logging(self):
        return {"wandb_project": "p"}

    def read(self, run):
        assert all(type(code) is int for code in self.service.finished)
        return [
            (row["_timestamp"], row[STEP], name, value)
            for (id, _), row in self.service.rows.items()
            for name, value in row.items()
            if id == token_of(run) and name not in {"_timestamp", STEP}
        ]


def test_a_resume_goes_on_as_the_same_run_with_the_next_step(tmp_path, wandb):
    for events in (course(1, 3), course(4, 5), [end(5)], []):
        write(tmp_path, *events)
        feed(tmp_path, wandb_project="p", wandb_name="n")
    assert {(each["id"], each["resume"], each["project"], each["name"]) for each in wandb.opened} == {
        (token_of(tmp_path), "allow", "p", "n")
    }
    assert wandb.steps == list(range(9))
    assert wandb.finished == [1, 1, 0, 0]  # of a run that has not ended, and of one that has


def test_what_was_not_confirmed_is_sent_again_under_the_same_steps(tmp_path, wandb):
    write(tmp_path, step(1), step(2))
    wandb.fails = True
    assert feed(tmp_path, wandb_project="p") == [("failed", "wandb", "wandb: no network")]
    wandb.fails = False
    write(tmp_path, step(3))
    feed(tmp_path, wandb_project="p")
    assert wandb.steps == [0, 1, 0, 1, 2]  # W&B drops those that it has


def test_an_offline_run_is_sent_from_its_beginning_once_it_can_be(tmp_path, wandb):
    write(tmp_path, step(1), step(2))
    wandb.offline = True
    feed(tmp_path, wandb_project="p")
    wandb.offline = False
    write(tmp_path, step(3))
    feed(tmp_path, wandb_project="p")
    feed(tmp_path, wandb_project="p")
    assert wandb.steps == [0, 1, 0, 1, 2]
    assert len({each["id"] for each in wandb.opened}) == 1
