"""The control socket: who may connect, and its cleanup."""

import os
import socket
import subprocess
import sys

import pytest

from mptui.runs.remote import control
from mptui.runs.store.journal import NAME
from tests.runs.control.clients import DEADLINE_S, mode


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
    assert connect(run).line()["protocol"] == control.VERSION


def test_another_user_is_refused(run, monkeypatch):
    monkeypatch.setattr(control, "peer_uid", lambda _: os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(DEADLINE_S)
        stranger.connect(str(run.path / "control.sock"))
        assert stranger.recv(100) == b""
    with pytest.raises(PermissionError):  # nor does a client connect to another user's socket
        control.connect(run.path, DEADLINE_S)


def test_the_other_end_is_told_by_the_system(run):
    with control.connect(run.path, DEADLINE_S) as connection:
        assert control.peer_uid(connection) == os.geteuid()


def test_what_a_killed_run_left_is_taken_over(begin, short, connect):
    path = short / "run"
    path.mkdir()
    code = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(path / "control.sock")], check=False)
    with pytest.raises(ConnectionRefusedError):
        control.connect(path, DEADLINE_S)
    assert connect(begin(path)).line()["protocol"] == control.VERSION


def test_nothing_is_left_of_the_socket(run):
    run.end()
    assert [path.name for path in run.path.iterdir()] == [NAME]
