"""Runs in processes of their own, forked from one that has imported all, each with a file of its output."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mptui.processes.start import MAIN, RUN_MODULES, ForkedChild, ForkServer


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
        call: str = MAIN,
    ) -> "Child":
        """Start `mptui ARGUMENTS`.

        Args:
            arguments: Arguments as in the shell.
            output: File for stdout and stderr.
            environ: Additions to the environment.
            call: What is called with these arguments, as `module:function`.
        """
        with output.open("wb") as file:
            streams = (None, file.fileno(), file.fileno())
            child = self.start(
                call, *map(str, arguments), streams=streams, environ={**os.environ, **(environ or {})}
            )
        return Child(child, output)


class Child:
    """A run in a separate process."""

    def __init__(self, process: ForkedChild | subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output
        self.poll = process.poll
        self.send = process.send_signal

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
