"""The feed beside a run: what its reader is late for comes from the journal, each event once."""

import os
import threading
import time

import pytest

from mptui.events import Paused, Warned
from mptui.runs.remote.feed import OwnFeed
from mptui.runs.store import journal as store_journal
from mptui.runs.store.journal import NAME, Journal

DEADLINE_S = 30.0


class Written:
    """A journal, and a feed of what is written to it."""

    def __init__(self, run, capacity):
        self.run = run
        self.journal = Journal(run)
        self.feed = OwnFeed(run, capacity)

    def tell(self, *steps):
        for step in steps:
            event = Paused(step=step)
            self.journal.write(event)
            self.feed.handle(event, self.journal.position, self.journal.written)

    def steps(self):
        return [event.step for event in self.feed.drain()]


@pytest.fixture
def written(tmp_path):
    written = Written(tmp_path, 3)
    yield written
    written.journal.close()


def test_they_come_out_in_order_each_once_and_the_disk_is_not_asked(written):
    written.tell(0, 1)
    (written.run / NAME).rename(written.run / "elsewhere")
    assert written.steps() == [0, 1]
    assert written.steps() == []


def test_what_no_longer_fitted_comes_from_the_journal_each_once(written):
    written.tell(0, 1)
    assert written.steps() == [0, 1]
    written.tell(*range(2, 40))
    assert written.steps() == list(range(2, 40))
    written.tell(40, 41, 42)
    assert written.steps() == [40, 41, 42]
    assert written.steps() == []


def full(*_):
    raise OSError(28, "No space left on device")


def test_what_waits_for_the_disk_comes_from_memory_behind_what_was_written(written, monkeypatch):
    written.tell(*range(10))
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        written.tell(*range(10, 20))
    assert written.steps() == list(range(20))
    assert written.journal.retry()
    written.tell(*range(20, 40))
    assert written.steps() == list(range(20, 40))


def test_what_is_lost_for_good_is_counted_and_told(written):
    written.tell(*range(10))
    (written.run / NAME).unlink()
    told, *events = written.feed.drain()
    assert isinstance(told, Warned)
    assert told.message.startswith("7 events are missing here, as the journal can't be read: ")
    assert [event.step for event in events] == [7, 8, 9]


def test_nobody_who_polls_waits_for_a_disk_that_hangs(written, monkeypatch):
    answers, read_events = threading.Event(), store_journal.read_events

    def hanging(*arguments, **options):
        answers.wait(DEADLINE_S)
        return read_events(*arguments, **options)

    monkeypatch.setattr("mptui.runs.remote.feed.read_events", hanging)
    written.tell(*range(10))
    begun = time.monotonic()
    assert written.feed.poll() == []
    assert time.monotonic() - begun < DEADLINE_S / 10
    assert written.feed.pending
    answers.set()
    assert written.steps() == list(range(10))


def test_a_reader_beside_a_writer_loses_nothing(tmp_path):
    written, count = Written(tmp_path, 20), 2000
    got: list[int] = []
    thread = threading.Thread(target=lambda: written.tell(*range(count)))
    thread.start()
    deadline = time.monotonic() + DEADLINE_S
    while len(got) < count and time.monotonic() < deadline:
        got += written.steps()
    thread.join()
    assert got == list(range(count))
    written.journal.close()
