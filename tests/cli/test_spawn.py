"""Signals to a process that has started another one for its run, at the moments that are easily missed."""

import signal
import subprocess
import sys
from functools import partial

import pytest

BEGIN = """
import os, signal, sys, time
from mptui.cli.options import Background, QuietOutput
from mptui.cli.train.processes import begin_process

number, moment = int(sys.argv[1]), sys.argv[2]
fork = os.fork

def fork_and_signal():
    child = fork()
    if child and moment == "between":
        os.kill(os.getpid(), number)
    return child

def train(ready, output):
    if moment == "between":
        time.sleep(300)
    return 3

os.fork = fork_and_signal
parent = os.getpid()
code = begin_process(train, Background(isolate=True), QuietOutput(), resumes=False)
if os.getpid() == parent and moment == "after":
    os.kill(parent, number)
sys.exit(code)
"""
slow = partial(pytest.param, marks=pytest.mark.slow)
FORWARDED = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]


def begun(number, moment):
    return subprocess.run(
        [sys.executable, "-c", BEGIN, str(int(number)), moment],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, *map(slow, FORWARDED[2:])])
def test_a_signal_as_the_process_of_the_run_begins_goes_to_that_process(number):
    ended = begun(number, "between")
    if number == signal.SIGINT:  # Python's own handler raises in the process of the run
        assert "KeyboardInterrupt" in ended.stderr
        assert ended.returncode > 0
    else:
        assert (ended.returncode, ended.stderr) == (128 + number, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, *map(slow, FORWARDED[1:])])
def test_a_signal_after_the_end_of_the_run_leaves_its_exit_code(number):
    ended = begun(number, "after")
    assert (ended.returncode, ended.stderr) == (3, "")
