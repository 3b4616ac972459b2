"""Starts real runs in separate processes without importing torch for each.

One process imports everything once, and forks for each run; a child calls the command line like the shell. A
child can be killed at any time, or at a chosen call of a save.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from mptui.lab.crash.faults import Fault, failing, faulty_disk, kill_this_process, stop_this_process
from mptui.lab.orphans import end_with_parent

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from mptui.lab.orphans import end_with_parent; end_with_parent(int(sys.argv.pop())); "
    "from mptui.cli.main import main; from mptui.lab.crash.forkserver import serve; serve(main)"
)
_LOOK_S = 0.005


class ForkServer:
    """The process that forks, and the runs it has begun. Used by one thread at a time."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(  # noqa: S603 - our own interpreter and code
            [sys.executable, "-c", _BOOT, str(os.getpid()), json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.kill()
        self._server.communicate()

    def start(
        self,
        arguments: Sequence[object],
        output: Path,
        *,
        environ: Mapping[str, str] | None = None,
        disk: Mapping[str, Any] | None = None,
    ) -> "Child":
        """Begin `mptui ARGUMENTS`.

        Args:
            arguments: As in the shell.
            output: The file that stdout and stderr go to.
            environ: Added to the environment.
            disk: How the disk fails: `folder`, and `at`, `when`, `error` (None kills the process, "stop"
                stops it), `count`, `only`, `name` of a `Fault`.
        """
        request = {
            "arguments": [str(argument) for argument in arguments],
            "output": str(output),
            "environ": dict(environ or {}),
            "disk": dict(disk) if disk else None,
        }
        return Child(int(self._ask(request)), self, output)

    def poll(self, pid: int) -> int | None:
        """The exit code of a child as `subprocess` tells it; None while it runs."""
        answer = self._ask({"poll": pid})
        return None if answer == "running" else int(answer)

    def _ask(self, request: Mapping[str, Any]) -> str:
        stdin, stdout = self._server.stdin, self._server.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise RuntimeError("the fork server has ended")
        return answer.strip()


class Child:
    """A run in a process of its own."""

    def __init__(self, pid: int, server: ForkServer, output: Path) -> None:
        self.pid, self._server, self._output = pid, server, output
        self.code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal that killed it; None while it runs."""
        if self.code is None:
            self.code = self._server.poll(self.pid)
        return self.code

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end, and return its exit code; one that outlasts the limit is killed.

        Raises:
            TimeoutError: It did not end in time.
        """
        until = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"no end after {timeout_s:g} s\n{self.said()}")
            time.sleep(_LOOK_S)
        return code

    def said(self) -> str:
        """What it has written on stdout and stderr so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""


def serve(main: Callable[[], NoReturn]) -> None:
    """Answer requests on stdin until it ends; a child calls `main`, the entry of the command line."""
    _import_everything()
    for line in sys.stdin:
        request = json.loads(line)
        answer = _polled(request["poll"]) if "poll" in request else _forked(main, request)
        os.write(1, f"{answer}\n".encode())


def _import_everything() -> None:
    """What a run imports anyway; nothing here starts a thread, which would not survive a fork."""
    import torch

    from mptui.runs.planning import plan
    from mptui.runs.session import session

    assert plan
    assert session
    torch.set_num_threads(1)


def _polled(pid: int) -> str:
    found, status = os.waitpid(pid, os.WNOHANG)
    return str(os.waitstatus_to_exitcode(status)) if found else "running"


def _forked(main: Callable[[], NoReturn], request: Mapping[str, Any]) -> int:
    server = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        end_with_parent(server)
        code = _run(main, request)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(main: Callable[[], NoReturn], request: Mapping[str, Any]) -> int:
    """Be `mptui`, in a child: with its own session, output and environment."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(request["environ"])
    sys.argv = ["mptui", *request["arguments"]]
    disk = request["disk"]
    try:
        if disk is None:
            main()
        with faulty_disk(Path(disk["folder"]), fault_of(disk)):
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def fault_of(disk: Mapping[str, Any]) -> Fault | None:
    """The fault that a request describes; None where it only counts calls."""
    if "at" not in disk:
        return None
    error = disk["error"]
    strike = _STRIKES[error] if error in _STRIKES else failing(error)
    options = {name: disk[name] for name in ("count", "only", "name") if name in disk}
    return Fault(disk["at"], disk.get("when", "before"), strike, **options)


_STRIKES: dict[str | None, Callable[[], None]] = {None: kill_this_process, "stop": stop_this_process}
