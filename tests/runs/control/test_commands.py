"""The control socket: commands reach the session, and other input does no harm."""

import contextlib
import socket
import threading

import pytest

from mptui.events import CommandAnswered
from mptui.runs.remote import control
from mptui.runs.remote.control import COMMANDS_A_SECOND
from tests.made.waiting import wait_until
from tests.runs.control.clients import DEADLINE_S


def test_commands_go_to_the_session(run, connect):
    client = connect(run)
    client.line()
    client.say({"command": "pause"})
    client.say(b'{"command":"preset","argument":"stable"}\n{"command":"stop","argument":7}\n')
    client.say({"command": "undo"})
    wait_until(lambda: len(run.sent) == 4)
    assert run.sent == [("pause", None), ("preset", "stable"), ("stop", None), ("undo", None)]


@pytest.mark.parametrize(("said", "by"), [({}, "script"), ({"by": "key"}, "key"), ({"by": "boss"}, "script")])
def test_who_asks_is_a_script_unless_it_is_a_key_of_a_screen(run, connect, said, by):
    client = connect(run)
    client.line()
    client.say({"command": "pause", **said})
    wait_until(lambda: run.sent)
    assert run.asked_by == [by]


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
    wait_until(lambda: run.sent)
    assert run.sent == [("pause", None)]


@pytest.mark.parametrize("data", [b"x" * 100_000, b"\n" * 1000, b'{"command":"rm"}\n' * 1000])
def test_who_says_too_much_is_dropped_and_the_others_stay(run, connect, data):
    client, other = connect(run), connect(run)
    other.line()
    with contextlib.suppress(ConnectionError):
        client.say(data)
    assert client.is_dropped()
    run.tell(1)
    assert other.line() == {}
    assert run.sent == []


@pytest.mark.parametrize("command", [b"pause", b"checkpoint"])
def test_a_flood_of_commands_is_stemmed(run, connect, command):
    client = connect(run)
    client.say(b'{"command":"%s"}\n' % command * 500)
    client.say(b'{"command":"rm"}\n' * 20)
    assert client.is_dropped()
    assert len(run.sent) <= COMMANDS_A_SECOND


def test_a_stop_and_a_save_reach_the_run_under_a_flood_and_are_answered_by_their_ids(run, connect):
    flood, client = connect(run), connect(run)
    flood.line()
    client.line()
    flood.say(b'{"command":"pause"}\n' * COMMANDS_A_SECOND)
    wait_until(lambda: len(run.sent) == COMMANDS_A_SECOND)
    for number, command in enumerate(("pause", "stop", "checkpoint")):
        client.say({"command": command, "id": str(number)})
    refused, *answers = (client.line() for _ in range(3))
    assert refused == {"error": "too many commands at once", "answer": "0"}
    assert answers == [{"answer": "1", "state": "asked"}, {"answer": "2", "state": "asked"}]
    assert run.sent[COMMANDS_A_SECOND:] == [("stop", None), ("checkpoint", None)]


def test_a_held_key_does_not_end_its_connection(run, connect):
    client = connect(run)
    client.line()
    for second in range(4):  # a keyboard repeats a key more often than commands are taken
        run.now = float(second)
        for _ in range(2 * COMMANDS_A_SECOND):
            client.say({"command": "pause"})
        wait_until(lambda: len(run.sent) == COMMANDS_A_SECOND * (second + 1))  # noqa: B023 - called at once
        for _ in range(COMMANDS_A_SECOND):
            assert "too many commands" in client.line()["error"]
    run.now = 9.0
    client.say({"command": "validate", "id": "v"})
    assert client.line() == {"error": "not now", "answer": "v"}


def test_invalid_lines_now_and_then_do_not_end_a_connection(run, connect):
    client = connect(run)
    client.line()
    for second in range(2 * control.FAULTS_LIMIT):
        run.now = float(second)
        client.say({"command": "rm"})
        assert "unknown command" in client.line()["error"]


def test_a_save_that_is_asked_for_while_another_is_under_way_follows_it(run, connect):
    client = connect(run)
    client.line()
    client.say(b'{"command":"pause"}\n' * COMMANDS_A_SECOND + b'{"command":"checkpoint"}\n' * 5)
    wait_until(lambda: ("checkpoint", None) in run.sent)
    run.server.handle(CommandAnswered(command="checkpoint", state="taken"))
    client.say({"command": "checkpoint"})
    wait_until(lambda: run.sent.count(("checkpoint", None)) == 2)


def test_the_commands_of_a_second_are_limited_for_all_clients_together_and_for_that_second(run, connect):
    first, second = connect(run), connect(run)
    for client in (first, second):
        client.line()
        client.say(b'{"command":"pause"}\n' * (COMMANDS_A_SECOND // 2))
    wait_until(lambda: len(run.sent) == COMMANDS_A_SECOND)
    for client in (first, second, connect(run)):
        client.say({"command": "pause"})
        told = client.line()
        assert "too many commands" in (told if "error" in told else client.line())["error"]
    assert len(run.sent) == COMMANDS_A_SECOND
    run.now = 1.0
    first.say(b'{"command":"resume"}\n' * COMMANDS_A_SECOND)
    wait_until(lambda: len(run.sent) == 2 * COMMANDS_A_SECOND)
    second.say({"command": "resume"})
    assert "too many commands" in second.line()["error"]


def test_a_setting_reaches_the_session_as_it_was_written(run, connect):
    client = connect(run)
    client.line()
    client.say({"command": "set", "argument": "training.lr=1e-3"})
    client.say({"command": "set", "argument": "data.name=a b=c"})
    wait_until(lambda: len(run.sent) == 2)
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
    monkeypatch.setattr(control, "CLIENTS_LIMIT", 40)
    clients = [connect(run) for _ in range(40)]
    for client in clients:
        assert client.line()["protocol"]
    assert connect(run).is_dropped()
    run.tell(1)
    for client in clients:
        assert client.line() == {}
    clients[0].close()
    run.tell(2)
    wait_until(lambda: len(run.server._clients) == 39)
    assert connect(run).line()["protocol"]


def test_a_process_without_files_left_takes_clients_later(run, connect, monkeypatch):
    monkeypatch.setattr(control, "ACCEPT_PAUSE_S", 0.05)
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
    assert client.line()["protocol"] == control.VERSION
    assert len(refusals) == 3
    run.tell(1)
    assert client.line() == {}


def test_a_command_of_a_client_that_has_left_is_obeyed(run, connect):
    begun, over = threading.Event(), threading.Event()
    obey = run.server._send

    def obey_slowly(*command):
        begun.set()
        over.wait(DEADLINE_S)
        obey(*command)

    run.server._send = obey_slowly
    connect(run).say({"command": "pause"})
    assert begun.wait(DEADLINE_S)
    leaver = connect(run)  # the server is busy: it accepts this one after it has left
    leaver.say({"command": "stop"})
    leaver.close()
    over.set()
    wait_until(lambda: ("stop", None) in run.sent)
    wait_until(lambda: len(run.server._clients) == 1)
