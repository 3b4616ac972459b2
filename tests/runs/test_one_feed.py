"""Whoever looks at a run knows the same of it: beside it, attached, by its index, by its journal."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mptui.events import Event, Warned, to_record
from mptui.runs.remote.feed import Feed, OwnFeed
from mptui.runs.store.index import Index, read_index, read_run, to_document
from mptui.runs.store.journal import NAME, Journal, read_journal
from mptui.runs.view.run_view import RunView
from tests.runs.test_index import KINDS, NUMBERS
from tests.tui.events import START

BRANCHES = ["step", "undone", "left", "rolled back", "resumed", "validated", "ended"]
DISK = ["torn", "full", "free"]
READERS = ["poll", "look", "renew"]
ACTS = st.lists(
    st.tuples(st.sampled_from([*KINDS, *BRANCHES, *2 * DISK, *READERS]), st.integers(0, 4000), NUMBERS),
    min_size=20,
    max_size=50,
)


class Screen:
    """A feed, and what is known by it."""

    def __init__(self, feed):
        self.feed, self.view = feed, RunView()

    def look(self):
        while self.feed.pending:
            for event in self.feed.poll():
                self.view.handle(event)


class Looked:
    """A run whose disk is full at times, and who looks at it; a feed beside it that keeps few events."""

    def __init__(self, folder):
        self.folder, self.disk, self.told = folder, pytest.MonkeyPatch(), RunView()
        self.journal, self.index = Journal(folder), Index(folder)
        self.beside, self.attached = Screen(OwnFeed(folder, capacity=4)), Screen(Feed(folder, 0))
        self.step = 0

    def happen(self, number, what, far, value):
        match what:
            case "full":
                self.disk.setattr(os, "write", full)
            case "free":
                self.disk.undo()
                self.journal.retry()
            case "torn":
                self.killed()
            case "poll":
                self.beside.look()
            case "look":
                self.attached.feed.read()
                self.attached.look()
            case "renew":
                self.index.renew()
            case _:
                self.step = max(0, self.step + far if far > 9 else self.step - far)
                self.tell(KINDS[what]({"step": self.step, "time": START + number}, value))

    def tell(self, event):
        self.told.handle(event)
        self.journal.write(event)
        self.beside.feed.handle(event, self.journal.position, self.journal.written)

    def killed(self):
        """Tear the last line, and begin again, with the same screen."""
        self.happen(0, "free", 0, 0)
        self.beside.look()
        self.journal.close()
        with (self.folder / NAME).open("ab") as file:
            file.write(b'{"event":"step","time":1')
        self.index.renew()
        self.beside.feed = OwnFeed(self.folder, capacity=4)
        self.journal, self.index = Journal(self.folder), Index(self.folder)
        self.beside.feed.position = self.journal.position


def full(*_):
    raise OSError(28, "No space left on device")


def acts_of(*names):
    return [(name, 20, 1.0) for name in names]


@settings(max_examples=12)
@given(acts=ACTS)
@example(
    acts_of(*["step"] * 4, "full", *["step"] * 8, "undone", "poll", "step", "free", "rolled back", "look")
)
@example(acts_of(*["step"] * 9, "torn", "step", "resumed", *["step"] * 9, "renew", "undone", "validated"))
def test_all_who_look_at_a_run_know_the_same_of_it(acts):
    with tempfile.TemporaryDirectory() as name:
        run = Looked(Path(name))
        try:
            for number, act in enumerate(acts):
                run.happen(number, *act)
            run.beside.look()
            told = to_document(run.told)
            assert to_document(run.beside.view) == told  # also while the disk is full
        finally:
            run.disk.undo()
        run.journal.close()
        run.happen(0, "look", 0, 0)
        assert to_document(run.attached.view) == told
        assert to_document(read_run(run.folder)) == told
        replayed = RunView()
        for event in read_journal(run.folder):
            replayed.handle(event)
        assert to_document(replayed) == told
        run.index.renew()
        assert to_document(read_index(run.folder)[0]) == told


def test_who_is_behind_by_20_000_events_hears_of_each(tmp_path):
    events: list[Event] = [
        Warned(time=START + step, step=step, code="w", message="x" * 100) for step in range(20_000)
    ]
    beside, attached = OwnFeed(tmp_path), Feed(tmp_path, 0)
    lines = [json.dumps(to_record(event)).encode() + b"\n" for event in events]
    (tmp_path / NAME).write_bytes(lines[0])
    attached.read()
    (tmp_path / NAME).write_bytes(b"".join(lines))
    at = 0
    for event, line in zip(events, lines, strict=True):
        at += len(line)
        beside.handle(event, at, at)
    assert beside.drain() == events
    attached.read()
    heard = []
    while attached.pending:
        heard += attached.poll()
    assert heard == events
