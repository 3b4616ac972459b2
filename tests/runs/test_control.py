"""The control socket: who may connect, what they get, and that nothing they do reaches the run."""

import contextlib
import itertools
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from mptui.errors import ConfigError
from mptui.events import Warned
from mptui.runs.remote import control_server, control_socket
from mptui.runs.remote.control_server import COMMANDS_A_SECOND, ControlServer
from mptui.runs.store.journal import NAME, Journal

DEADLINE_S = 60


class Run:
    """A run as far as its socket is concerned: a journal, and a note of each command."""

    def __init__(self, path):
        self.path, self.sent = path, []
        path.mkdir(parents=True, exist_ok=True)
        self.journal: Journal | None = Journal(path)
        self.now = 0.0
        self.server = ControlServer(
            path,
            presets=["fast", "stable"],
            profile=lambda: "fast",
            send=self.send,
            clock=lambda: self.now,
        )

    def send(self, command, argument):
        if command == "validate":
            raise ConfigError("not now", hint="later")
        self.sent.append((command, argument))

    def tell(self, step, text="x"):
        event = Warned(time=0.0, step=step, code="told", message=text)
        assert self.journal is not None
        self.journal.write(event)
        self.server.put(event)

    def end(self):
        self.server.close()
        if self.journal is not None:
            self.journal.close()
            self.journal = None


@pytest.fixture
def begin():
    runs = []

    def begin_at(path):
        runs.append(Run(path))
        runs[-1].server.open()
        return runs[-1]

    yield begin_at
    for run in runs:
        run.end()


@pytest.fixture
def run(begin, short):
    return begin(short / "run")


@pytest.fixture
def short():
    """A folder whose path is short enough for a socket, wherever the tests are run."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


class Client:
    def __init__(self, run):
        self.socket = control_socket.connect(run.path, DEADLINE_S)
        self.file = self.socket.makefile("rb")

    def line(self):
        """The next document; None at the end."""
        line = self.file.readline()
        return json.loads(line) if line else None

    def say(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")

    def is_dropped(self):
        """Read to the end, which must come."""
        try:
            while self.file.readline():
                pass
        except ConnectionError:
            pass
        return True

    def close(self):
        self.file.close()
        self.socket.close()


@pytest.fixture
def connect():
    clients = []

    def connect_to(run):
        clients.append(Client(run))
        return clients[-1]

    yield connect_to
    for client in clients:
        client.close()


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


# -- who may


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_socket_is_its_owners_alone_whatever_the_umask(begin, short, no_umask):
    run = begin(short / "run")
    assert mode(run.path / "control.sock") == 0o600
    with socket.socket(socket.AF_UNIX) as naive:
        naive.bind(str(short / "naive"))
        assert mode(short / "naive") == 0o777


def test_a_path_too_long_for_a_socket_has_one_elsewhere_that_is_found(
    begin, short, monkeypatch, connect, no_umask
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    far = short / ("x" * 90) / ("y" * 90)
    run = begin(far)
    with pytest.raises(OSError, match="too long"), socket.socket(socket.AF_UNIX) as naive:
        naive.bind(str(far / "naive"))
    place = (far / "control.sock").readlink()
    assert place.parent.parent == short
    assert (mode(place.parent), mode(place)) == (0o700, 0o600)
    client = connect(run)
    assert client.line()["run"] == far.name
    run.end()
    assert not os.path.lexists(far / "control.sock")
    assert not place.parent.exists()


def test_a_disk_that_holds_no_sockets_has_one_elsewhere(begin, short, monkeypatch, connect):
    real = socket.socket.bind

    def bind(self, path):
        if path.startswith(str(short / "run")):
            raise PermissionError("not here")
        real(self, path)

    monkeypatch.setattr(socket, "socket", type("Socket", (socket.socket,), {"bind": bind}))
    run = begin(short / "run")
    assert connect(run).line()["hello"] == 1


def test_another_user_is_refused(run, monkeypatch):
    monkeypatch.setattr(control_socket, "peer_uid", lambda _: os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(DEADLINE_S)
        stranger.connect(str(run.path / "control.sock"))
        assert stranger.recv(100) == b""
    with pytest.raises(PermissionError):  # nor does a client talk to a socket of somebody else
        control_socket.connect(run.path, DEADLINE_S)


def test_the_other_end_is_told_by_the_system(run):
    with control_socket.connect(run.path, DEADLINE_S) as connection:
        assert control_socket.peer_uid(connection) == os.geteuid()


def test_what_a_killed_run_left_is_taken_over(begin, short, connect):
    path = short / "run"
    path.mkdir()
    code = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(path / "control.sock")], check=False)
    with pytest.raises(ConnectionRefusedError):
        control_socket.connect(path, DEADLINE_S)
    assert connect(begin(path)).line()["hello"] == 1


def test_nothing_is_left_of_the_socket(run):
    run.end()
    assert [path.name for path in run.path.iterdir()] == [NAME]


# -- what they get


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
    monkeypatch.setattr(control_server, "WAITING_LIMIT", 5)
    client = connect(run)
    assert client.line()["hello"]
    with run.server._lock:  # the thread can't take anything meanwhile
        run.server._events.extend((9, 9, Warned(code="", message="")) for _ in range(5))
    run.tell(1)
    assert client.is_dropped()
    assert connect(run).line()["journal"] == (run.path / NAME).stat().st_size


# -- what they say


def test_commands_go_to_the_session(run, connect):
    client = connect(run)
    client.line()
    client.say({"command": "pause"})
    client.say(b'{"command":"preset","argument":"stable"}\n{"command":"stop","argument":7}\n')
    client.say({"command": "undo"})
    wait_for(lambda: len(run.sent) == 4)
    assert run.sent == [("pause", None), ("preset", "stable"), ("stop", None), ("undo", None)]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0\xff",
        b"null",
        b"[]",
        b"{}",
        b'{"command":"rm"}',
        b'{"command":["stop"]}',
        b'{"command":"preset"}',
        b'{"command":"preset","argument":"/etc/passwd"}',
        b'{"command":"preset","argument":{"a":1}}',
        b"[" * 4000,
        b'{"command":"validate"}',
        b'{"command":' + b"9" * 4000 + b"}",
    ],
    ids=lambda line: line[:24],
)
def test_what_is_no_command_is_answered_and_harms_nothing(run, connect, line):
    client = connect(run)
    client.line()
    client.say(line + b"\n")
    assert set(client.line()) == {"error"}
    client.say({"command": "pause"})
    wait_for(lambda: run.sent)
    assert run.sent == [("pause", None)]


@pytest.mark.parametrize("data", [b"x" * 100_000, b"\n" * 1000, b'{"command":"rm"}\n' * 1000])
def test_who_says_too_much_is_dropped_and_the_others_stay(run, connect, data):
    client, other = connect(run), connect(run)
    other.line()
    with contextlib.suppress(ConnectionError):
        client.say(data)
    assert client.is_dropped()
    run.tell(1)
    assert other.line()["event"]["step"] == 1
    assert run.sent == []


def test_a_flood_of_commands_is_stemmed(run, connect):
    client = connect(run)
    client.say(b'{"command":"checkpoint"}\n' * 500)
    assert client.is_dropped()
    assert len(run.sent) < 200


def test_the_commands_of_a_second_are_limited_for_all_clients_together_and_for_that_second(run, connect):
    first, second = connect(run), connect(run)
    for client in (first, second):
        client.line()
        client.say(b'{"command":"pause"}\n' * (COMMANDS_A_SECOND // 2))
    wait_for(lambda: len(run.sent) == COMMANDS_A_SECOND)
    for client in (first, second, connect(run)):
        client.say({"command": "checkpoint"})
        told = client.line()
        assert "too many commands" in (told if "error" in told else client.line())["error"]
    assert len(run.sent) == COMMANDS_A_SECOND
    run.now = 1.0
    first.say(b'{"command":"resume"}\n' * COMMANDS_A_SECOND)
    wait_for(lambda: len(run.sent) == 2 * COMMANDS_A_SECOND)
    second.say({"command": "resume"})
    assert "too many commands" in second.line()["error"]


def test_a_setting_reaches_the_session_as_it_was_written(run, connect):
    client = connect(run)
    client.line()
    client.say({"command": "set", "argument": "training.lr=1e-3"})
    client.say({"command": "set", "argument": "data.name=a b=c"})
    wait_for(lambda: len(run.sent) == 2)
    assert run.sent == [("set", "training.lr=1e-3"), ("set", "data.name=a b=c")]


@pytest.mark.parametrize(
    "argument", [None, 7, "", "training.lr", "Training.lr=1", "a=", "a=b\nc", "a=\x1b[2J", "a=" + "x" * 201]
)
def test_what_is_no_setting_reaches_no_session(run, connect, argument):
    client = connect(run)
    client.line()
    client.say({"command": "set", "argument": argument})
    assert "table.key=value" in client.line()["error"]
    assert run.sent == []


def test_any_number_may_watch_up_to_a_limit(run, connect, monkeypatch):
    monkeypatch.setattr(control_server, "CLIENTS_LIMIT", 40)
    clients = [connect(run) for _ in range(40)]
    for client in clients:
        assert client.line()["hello"]
    assert connect(run).is_dropped()
    run.tell(1)
    for client in clients:
        assert client.line()["event"]["step"] == 1
    clients[0].close()
    run.tell(2)
    wait_for(lambda: len(run.server._clients) == 39)
    assert connect(run).line()["hello"]


def test_a_process_without_files_left_takes_clients_later(run, connect, monkeypatch):
    monkeypatch.setattr(control_server, "DEAF_S", 0.05)
    real: socket.socket = run.server._listener
    refusals: list[int] = []

    class Full:
        def accept(self):
            if len(refusals) < 3:
                refusals.append(1)
                raise OSError(24, "Too many open files")
            return real.accept()

        def fileno(self):
            return real.fileno()

    full = Full()
    run.server._selector.unregister(real)
    run.server._listener = full
    run.server._selector.register(full, 1)
    client = connect(run)
    assert client.line()["hello"] == 1
    assert len(refusals) == 3
    run.tell(1)
    assert client.line()["event"]["step"] == 1
