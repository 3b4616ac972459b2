"""Event buffer for slow readers."""

import threading

from mptui.events import Paused
from mptui.runs.view.event_buffer import EventBuffer

DEADLINE_S = 30.0


def test_they_come_out_in_order_each_once():
    buffer = EventBuffer()
    for step in range(5):
        buffer.handle(Paused(step=step))
    assert [event.step for event in buffer.drain()] == [0, 1, 2, 3, 4]
    assert buffer.drain() == []


def test_when_it_is_full_the_oldest_goes():
    buffer = EventBuffer(capacity=3)
    for step in range(10):
        buffer.handle(Paused(step=step))
    assert [event.step for event in buffer.drain()] == [7, 8, 9]


def test_waiting_ends_when_an_event_comes():
    buffer = EventBuffer()
    assert not buffer.wait(0)
    thread = threading.Thread(target=lambda: buffer.handle(Paused()))
    thread.start()
    assert buffer.wait(DEADLINE_S)
    thread.join()
    buffer.drain()
    assert not buffer.wait(0)


def test_a_reader_beside_a_writer_loses_nothing():
    buffer, count = EventBuffer(), 5000
    got: list[int] = []

    def write():
        for step in range(count):
            buffer.handle(Paused(step=step))

    thread = threading.Thread(target=write)
    thread.start()
    while len(got) < count and buffer.wait(DEADLINE_S):
        got += [event.step for event in buffer.drain()]
    thread.join()
    assert got == list(range(count))
