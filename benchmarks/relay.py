"""Runs sides in turn, each in a separate process that is suspended while another runs.

A machine's speed drifts within seconds by more than the sides differ. So all are started, and then run in
turn for some steps each, in forward and backward order: compared turns are a second apart. A process that has
finished its steps stops itself (SIGSTOP), with all its threads and clocks (`benchmarks.subjects.Clock`).
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import turn
from benchmarks.sides import command, environment
from benchmarks.subjects import WAKING, Case
from mptui.processes.start import end_with_parent


class Runner:
    """The process of one side.

    Args:
        side: `mptui`, or one of SIDES.
        case: The training case; the process stops itself after each block of steps.
        threads: Compute threads on the CPU.
        folder: An empty folder for its files.
    """

    def __init__(self, side: str, case: Case, threads: int, folder: Path) -> None:
        self.side = side
        self._told, self._said = folder / "figures.json", folder / "said"
        with self._said.open("wb") as said:  # a file, since a pipe could fill up
            self._process = subprocess.Popen(
                command(side, case, self._told, folder),
                env=environment(threads),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )

    def wait(self) -> None:
        """Waits until the process is stopped or has ended.

        Raises:
            RuntimeError: It failed; the message has the end of its output.
        """
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode or not self._told.exists():
            raise RuntimeError(f"{self.side} failed:\n{self._said.read_text(errors='replace')[-3000:]}")

    def go_on(self) -> None:
        """Resumes the process until it stops or ends."""
        self._process.send_signal(signal.SIGCONT)
        self.wait()

    def figures(self) -> dict[str, Any]:
        """Returns the figures that the process wrote at its end."""
        told: dict[str, Any] = json.loads(self._told.read_text())
        return told

    def close(self) -> None:
        """Kills the process in any state."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


def relay(
    case: Case, sides: Sequence[str], *, turns: int, block: int, threads: int, clock: str
) -> dict[str, float]:
    """Returns the throughput of each side, as the median of its turns.

    Args:
        case: The training case, for as many steps as the turns take.
        sides: `mptui` or names of SIDES; all are started anew.
        turns: Turns of each side.
        block: Timed steps per turn.
        threads: Compute threads on the CPU.
        clock: `wall`, or `cpu` for CPU time.

    Raises:
        RuntimeError: A side failed.
    """
    case = replace(case, steps=case.warm_up + turns * (WAKING + block) + 1, block=block)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runners = {}
        for side in sides:
            own = Path(folder, side)
            own.mkdir()
            runners[side] = Runner(side, case, threads, own)
            stack.callback(runners[side].close)
            runners[side].wait()
        for number in range(turns):
            for side in turn(sides, number):
                runners[side].go_on()
        return {
            side: case.batch / statistics.median(runner.figures()[f"{clock}_blocks_s"])
            for side, runner in runners.items()
        }
