"""The control socket: each client gets every event once, and a slow client delays no other."""

import itertools
import json
import threading

from mptui.events import Warned
from mptui.runs.remote import control
from mptui.runs.store.journal import NAME


def test_a_client_is_told_where_the_journal_ends_and_all_that_follows(begin, short, connect):
    run = begin(short / "run")
    for step in range(3):
        run.tell(step)
    client = connect(run)
    hello = client.line()
    run.tell(3)
    run.tell(4)
    assert hello["presets"] == ["fast", "stable"]
    assert hello["profile"] == "fast"
    written = (run.path / NAME).read_bytes()
    assert written[: hello["journal"]].count(b"\n") == 1 + 3
    for step in (3, 4):
        told = client.line()
        assert told["event"]["step"] == step
        assert json.loads(written[: told["at"]].splitlines()[-1]) == told["event"]
    run.end()
    assert client.line() is None


def test_no_event_is_lost_or_told_twice_to_who_comes_in_the_middle(run, connect):
    clients = []
    steps = itertools.count()
    enough = threading.Event()

    def train():
        while not enough.is_set():
            run.tell(next(steps))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(20):
            client = connect(run)
            clients.append((client, client.line()["journal"]))
    finally:
        enough.set()
        thread.join()
    run.tell(-1)
    for client, end in clients:
        seen = (run.path / NAME).read_bytes()[:end].count(b"\n") - 1
        for step in itertools.count(seen):
            told = client.line()["event"]["step"]
            if told == -1:
                break
            assert told == step
    assert step == next(steps)


def test_what_waits_for_others_is_not_told_to_who_finds_it_in_the_journal(run, connect):
    first = connect(run)
    assert first.line()["journal"] == (run.path / NAME).stat().st_size
    run.server._deliver = lambda: None
    run.tell(1)
    second = connect(run)
    assert second.line()["journal"] == (run.path / NAME).stat().st_size
    del run.server._deliver
    run.tell(2)
    assert [first.line()["event"]["step"] for _ in range(2)] == [1, 2]
    assert second.line()["event"]["step"] == 2


def test_a_client_that_reads_nothing_is_dropped_and_nobody_waits(run, connect):
    slow, quick = connect(run), connect(run)
    for client in (slow, quick):
        assert client.line()["hello"]
    size = 1 << 18
    for step in range(64):
        run.tell(step, "x" * size)
        assert quick.line()["event"]["step"] == step
    received = slow.file.read()
    assert len(received) < 64 * size


def test_more_events_than_can_wait_send_all_to_the_journal(run, connect, monkeypatch):
    monkeypatch.setattr(control, "WAITING_LIMIT", 5)
    client = connect(run)
    assert client.line()["hello"]
    with run.server._lock:  # the thread can't take events meanwhile
        run.server._events.extend((9, 9, Warned(code="", message="")) for _ in range(5))
    run.tell(1)
    assert client.is_dropped()
    assert connect(run).line()["journal"] == (run.path / NAME).stat().st_size
