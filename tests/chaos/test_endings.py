"""Every way of ending at every moment: what was trained is on disk, or the exit code and the words count it.

Nothing of a run that has ended is left: no process, no lock, no socket, no shared memory. The modes of the
terminal are those of tests/e2e/test_terminal.py.
"""

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import INSIST_S
from mptui.errors import DiskError, RunDirectoryError
from mptui.events import Step
from mptui.processes.start import MAIN
from mptui.runs.remote import control
from mptui.runs.remote.feed import Connection
from mptui.runs.store.journal import read_journal
from tests.chaos.runs import LIMIT_S, LOOK_S, in_phase, stepped, wait_for
from tests.program import run_to_end
from tests.run_server import Child

pytestmark = pytest.mark.slow

OWN = """
import os, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=2):
        super().__init__()
        self.layer = nn.Linear(3, num_classes)

    def forward(self, images):
        fault = os.environ["FAULT"]
        if os.path.exists(fault):
            kind = open(fault).read()
            raise {
                "error": RuntimeError("a fault of its own"),
                "key": KeyError("a key of its own"),
                "exit": SystemExit(3),
                "memory": MemoryError(),
                "device memory": torch.OutOfMemoryError("CUDA out of memory"),
                "file": OSError(5, "a file of its own"),
            }[kind]
        return self.layer(images.mean((2, 3)))
"""
SETS = {
    "training.epochs": 100_000,
    "logging.step_interval_s": 0,
    "checkpoint.every_steps": 10,
    "data.image_size": 16,
    "data.cache": "off",
    "hardware.device": "cpu",
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGKILL: -9}


class Run:
    """A run that is about to end."""

    def __init__(self, server, folder):
        self.folder, self.path, self.fault = folder, folder / "run", folder / "fault"
        (folder / "own.py").write_text(OWN)
        sets = {**SETS, "data.samples": 64, "data.workers": 2}
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        words += ["--model", "own:Net", "--task", "classification", "--trust-code", "--batch-size", "4"]
        output = folder / "out"
        with output.open("wb") as file:
            started = server.start(
                *(MAIN, "run", "--name", "run", "--runs-dir", str(folder), "-q", *words),
                streams=(None, file.fileno(), file.fileno()),
                environ={**os.environ, "FAULT": str(self.fault), "OMP_NUM_THREADS": "1"},
                folder=str(folder),
            )
        self.child = Child(started, output)
        self.family: set[psutil.Process] = set()

    def reach(self, moment):
        if moment == "waiting":
            wait_for(self.child, self.path, stepped(2))
            Connection(self.path).send("pause")
        if moment == "saving":
            wait_for(self.child, self.path, stepped(2))
            self.child.send(signal.SIGUSR2)
        wait_for(self.child, self.path, MOMENTS[moment])
        with contextlib.suppress(psutil.NoSuchProcess):
            self.family |= set(psutil.Process(self.child.pid).children(recursive=True))

    def go_on(self):
        """Resume it if it is paused: its network is not called before."""
        with contextlib.suppress(OSError):
            Connection(self.path).send("resume")

    def stop(self, *more):
        return run_to_end("stop", "run", "--runs-dir", self.folder, *more)


MOMENTS = {
    "before the first step": in_phase("starting"),
    "in a step": stepped(3),
    "in validation": in_phase("validating"),
    "saving": in_phase("saving"),
    "waiting": in_phase("paused"),
}


def by_signal(number):
    def end(run):
        run.child.send(number)
        return {CODES[number]}

    return end


def by_fault(kind, code):
    def end(run):
        written = run.fault.with_suffix(".new")
        written.write_text(kind)
        written.rename(run.fault)
        run.go_on()
        return {code}

    return end


def by_command(run):
    assert run.stop().returncode == 0
    return {0, 143}


def by_command_under_flood(run):
    def flood():
        while run.child.poll() is None:
            with contextlib.suppress(OSError), control.connect(run.path, 5.0) as connection:
                while run.child.poll() is None:
                    connection.sendall(b'{"command":"validate"}\n{"command":"resume"}\n' * 20)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    assert run.stop().returncode == 0
    return {0, 143}


def by_a_disk_that_takes_no_checkpoint(run):
    place = run.path / "checkpoints"
    shutil.rmtree(place, ignore_errors=True)
    place.write_text("a file where the folder was")
    run.child.send(signal.SIGTERM)
    time.sleep(2 * INSIST_S)
    run.child.send(signal.SIGTERM)
    return {7, 143}


def by_killing_workers(run):
    run.go_on()
    until = time.monotonic() + LIMIT_S
    while run.child.poll() is None and time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(run.child.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "mptui.data.worker" in " ".join(process.cmdline()):
                        run.family.add(process)
                        process.kill()
        time.sleep(LOOK_S)
    return {3}


ENDS = {
    "SIGINT": by_signal(signal.SIGINT),
    "SIGTERM": by_signal(signal.SIGTERM),
    "SIGUSR1": by_signal(signal.SIGUSR1),
    "SIGKILL": by_signal(signal.SIGKILL),
    "stop": by_command,
    "stop under a flood": by_command_under_flood,
    "no disk": by_a_disk_that_takes_no_checkpoint,
    "workers killed": by_killing_workers,
    "own error": by_fault("error", 1),
    "own key": by_fault("key", 1),
    "own file": by_fault("file", 1),
    "own exit": by_fault("exit", 1),
    "host memory": by_fault("memory", 5),
    "device memory": by_fault("device memory", 5),
}


def shared_memory():
    return {path.name for path in Path("/dev/shm").iterdir() if path.stat().st_uid == os.geteuid()}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("end", ENDS)
def test_what_was_trained_is_saved_or_counted_and_nothing_is_left(fork_server, tmp_path, end, moment):
    before = shared_memory()
    run = Run(fork_server, tmp_path)
    run.reach(moment)
    codes = ENDS[end](run)
    code = run.child.wait(LIMIT_S)
    said = run.child.output()
    assert code in codes, said
    steps = (
        [event.step for event in read_journal(run.path) if isinstance(event, Step)]
        if run.path.exists()
        else []
    )
    trained = max(steps, default=0)
    saved = 0
    with contextlib.suppress(RunDirectoryError, DiskError):
        saved = read_newest(run.path / "checkpoints")[0].step
    if saved < trained:
        assert code not in {0, 130, 143}, (saved, trained, said)
        told = said if code != -signal.SIGKILL else run.stop().stdout
        assert "lost" in told, (saved, trained, told)
    _, alive = psutil.wait_procs(list(run.family), timeout=30)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert shared_memory() <= before
    if code != -signal.SIGKILL:
        assert not (run.path / "lock.json").exists()
        assert not os.path.lexists(run.path / "control.sock")
