"""The control socket: clients are woken for what is new in the journal; a slow client delays no other."""

import itertools
import socket
import threading

from mptui.events import Warned
from mptui.runs.remote import control
from mptui.runs.store import journal
from mptui.runs.store.journal import read_events
from tests.made.waiting import wait_until


def last_step(run):
    """The last step in its journal."""
    *_, (_, events) = read_events(run.path / journal.NAME, 0)
    return events[-1].step


def test_a_client_is_told_of_what_is_new_and_finds_it_in_the_journal(begin, short, connect):
    run = begin(short / "run")
    run.tell(2)
    client = connect(run)
    told = {"run": "run", "profile": "fast", "presets": ["fast", "stable"], "given": []}
    assert client.line() == {"protocol": control.VERSION, **told}
    for step in (3, 4):
        run.tell(step)
        assert client.line() == {}
        assert last_step(run) == step
    run.end()
    assert client.line() is None


def test_who_comes_in_the_middle_hears_of_the_last(run, connect):
    steps, enough = itertools.count(), threading.Event()

    def train():
        while not enough.is_set():
            run.tell(next(steps))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        clients = [connect(run) for _ in range(20)]
        for client in clients:
            assert client.line()["presets"]
    finally:
        enough.set()
        thread.join()
    run.tell(-1)
    for client in clients:
        while client.line() == {} and last_step(run) != -1:
            pass


def test_a_client_that_reads_nothing_keeps_nobody_waiting_and_is_not_sent_more_than_it_takes(run, connect):
    slow, quick = connect(run), connect(run)
    for client in (slow, quick):
        assert client.line()["presets"]
    slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for step in range(1000):
        run.tell(step)
        assert quick.line() == {}
    slow.say({"command": "pause", "id": "last"})
    wait_until(lambda: run.sent)
    lines = list(iter(slow.line, {"answer": "last", "state": "asked"}))
    assert len(lines) < 900
    assert all(line == {} for line in lines)


def test_why_a_run_waits_for_its_disk_is_told_whatever_else_is_new(run, connect):
    client = connect(run)
    assert client.line()["presets"]
    run.tell(1)
    run.server.handle(Warned(code="disk", message="the disk is full"), written=False)
    run.tell(2)
    assert {"disk": "the disk is full", "written": False} in (client.line() for _ in range(3))
