"""What a tracker gets: each scalar of the journal once, also after failures."""

import json
from dataclasses import replace

import pytest

from mptui.registry.trackers import TRACKERS, TrackerSpec
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.trackers.feeder import NAME, TrackerState, feeding_lock, scalars_of, token_of
from mptui.testing.tracker import course, scalars_in, write
from tests.runs.trackers.journals import feed, step

STEP = step(3, loss=0.5)
FULL_STEP = replace(
    STEP, grad_norm=2.0, loss_scale=1024.0, skipped_steps=4, samples_per_second=100.0, data_wait_fraction=0.25
)
WARNED, VALIDATED, FINISHED = course(9, 8)  # without a step


@pytest.mark.parametrize(
    ("event", "scalars"),
    [
        (
            FULL_STEP,
            {
                "train/loss": 0.5,
                "train/lr": 0.1,
                "train/grad_norm": 2.0,
                "train/loss_scale": 1024.0,
                "train/skipped_steps": 4.0,
                "speed/samples_per_second": 100.0,
                "speed/data_wait_fraction": 0.25,
            },
        ),
        (STEP, {"train/loss": 0.5, "train/lr": 0.1, "train/skipped_steps": 0.0}),
        (
            replace(VALIDATED, metrics={"acc1": 0.8, "acc5": 0.95}),
            {"val/loss": 0.7, "val/acc1": 0.8, "val/acc5": 0.95},
        ),
        (FINISHED, {"epoch/train_loss": 0.6, "epoch/train_acc1": 0.75}),
        (WARNED, {}),
    ],
    ids=["step", "step without figures", "validation", "epoch", "warning"],
)
def test_a_tracker_gets_every_scalar_of_an_event(event, scalars):
    assert scalars_of(event) == scalars


class Memory:
    """Keeps what it gets, and fails in one of its calls if it is told to."""

    def __init__(self):
        self.logged, self.waiting, self.fails_in = [], [], None

    def open(self, run, config, kept):
        self.waiting = []
        return self

    def log(self, event, scalars):
        self.waiting += [(event.time, event.step, name, value) for name, value in scalars.items()]
        self._end("log")

    def flush(self):
        self._end("flush")
        self.logged += self.waiting
        self.waiting = []
        return {"count": len(self.logged)}

    def close(self):
        self._end("close")
        return self.flush()

    def _end(self, call):
        if self.fails_in == call:
            raise OSError("no route to host")


@pytest.fixture
def memory(monkeypatch):
    tracker = Memory()
    monkeypatch.setitem(TRACKERS, "memory", TrackerSpec(open=tracker.open, package="memory"))
    return tracker


def test_it_gets_all_scalars_once_over_all_resumes(tmp_path, memory):
    write(tmp_path, *course(1, 700))
    assert feed(tmp_path, trackers=["memory"]) == [("done", "memory", "702")]
    assert feed(tmp_path, trackers=["memory"]) == [("done", "memory", "0")]
    write(tmp_path, *course(701, 720))
    assert feed(tmp_path, trackers=["memory"]) == [("done", "memory", "22")]
    assert memory.logged == scalars_in(tmp_path)


@pytest.mark.parametrize("call", ["log", "flush", "close"])
def test_what_it_missed_by_a_failure_comes_later_and_nothing_twice(tmp_path, memory, call):
    write(tmp_path, *course(1, 20))
    memory.fails_in = call
    assert feed(tmp_path, trackers=["memory", "csv"]) == [
        ("done", "csv", "22"),
        ("failed", "memory", "memory: no route to host"),
    ]
    memory.fails_in = None
    write(tmp_path, *course(21, 30))
    feed(tmp_path, trackers=["memory"])
    assert memory.logged == scalars_in(tmp_path)


def test_a_missing_package_is_told_from_a_bug_in_one(tmp_path, monkeypatch):
    def without(name):
        def open(*_):
            raise ImportError(f"no {name}", name=name)

        return open

    monkeypatch.setitem(TRACKERS, "absent", TrackerSpec(open=without("absent.part"), package="absent"))
    monkeypatch.setitem(TRACKERS, "broken", TrackerSpec(open=without("other"), package="broken"))
    write(tmp_path, step(1))
    assert feed(tmp_path, trackers=["absent", "broken"]) == [
        ("missing", "absent", "absent is not installed"),
        ("failed", "broken", "broken: no other"),
    ]


def test_a_line_is_sent_when_it_is_whole_and_one_that_is_no_event_is_not(tmp_path, memory):
    write(tmp_path, step(1))
    path = tmp_path / JOURNAL
    whole = path.read_bytes()
    path.write_bytes(whole + b"[]\n\xff\n" + whole.splitlines(keepends=True)[1].replace(b":1,", b":2,")[:-9])
    assert feed(tmp_path, trackers=["memory"]) == [("done", "memory", "1")]
    write(tmp_path, step(3))  # removes the torn line
    feed(tmp_path, trackers=["memory"])
    assert [entry[1] for entry in memory.logged if entry[2] == "train/loss"] == [1, 3]


def test_a_journal_that_lost_its_end_goes_on_from_there(tmp_path, memory):
    write(tmp_path, step(1), step(2), step(3))
    feed(tmp_path, trackers=["memory"])
    path = tmp_path / JOURNAL
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    feed(tmp_path, trackers=["memory"])
    write(tmp_path, step(4))
    feed(tmp_path, trackers=["memory"])
    assert [entry[1] for entry in memory.logged if entry[2] == "train/loss"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 5000,
        '{"version": 1, "wandb_id": "old"}',
        '{"trackers": []}',
        '{"trackers": {"memory": 3}}',
        json.dumps({"trackers": {"memory": {"position": "9"}}}),
        json.dumps({"trackers": {"memory": {"position": -1}}}),
    ],
)
def test_a_state_that_cant_be_read_begins_anew(tmp_path, memory, text):
    write(tmp_path, step(1))
    (tmp_path / NAME).write_text(text)
    feed(tmp_path, trackers=["memory"])
    assert memory.logged == scalars_in(tmp_path)


def test_the_state_of_a_tracker_that_is_chosen_no_more_stays(tmp_path, memory):
    write(tmp_path, step(1))
    feed(tmp_path, trackers=["memory"])
    feed(tmp_path, trackers=["csv"])
    assert TrackerState(tmp_path).of("memory")["count"] == len(memory.logged)


def test_one_process_at_a_time_feeds(tmp_path):
    with feeding_lock(tmp_path) as first, feeding_lock(tmp_path) as second:
        assert (first, second) == (True, False)
    with feeding_lock(tmp_path) as third:
        assert third


def test_a_run_has_one_id_over_all_resumes_and_its_own(tmp_path, monkeypatch):
    for name in ("one", "two"):
        write(tmp_path / name, step(1))
    first = token_of(tmp_path / "one")
    assert first.startswith("one-")
    write(tmp_path / "one", step(2))
    assert token_of(tmp_path / "one") == first
    assert token_of(tmp_path / "two") != first
    monkeypatch.chdir(tmp_path / "one")
    assert token_of(tmp_path.__class__()) == first
