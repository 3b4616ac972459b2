"""Sides that stand still while another one works, each in a process of its own.

A machine's speed drifts by more, within seconds, than the sides differ by. So all of them are started, and
then go on in turn for some steps each, forwards and backwards: what is compared is a second apart. A process
that has done its steps stops itself (SIGSTOP), with all its threads and clocks (`benchmarks.subjects.Clock`).
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
from mptui.processes.child import end_with_parent


class Runner:
    """The process of one side.

    Args:
        side: `mptui`, or one of SIDES.
        case: What is trained; after a block of its steps the process stands still.
        threads: That compute on the CPU.
        folder: An empty one, for its files.
    """

    def __init__(self, side: str, case: Case, threads: int, folder: Path) -> None:
        self.side = side
        self._told, self._said = folder / "figures.json", folder / "said"
        with self._said.open("wb") as said:  # no pipe, which would be full once
            self._process = subprocess.Popen(
                command(side, case, self._told, folder),
                env=environment(threads),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )

    def wait(self) -> None:
        """Until it stands still, or has ended.

        Raises:
            RuntimeError: It failed; with the end of what it wrote.
        """
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode or not self._told.exists():
            raise RuntimeError(f"{self.side} failed:\n{self._said.read_text(errors='replace')[-3000:]}")

    def go_on(self) -> None:
        """Let it work until it stands still again, or has ended."""
        self._process.send_signal(signal.SIGCONT)
        self.wait()

    def figures(self) -> dict[str, Any]:
        """What it told at its end."""
        told: dict[str, Any] = json.loads(self._told.read_text())
        return told

    def close(self) -> None:
        """End it, wherever it stands."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()


def relay(
    case: Case, sides: Sequence[str], *, turns: int, block: int, threads: int, clock: str
) -> dict[str, float]:
    """Images a second of each side, by the median of its turns.

    Args:
        case: What is trained, for as many steps as the turns take.
        sides: `mptui`, or of SIDES; all are started anew.
        turns: Of each side.
        block: Timed steps of a turn.
        threads: That compute on the CPU.
        clock: wall, or cpu for the processors' time.

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
