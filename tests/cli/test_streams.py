"""Runs and commands whose standard streams are closed, full, or lose their reader."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from mptui.engine.mailbox import INSIST_S
from mptui.events import EpochFinished, PhaseChanged
from mptui.processes.start import MAIN
from mptui.runs.store.directory import read_summary
from mptui.runs.store.journal import read_journal
from mptui.runs.store.lock import owner_of
from tests.cli.calls import call
from tests.cli.test_detach import ENDLESS, SMALL
from tests.made.waiting import wait_until
from tests.program import DEADLINE_S, run_to_end, server

pytestmark = pytest.mark.program
slow = partial(pytest.param, marks=pytest.mark.slow)

MPTUI = f"{sys.executable} -m mptui"
COMMAND = ("run", "--runs-dir", ".", "--name", "run")
WITHOUT = "tests.program:without"
SHORT = {**SMALL, "MPTUI_TRAINING_MAX_STEPS": "2"}


def started(folder, environ, *arguments, streams, program=MAIN):
    """Start a run in a separate session."""
    words = (*COMMAND, *arguments)
    environ = {**os.environ, **environ}
    return server().start(program, *words, streams=streams, environ=environ, folder=str(folder))


def on_a_full_disk(folder, *arguments, environ=SHORT):
    """Run to the end with an unwritable stdout; return the exit code and stderr."""
    with Path("/dev/full").open("wb") as full, (folder / "stderr").open("wb") as complaint:
        streams = (None, full.fileno(), complaint.fileno())
        process = started(folder, environ, *arguments, streams=streams)
        return process.wait(DEADLINE_S), (folder / "stderr").read_text()


def epochs(run):
    return sum(isinstance(event, EpochFinished) for event in read_journal(run))


@pytest.mark.parametrize(
    ("reader", "number", "code"),
    [
        ("tee log", signal.SIGHUP, 143),
        slow("tee log", signal.SIGINT, 130),
        slow("head -1", None, 143),
    ],
)
def test_a_run_outlives_the_reader_of_its_pipe(tmp_path, reader, number, code):
    run = tmp_path / "run"
    read, write = os.pipe()
    with (tmp_path / "shown").open("wb") as shown:
        taker = subprocess.Popen(reader.split(), cwd=tmp_path, stdin=read, stdout=shown)
    process = started(tmp_path, ENDLESS, streams=(None, write, write))
    os.close(read)
    os.close(write)
    wait_until(lambda: epochs(run) or process.poll() is not None)
    owner = owner_of(run)
    assert owner is not None
    if number is not None:
        os.killpg(process.pid, number)
        taker.send_signal(number)
    if code == 143:
        before = epochs(run)
        wait_until(lambda: epochs(run) >= before + 3 or owner_of(run) is None)
        os.kill(owner, signal.SIGTERM)
    assert process.wait(DEADLINE_S) == code
    taker.wait(DEADLINE_S)
    assert "Traceback" not in (tmp_path / "shown").read_text()
    assert (read_summary(run)["status"], read_summary(run)["exit_code"]) == ("stopped", code)


def needs_no_stream(code, complaint, run):
    assert code == 0
    assert "Traceback" not in complaint
    assert "Exception" not in complaint
    assert read_summary(run)["status"] == "completed"
    records = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert records[-1]["event"] == "run_finished"


@pytest.mark.parametrize("closed", [slow("stderr"), "stdin,stdout,stderr"])
def test_a_run_needs_no_standard_streams(tmp_path, closed):
    ended = run_to_end(closed, *COMMAND, environ=SHORT, folder=tmp_path, call=WITHOUT)
    needs_no_stream(ended.returncode, ended.stderr, tmp_path / "run")


def test_a_run_needs_no_room_for_what_it_tells(tmp_path):
    with Path("/dev/full").open("wb") as full:
        process = started(tmp_path, SHORT, streams=(None, full.fileno(), full.fileno()))
    needs_no_stream(process.wait(DEADLINE_S), "", tmp_path / "run")


def test_a_reader_that_has_read_enough_ends_a_command_as_by_its_signal(tmp_path):
    script = f"set -o pipefail; {MPTUI} profiles list --json | true"
    ended = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) in {(141, ""), (0, "")}  # 0: written before the reader has gone


@pytest.mark.parametrize("command", ["runs", slow("profiles list --json"), slow("detect")])
@pytest.mark.parametrize(("where", "expected"), [("/dev/full", 7), ("&-", 0)])
def test_a_result_that_can_not_be_written_is_told_in_two_lines(tmp_path, command, where, expected):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.toml").touch()
    environ, words = {"MPTUI_RUNS_DIR": str(tmp_path)}, command.split()
    if where == "/dev/full":
        with Path(where).open("wb") as full:
            ended = call(*words, environ=environ, folder=tmp_path, stdout=full)
    else:
        ended = run_to_end("stdout", *words, environ=environ, folder=tmp_path, call=WITHOUT)
    assert ended.returncode == expected
    assert "Traceback" not in ended.stderr
    told = "mptui: standard output: No space left on device\n  free disk space, or redirect the output\n"
    assert ended.stderr.endswith(told) == (expected == 7)


def test_a_document_that_can_not_be_written_is_told(tmp_path):
    code, complaint = on_a_full_disk(tmp_path, "--json")
    assert code == 7
    assert complaint.count("mptui: ") == 1
    assert read_summary(tmp_path / "run")["exit_code"] == 0


def test_a_detached_run_that_can_not_be_told_is_told_on_stderr(tmp_path):
    code, complaint = on_a_full_disk(tmp_path, "--detach", "--json", environ=ENDLESS)
    owner = owner_of(tmp_path / "run")
    assert owner is not None
    os.kill(owner, signal.SIGKILL)
    assert code == 7
    assert "standard output: No space left on device" in complaint
    assert re.search(r"continues: mptui attach \S*run; mptui stop", complaint)


def test_a_second_interrupt_shows_the_cursor_again(tmp_path):
    leader, follower = pty.openpty()
    shown = bytearray()

    def take():
        while True:
            try:
                shown.extend(os.read(leader, 1 << 16))
            except OSError:  # the other end is closed
                return

    reader = threading.Thread(target=take)
    reader.start()
    environ = {**ENDLESS, "TERM": "xterm-256color"}
    streams = (None, follower, follower)
    process = started(tmp_path, environ, streams=streams, program="tests.runs.slow_save:run")
    os.close(follower)
    wait_until(lambda: b"\x1b[?25l" in shown and b"[Train]" in shown)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: any(map(is_stop, read_journal(tmp_path / "run"))))
    time.sleep(INSIST_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    reader.join()
    os.close(leader)
    assert read_summary(tmp_path / "run")["status"] == "running"  # the first SIGINT did not end it
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")


def is_stop(event):
    return isinstance(event, PhaseChanged) and event.phase == "saving"
