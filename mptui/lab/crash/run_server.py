"""Real runs in separate processes, which can be killed at any moment or at a chosen call of a save."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mptui.lab.crash.faults import Fault, failing, faulty_disk, kill_this_process, stop_this_process
from mptui.processes.child import function_of
from mptui.processes.fork_server import ForkedChild, ForkServer

MAIN = "mptui.cli.main:main"
"""Entry point of the command `mptui`."""

# torch imports its compiler as it builds the first optimizer, which takes 2 s: once will do
RUN_MODULES = ("torch._dynamo", "mptui.cli.main", "mptui.runs.planning.plan", "mptui.runs.session.session")
"""What a run imports."""


class RunServer(ForkServer):
    """A fork server that has imported everything a run needs."""

    def __init__(self, *preload: str) -> None:
        super().__init__((*RUN_MODULES, *preload), {**os.environ, "OMP_NUM_THREADS": "1"})

    def run(
        self,
        arguments: Sequence[object],
        output: Path,
        *,
        environ: Mapping[str, str] | None = None,
        disk: Mapping[str, Any] | None = None,
    ) -> "Child":
        """Start `mptui ARGUMENTS`.

        Args:
            arguments: Arguments as in the shell.
            output: File for stdout and stderr.
            environ: Additions to the environment.
            disk: Disk fault: `folder`, and `at`, `when`, `error` (None kills the process, "stop" stops it),
                `count`, `only`, `name` of a `Fault`.
        """
        words = [str(argument) for argument in arguments]
        call = (MAIN, *words) if disk is None else (f"{__name__}:with_faulty_disk", json.dumps(disk), *words)
        with output.open("wb") as file:
            streams = (None, file.fileno(), file.fileno())
            child = self.start(*call, streams=streams, environ={**os.environ, **(environ or {})})
        return Child(child, output)


class Child:
    """A run in a separate process."""

    def __init__(self, process: "ForkedChild | subprocess.Popen[bytes]", output: Path) -> None:
        self._process, self._output = process, output
        self.poll, self.send = process.poll, process.send_signal

    @property
    def pid(self) -> int:
        """The PID."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while the end is unknown."""
        return self._process.returncode

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit code; kill the process at the limit.

        Raises:
            TimeoutError: It did not end in time.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            raise TimeoutError(f"no end after {timeout_s:g} s\n{self.output()}") from None

    def output(self) -> str:
        """Return the output on stdout and stderr so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""


def with_faulty_disk() -> None:
    """Run `mptui` on the faulty disk described in JSON by the first of `argv`."""
    disk = json.loads(sys.argv.pop(1))
    with faulty_disk(Path(disk["folder"]), fault_of(disk)):
        function_of(MAIN)()


def fault_of(disk: Mapping[str, Any]) -> Fault | None:
    """Return the fault that a request describes; None if it only counts calls."""
    if "at" not in disk:
        return None
    error = disk["error"]
    strike = _STRIKES[error] if error in _STRIKES else failing(error)
    options = {name: disk[name] for name in ("count", "only", "name") if name in disk}
    return Fault(disk["at"], disk.get("when", "before"), strike, **options)


_STRIKES: dict[str | None, Callable[[], None]] = {None: kill_this_process, "stop": stop_this_process}
