"""Children of a fork server: their inputs, how they end, and that they end with their client."""

import json
import os
import pty
import signal
import subprocess

import psutil
import pytest

from mptui.processes.start import ForkServer, exit_code_name, shell_exit_code, start
from tests.made.waiting import wait_until
from tests.program import Program, execute

LIMIT_S = 30
CODE = f"{execute.__module__}:{execute.__name__}"

# another process keeps the server's socket open
FORK_SERVER = """
import signal, subprocess
from mptui.processes.start import ForkServer
server = ForkServer(())
child = server.start("signal:pause")
keeper = subprocess.Popen(["sleep", "1000"], pass_fds=[server._socket.fileno()])
print(keeper.pid, server.pid, child.pid, flush=True)
signal.pause()
"""

RELAY = """
import signal, subprocess, sys
from pathlib import Path
import benchmarks.relay as relay
stops = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
relay.command = lambda *_: [sys.executable, "-c", stops]
keeper = subprocess.Popen(["sleep", "1000"])
runner = relay.Runner("mptui", None, 1, Path(sys.argv[1]))
runner.wait()
print(keeper.pid, runner._process.pid, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("program", [FORK_SERVER, RELAY], ids=["fork server", "relay"])
def test_children_end_with_a_parent_that_is_killed(tmp_path, program):
    parent = Program(program, tmp_path, call=CODE)
    keeper, *children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    try:
        wait_for_ends(children)
    finally:
        for process in (keeper, *children):
            if runs(process):
                process.kill()


def wait_for_ends(processes):
    """Wait until they have ended; who takes their exit codes may take a second."""
    wait_until(lambda: not any(map(runs, processes)), processes)


def runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def server():
    with ForkServer(("tests.program",)) as server:
        yield server


def said(server, code, **options):
    """Run code in a child; return its output and exit code."""
    read, write = os.pipe()
    with os.fdopen(read) as stream:
        child = server.start(CODE, code, streams=(None, write, write), **options)
        os.close(write)
        return stream.read(), child.wait(LIMIT_S)


def test_a_child_has_its_own_environment_folder_session_and_modules(server, tmp_path):
    leads = "os.getsid(0) == os.getpid()"
    code = f"import json, os; print(json.dumps([dict(os.environ), os.getcwd(), {leads}]))"
    told, ended = said(server, code, environ={"ONLY": "this"}, folder=str(tmp_path))
    assert (json.loads(told), ended) == ([{"ONLY": "this"}, str(tmp_path), True], 0)
    assert said(server, "import sys; sys.tests_were_here = 1") == ("", 0)
    assert said(server, "import sys; print(hasattr(sys, 'tests_were_here'))") == ("False\n", 0)


@pytest.mark.parametrize(
    ("code", "ended", "words"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import atexit; atexit.register(print, 'last words')", 0, "last words"),
        ("import threading, time; threading.Timer(0.1, print, ['a thread']).start()", 0, "a thread"),
    ],
)
def test_a_child_ends_as_an_interpreter_does(server, code, ended, words):
    told, exit_code = said(server, code)
    assert exit_code == ended
    assert words in told


def test_a_child_is_stopped_by_signals_and_a_limit_on_the_wait_leaves_it_running(server):
    child = server.start("signal:pause")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.wait(LIMIT_S) == -signal.SIGTERM
    child.kill()  # no effect on one that has ended


def test_a_terminal_as_stdin_is_the_child_s_own(server):
    leader, follower = pty.openpty()
    # blocked, and so not lost in a callback of the garbage collection
    code = (
        "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]);"
        "print(os.tcgetpgrp(0) == os.getpid(), flush=True);"
        "raise SystemExit(int(signal.sigwait([signal.SIGINT])))"
    )
    child = server.start(CODE, code, streams=(follower,) * 3)
    os.close(follower)
    assert os.read(leader, 100) == b"True\r\n"
    os.write(leader, b"\x03")
    assert child.wait(LIMIT_S) == signal.SIGINT
    os.close(leader)


def test_a_server_that_has_ended_is_told():
    server = ForkServer(())
    child = server.start("signal:pause")
    process = psutil.Process(child.pid)
    psutil.Process(server.pid).kill()
    with pytest.raises(RuntimeError, match="has ended"):
        child.wait(LIMIT_S)
    server.close()
    wait_for_ends([process])


def test_a_fresh_interpreter_has_this_one_s_modules_and_neither_terminal_nor_streams(tmp_path, monkeypatch):
    code = "import os, sys\ndef main(): print(os.getsid(0) == os.getpid(), sys.stdin.read(), sys.argv[1:])"
    (tmp_path / "only_here.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with start("only_here:main", "a b", stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.read() == "True  ['a b']\n"


def test_where_a_fork_is_not_safe_each_child_is_a_fresh_interpreter(monkeypatch):
    monkeypatch.setattr("mptui.processes.start._FORKS", False)
    with ForkServer(()) as server:
        assert said(server, "print(2)") == ("2\n", 0)
        sleeper = server.start("signal:pause")
    assert sleeper.poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("code", "name", "shell"), [(0, "code 0", 0), (3, "code 3", 3), (-9, "SIGKILL", 137)]
)
def test_exit_codes_have_names(code, name, shell):
    assert (exit_code_name(code), shell_exit_code(code)) == (name, shell)
