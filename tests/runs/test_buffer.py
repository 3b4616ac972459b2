"""Event buffer for slow readers."""

import threading

from mptui.events import Paused, Warned
from mptui.runs.remote.feed import EventBuffer
from mptui.runs.store import journal
from mptui.runs.store.journal import Journal, events_between

DEADLINE_S = 30.0


class Written:
    """A journal, and a buffer of what is written to it."""

    def __init__(self, run, capacity):
        self.run = run
        self.journal = Journal(run)
        self.buffer = EventBuffer(self._reread, journal.length(run), capacity)

    def _reread(self, start, end):
        return events_between(self.run / journal.NAME, start, end)

    def tell(self, *steps):
        for step in steps:
            event = Paused(step=step)
            self.journal.write(event)
            self.buffer.handle(event, journal.length(self.run))

    def steps(self):
        return [event.step for event in self.buffer.drain()]


def unread(_start, _end):
    raise OSError("the disk is gone")


def test_they_come_out_in_order_each_once():
    buffer = EventBuffer(unread)
    for step in range(5):
        buffer.handle(Paused(step=step), step)
    assert [event.step for event in buffer.drain()] == [0, 1, 2, 3, 4]
    assert buffer.drain() == []


def test_what_no_longer_fitted_comes_from_the_journal_each_once(tmp_path):
    written = Written(tmp_path, 3)
    written.tell(0, 1)
    assert written.steps() == [0, 1]
    written.tell(*range(2, 40))
    assert written.steps() == list(range(2, 40))
    written.tell(40, 41, 42)
    assert written.steps() == [40, 41, 42]
    assert written.steps() == []
    written.journal.close()


def test_what_waits_for_the_disk_comes_from_memory_behind_what_was_written(tmp_path):
    written = Written(tmp_path, 5)
    written.tell(*range(10))
    for step in (10, 11):  # the journal does not grow
        written.buffer.handle(Paused(step=step), journal.length(tmp_path))
    assert written.steps() == list(range(12))
    written.journal.close()


def test_what_is_lost_for_good_is_counted_and_told():
    buffer = EventBuffer(unread, capacity=3)
    for step in range(10):
        buffer.handle(Paused(step=step), step)
    told, *events = buffer.drain()
    assert isinstance(told, Warned)
    assert told.message == "7 events are missing here, as the journal can't be read: the disk is gone"
    assert [event.step for event in events] == [7, 8, 9]


def test_waiting_ends_when_an_event_comes():
    buffer = EventBuffer(unread)
    assert not buffer.wait(0)
    thread = threading.Thread(target=lambda: buffer.handle(Paused(), 1))
    thread.start()
    assert buffer.wait(DEADLINE_S)
    thread.join()
    buffer.drain()
    assert not buffer.wait(0)


def test_a_reader_beside_a_writer_loses_nothing(tmp_path):
    written, count = Written(tmp_path, 20), 2000
    got: list[int] = []
    thread = threading.Thread(target=lambda: written.tell(*range(count)))
    thread.start()
    while len(got) < count and written.buffer.wait(DEADLINE_S):
        got += written.steps()
    thread.join()
    assert got == list(range(count))
    written.journal.close()
