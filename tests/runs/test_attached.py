"""Attached runs: each event arrives exactly once, and the kinds of end are distinguished."""

import json
import signal
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mptui.events import CommandAnswered, Event, RunFinished, Step, Warned, to_record
from mptui.runs.remote import control as remote_control
from mptui.runs.remote import feed
from mptui.runs.remote.control import ControlServer
from mptui.runs.remote.feed import AttachedRun
from mptui.runs.store import journal as store_journal
from mptui.runs.store.directory import SUMMARY, claim, write_json
from mptui.runs.store.journal import NAME, Journal
from tests.program import Program

DEADLINE_S = 60


class Owner:
    """A run in this process: a lock, a journal, a socket."""

    def __init__(self, path):
        self.path, self.sent = path, []
        path.mkdir(exist_ok=True)
        self.claim = claim(path)
        self.journal = Journal(path)
        self.server: ControlServer | None = None

    def open(self):
        self.server = ControlServer(
            self.path,
            presets=["fast"],
            given=lambda: ["training.lr"],
            profile=lambda: "fast",
            on_command=lambda *asked: self.sent.append(asked[:2]),
        )
        self.server.open()
        return self

    def tell(self, *steps):
        for step in steps:
            self.write(Warned(time=1.0, step=step, code="told", message=""))

    def write(self, event):
        self.journal.write(event)
        if self.server is not None:
            self.server.handle(event)

    def hang_up(self):
        if self.server is not None:
            self.server.close()
        self.server = None

    def end(self, event=None):
        if event is not None:
            self.write(event)
        self.hang_up()
        self.claim.release()


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name) / "run"


@pytest.fixture
def owner(path):
    owner = Owner(path)
    yield owner
    owner.end()
    owner.journal.close()


@pytest.fixture
def attach(path):
    sources = []

    def start(**kwargs):
        sources.append(AttachedRun(path, **kwargs).start())
        return sources[-1]

    yield start
    for source in sources:
        source.close()


def until(source, condition):
    """Poll until `condition` holds for all events so far; return them."""
    events: list[Event] = []
    deadline = time.monotonic() + DEADLINE_S
    while not condition(events):
        assert time.monotonic() < deadline, events
        events += source.poll()
        time.sleep(0.01)
    return events


def seen(step):
    return lambda events: any(event.step == step for event in events)


def ended(events):
    return any(isinstance(event, RunFinished) for event in events)


def finished(code=0, status="completed"):
    return RunFinished(time=2.0, step=99, status=status, exit_code=code)


def steps(events):
    return [event.step for event in events]


def test_what_was_and_what_comes_is_told_once_and_in_order(owner, attach):
    owner.open().tell(*range(50))
    source = attach()
    events = until(source, seen(49))
    owner.tell(*range(50, 98))
    owner.end(finished())
    events += until(source, ended)
    assert steps(events) == [*range(98), 99]
    assert (source.profiles, source.given) == (["fast"], ["training.lr"])
    assert not source.hosted


def test_who_watches_while_it_ends_gets_its_exit_code(owner, attach):
    owner.open().tell(1)
    source = attach()
    until(source, seen(1))
    owner.end(finished(143, "stopped"))
    until(source, ended)
    assert source.wait(DEADLINE_S)
    assert (source.exit_code, source.finished) == (143, True)


def test_who_comes_after_the_end_is_told_how_it_ended(owner, attach):
    owner.open().tell(1)
    owner.end(finished(4, "diverged"))
    source = attach()
    assert [event for event in until(source, ended) if isinstance(event, RunFinished)] == [
        finished(4, "diverged")
    ]
    assert source.wait(DEADLINE_S)
    assert source.exit_code == 0


def test_a_lost_socket_is_made_up_for_by_the_file_and_found_again(owner, attach):
    owner.open().tell(0)
    source = attach()
    events = until(source, seen(0))
    owner.hang_up()
    owner.tell(1, 2)
    events += until(source, seen(2))
    owner.open().tell(3)
    events += until(source, seen(3))
    owner.end(finished())
    events += until(source, ended)
    assert steps(events) == [0, 1, 2, 3, 99]


def test_a_run_without_a_socket_is_followed_in_its_file(owner, attach, monkeypatch):
    monkeypatch.setattr(feed, "PATIENCE_S", 0.1)
    owner.tell(0)
    source = attach()
    events = until(source, seen(0))
    owner.tell(1)
    events += until(source, seen(1))
    source.send("pause")
    answer = until(source, bool)[0]
    assert isinstance(answer, CommandAnswered)
    assert answer.state == "refused"
    assert f"mptui stop {owner.path}" in answer.detail
    assert steps(events) == [0, 1]


def own():
    """Own a run until the end of the process, in a fork."""
    _kept = claim(Path(sys.argv[1]))
    print(flush=True)
    signal.pause()


@pytest.mark.program
def test_a_run_that_is_gone_without_a_word_has_crashed(path, attach):
    path.mkdir()
    journal = Journal(path)
    journal.write(Warned(time=1.0, step=7, code="", message=""))
    process = Program(path, call=f"{__name__}:own")
    process.stdout.readline()
    source = attach()
    events = until(source, seen(7))
    assert not source.finished
    process.kill()
    process.communicate()
    events += until(source, ended)
    crashed = events[-1]
    assert isinstance(crashed, RunFinished)
    assert (crashed.status, crashed.step, crashed.time) == ("crashed", 7, 1.0)
    assert f"mptui resume {path}" in crashed.hint
    assert source.wait(DEADLINE_S)
    assert source.exit_code == 1


def test_an_end_that_only_the_summary_tells_is_no_crash(path, attach):
    path.mkdir()
    Journal(path).write(Warned(time=1.0, step=7, code="", message=""))
    write_json(path / SUMMARY, {"status": "failed", "exit_code": 7})
    last = until(attach(), ended)[-1]
    assert isinstance(last, RunFinished)
    assert (last.status, last.exit_code) == ("failed", 7)


def test_commands_reach_the_run(owner, attach):
    owner.open().tell(0)
    source = attach()
    until(source, seen(0))
    source.send("preset", "fast")
    source.send("stop")
    deadline = time.monotonic() + DEADLINE_S
    while len(owner.sent) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert owner.sent == [("preset", "fast"), ("stop", None)]
    source.send("preset", "slow")
    (refused,) = until(source, bool)
    assert isinstance(refused, CommandAnswered)
    assert (refused.command, refused.state) == ("preset", "refused")


def test_what_is_asked_before_the_run_has_answered_reaches_it(owner, attach, monkeypatch):
    monkeypatch.setattr(feed, "PATIENCE_S", DEADLINE_S)
    owner.tell(0)
    source = attach()
    source.send("pause")
    until(source, seen(0))
    owner.open()
    deadline = time.monotonic() + DEADLINE_S
    while not owner.sent:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert owner.sent == [("pause", None)]


def test_who_only_watches_asks_for_nothing(owner, attach):
    owner.open().tell(0)
    source = attach(readonly=True)
    until(source, seen(0))
    source.send("stop")
    (answer,) = until(source, bool)
    assert isinstance(answer, CommandAnswered)
    assert (answer.state, answer.detail) == ("refused", "this screen is read-only")
    owner.tell(1)
    until(source, seen(1))
    assert owner.sent == []


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"\n\n",
        b'{"event":{}}\n',
        b'{"hello":1,"journal":"x","presets":7}\n{"at":"x","event":[]}\n[]\n\xff\n{"event":{"event":"step"}}\n',
        b"[" * 100_000 + b"\n",
    ],
    ids=lambda says: says[:20],
)
def test_a_socket_that_makes_no_sense_leaves_the_file(owner, attach, path, says):
    owner.tell(0)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path / "control.sock"))
        stranger.listen()
        source = attach()
        connection, _ = stranger.accept()
        with connection:
            connection.sendall(says)
    (path / "control.sock").unlink()
    owner.tell(1)
    assert steps(until(source, seen(1))) == [0, 1]


def test_a_run_of_an_earlier_version_is_followed_in_its_file_and_takes_commands(owner, attach, path):
    owner.tell(4)
    with socket.socket(socket.AF_UNIX) as run:
        run.bind(str(path / "control.sock"))
        run.listen()
        source = attach()
        connection, _ = run.accept()
        with connection:
            owner.tell(5)
            event = to_record(Warned(time=1.0, step=5, code="told", message=""))
            said = [{"hello": 1, "journal": 0, "presets": ["fast"]}, {"at": 0, "event": event}]
            connection.sendall(b"".join(json.dumps(each).encode() + b"\n" for each in said))
            assert steps(until(source, seen(5))) == [4, 5]
            assert source.profiles == ["fast"]
            source.send("pause")
            asked = json.loads(connection.makefile().readline())
            assert asked["command"] == "pause"
            connection.sendall(json.dumps({"answer": asked["id"], "error": "not now"}).encode() + b"\n")
            (refused,) = until(source, bool)
            assert (refused.state, refused.detail) == ("refused", "not now")
    (path / "control.sock").unlink()


@pytest.mark.parametrize("is_full", [True, False])
def test_why_a_run_waits_for_its_disk_is_told_once_also_if_the_disk_keeps_it_from_the_journal(
    owner, attach, is_full
):
    owner.open().tell(1)
    source = attach()
    until(source, seen(1))
    waits = Warned(time=1.0, step=1, code="disk", message="the disk is full")
    if not is_full:
        owner.journal.write(waits)
    owner.server.handle(waits, written=not is_full)
    (told,) = until(source, bool)
    assert (told.code, told.message) == ("disk", "the disk is full")
    owner.tell(2)
    assert steps(until(source, seen(2))) == [2]


def test_nobody_who_polls_waits_and_what_waits_is_bounded(owner, attach, monkeypatch):
    monkeypatch.setattr(feed, "WAITING_LIMIT", 1000)
    monkeypatch.setattr(feed, "EVENTS_A_POLL", 300)
    lines = b"".join(
        json.dumps(to_record(Warned(time=1.0, step=step, code="", message=""))).encode() + b"\n"
        for step in range(8000)
    )
    (owner.path / NAME).write_bytes(lines)
    monkeypatch.setattr(store_journal, "WHOLE", 1 << 30)
    source = attach()
    deadline = time.monotonic() + DEADLINE_S
    while source._feed.position < len(lines) // 8:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)  # enough time to read it all
    assert source._feed.position < len(lines) // 2
    first = source.poll()
    assert len(first) == 300
    assert steps(first + until(source, seen(7999))) == list(range(8000))


def test_a_directory_without_a_journal_is_a_crashed_run(path, attach):
    path.mkdir()
    last = until(attach(), ended)[-1]
    assert not isinstance(last, Step)
    assert list(path.iterdir()) == []


def fill(connection):
    while True:
        connection.send("pause")


def test_a_run_that_reads_nothing_does_not_hold_up_who_sends(path):
    path.mkdir()
    control = remote_control.listen(path)
    try:
        with ThreadPoolExecutor() as pool:
            coming = pool.submit(feed.Connection, path)
            control.listener.setblocking(True)
            run, _ = control.listener.accept()
            run.sendall(b'{"hello": 1}\n')
            connection = coming.result()
        with pytest.raises(BlockingIOError):  # and no timeout: it has not waited
            fill(connection)
        connection.close()
        run.close()
    finally:
        control.remove()
