"""Children of `selftest` and of the benchmarks' relay end with it, wherever they stand."""

import subprocess
import sys
import time

import psutil
import pytest

LIMIT_S = 30

# the run waits for a reader of what it prints, and another process keeps the server's stdin open
SELFTEST = """
import os, subprocess, sys
from pathlib import Path
from mptui.lab.crash.forkserver import ForkServer
output = Path(sys.argv[1], "output")
os.mkfifo(output)
server = ForkServer()
child = server.start(["profiles"], output)
keeper = subprocess.Popen(["sleep", "1000"], pass_fds=[server._server.stdin.fileno()])
print(keeper.pid, server._server.pid, child.pid, flush=True)
sys.stdin.read()
"""

RELAY = """
import subprocess, sys
from pathlib import Path
import benchmarks.relay as relay
stops = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
relay.command = lambda *_: [sys.executable, "-c", stops]
keeper = subprocess.Popen(["sleep", "1000"])
runner = relay.Runner("mptui", None, 1, Path(sys.argv[1]))
runner.wait()
print(keeper.pid, runner._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("program", [SELFTEST, RELAY], ids=["selftest", "relay"])
def test_children_end_with_a_parent_that_is_killed(tmp_path, program):
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    keeper, *children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    try:
        until = time.monotonic() + LIMIT_S
        while any(map(runs, children)):
            assert time.monotonic() < until, children
            time.sleep(0.01)
    finally:
        for process in (keeper, *children):
            if runs(process):
                process.kill()


def runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
