"""The process that feeds trackers: it changes nothing of the run, and what was missed comes later."""

import os
import signal
import socket
import subprocess

import psutil
import pytest

from mptui.errors import ConfigError, RunDirectoryError, TrackerError
from mptui.processes.start import start
from mptui.registry.trackers import TRACKERS
from mptui.runs.trackers import feeder
from mptui.runs.trackers.feeder import RunTrackers, send_missing
from mptui.testing.tracker import course, scalars_in, write
from tests.made.waiting import wait_until
from tests.runs.trackers import toys
from tests.runs.trackers.journals import config, end

LIMIT_S = 120.0

pytestmark = pytest.mark.slow  # each starts an interpreter or two


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    for name, spec in toys.TOYS.items():
        monkeypatch.setitem(TRACKERS, name, spec)
    monkeypatch.setattr(feeder, "FEEDER", toys.CALL)


@pytest.fixture
def server(monkeypatch):
    """A server that accepts, and answers only where a test lets it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LIMIT_S)
        monkeypatch.setenv(toys.PORT, str(server.getsockname()[1]))
        yield server


def pid_of(trackers):
    assert trackers._process is not None
    return trackers._process.pid


def until_warned(trackers, warned):
    def told():
        trackers.beat()
        return warned

    wait_until(told)


def is_alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_blocked_and_failing_trackers_stop_no_other_and_lose_nothing(tmp_path, monkeypatch, server):
    monkeypatch.setattr(feeder, "END_S", 0.5)
    warned = []
    trackers = RunTrackers(tmp_path, lambda *warning: warned.append(warning))
    write(tmp_path, *course(1, 9))
    trackers.start(config(trackers=["lines", "blocked", "raises"]))
    connection, _ = server.accept()
    with connection:
        write(tmp_path, *course(10, 12), end(12))
        wait_until(lambda: toys.lines_of(tmp_path, "lines") == scalars_in(tmp_path))
        until_warned(trackers, warned)
        pid = pid_of(trackers)
        trackers.finish()
    assert trackers.unsent == ["blocked", "raises"]
    ((code, message),) = warned
    assert code == "tracker_failed"
    assert message == f"raises: no server; what is missing is sent later: mptui sync {tmp_path}"
    assert not is_alive(pid)
    assert toys.lines_of(tmp_path, "blocked") == []

    process = sync_in_background(tmp_path, "blocked")
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"!")
        again, _ = server.accept()  # the end of the tracker
        with again:
            again.sendall(b"!")
            assert process.wait(LIMIT_S) == 0
    assert toys.lines_of(tmp_path, "blocked") == scalars_in(tmp_path)
    assert toys.lines_of(tmp_path, "lines") == scalars_in(tmp_path)


def sync_in_background(run, *names):
    """Feed as `mptui sync` does, without waiting."""
    process = feeder.TrackerProcess(run, config(trackers=list(names)))
    process.tell_end()
    return process._process


def test_a_killed_process_is_told_once_and_a_resume_goes_on_exactly(tmp_path):
    warned = []
    trackers = RunTrackers(tmp_path, lambda *warning: warned.append(warning))
    write(tmp_path, *course(1, 9))
    trackers.start(config(trackers=["lines"]))
    wait_until(lambda: toys.lines_of(tmp_path, "lines") == scalars_in(tmp_path))
    wait_until(lambda: (tmp_path / "trackers.json").exists())
    os.kill(pid_of(trackers), signal.SIGKILL)
    until_warned(trackers, warned)
    trackers.beat()
    ((code, message),) = warned
    assert code == "tracker_failed"
    assert "ended (SIGKILL), see trackers.log" in message
    trackers.finish()
    assert trackers.unsent == ["lines"]

    write(tmp_path, *course(10, 20))
    resumed = RunTrackers(tmp_path, lambda *warning: pytest.fail(str(warning)))
    resumed.start(config(trackers=["lines"]))
    resumed.finish()
    assert resumed.unsent == []
    assert toys.lines_of(tmp_path, "lines") == scalars_in(tmp_path)


def test_no_process_stays_when_the_run_is_killed(tmp_path, server):
    write(tmp_path, *course(1, 3))
    run = start("tests.runs.trackers.toys:run_with_toys", str(tmp_path), stdout=subprocess.PIPE)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    connection, _ = server.accept()
    with connection:
        assert is_alive(pid)
        run.kill()
        run.wait()
        wait_until(lambda: not is_alive(pid))
    run.stdout.close()


def test_a_sync_tells_each_that_failed_and_sends_to_the_others(tmp_path, server):
    write(tmp_path, *course(1, 3), end(3))
    with pytest.raises(TrackerError) as raised:
        send_missing(tmp_path, config(trackers=["lines", "raises", "blocked"]))
    assert raised.value.message == "blocked has not answered for 2 s\nraises: no server"
    assert raised.value.exit_code == 8
    assert toys.lines_of(tmp_path, "lines") == scalars_in(tmp_path)


def test_a_tracker_that_ends_its_process_is_an_error_of_a_sync(tmp_path):
    write(tmp_path, *course(1, 3), end(3))
    with pytest.raises(TrackerError, match="kills: its process ended"):
        send_missing(tmp_path, config(trackers=["kills"]))


def test_a_sync_beside_the_run_that_feeds_is_refused(tmp_path, server):
    write(tmp_path, *course(1, 3))
    trackers = RunTrackers(tmp_path, lambda *_: None)
    trackers.start(config(trackers=["blocked"]))
    connection, _ = server.accept()
    with connection, pytest.raises(RunDirectoryError, match="another process feeds its trackers"):
        send_missing(tmp_path, config(trackers=["blocked"]))
    trackers.kill()


def test_without_a_tracker_a_sync_says_how_to_name_one(tmp_path):
    write(tmp_path, *course(1, 3))
    with pytest.raises(ConfigError) as raised:
        send_missing(tmp_path, config())
    assert "logging.trackers=" in raised.value.hint
