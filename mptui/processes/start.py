"""Child processes: a fresh interpreter, or a fork of one that has imported what they need."""

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from mptui.errors import ConfigError
from mptui.io.files import open_regular

# Child processes forked from an interpreter that has imported what they need
# ---------------------------------------------------------------------------
# Importing torch takes seconds, forking a process that has imported it takes milliseconds. The fork server
# of `multiprocessing` does not serve here: there is one for each program, which can't be ended and keeps
# the environment it began with; its children share the terminal and the standard streams of the program,
# outlive one that is killed, and can't be waited for while the server still imports.

_MESSAGE_BYTES = 1 << 20
_POLL_S = 0.005
_LONGEST_POLL_S = 0.05
Server = TypeVar("Server", bound="ForkServer")
# macOS' own libraries start threads as they are loaded, and Windows can't fork
_FORKS = sys.platform == "linux"


class ForkServer:
    """A process that forks, and the children it has started; on Linux all of them end with this process.

    On other systems each child is a fresh interpreter. A context manager, used by one thread, which has to
    live as long as the server.

    Args:
        preload: Modules to import once. They must not start threads, which would not survive a fork.
        environ: Environment of the server, and of children that are given none.
        stderr: Of the server, as for `subprocess.Popen`.
    """

    def __init__(
        self, preload: Sequence[str], environ: Mapping[str, str] | None = None, stderr: int | None = None
    ) -> None:
        self._environ = environ
        self._fresh: list[subprocess.Popen[bytes]] = []
        self._started = 0
        if not _FORKS:
            return
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = (str(os.getpid()), *preload)
            self._process = start(f"{__name__}:serve", *words, stdin=theirs, stderr=stderr, env=environ)

    def __enter__(self: Server) -> Server:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        """End the server and its children."""
        for process in [self._process] if _FORKS else self._fresh:
            process.kill()
            process.wait()
        if _FORKS:
            self._socket.close()

    def start(
        self,
        call: str,
        *arguments: str,
        streams: Sequence[int | None] = (None, None, None),
        environ: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> "ForkedChild | subprocess.Popen[bytes]":
        """Start a child in a session of its own; returns before the child runs.

        Args:
            call: `module:function`; it finds `arguments` in `sys.argv`, and returns the exit code or None.
            arguments: Words for it.
            streams: Descriptors of its stdin, stdout and stderr; None is /dev/null. A terminal as stdin
                becomes its controlling terminal.
            environ: Its whole environment.
            folder: Its working directory.

        Raises:
            RuntimeError: The server has ended.
        """
        if not _FORKS:
            stdin, stdout, stderr = (subprocess.DEVNULL if each is None else each for each in streams)
            environ = self._environ if environ is None else environ
            pipes = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
            self._fresh.append(start(call, *arguments, **pipes, env=environ, cwd=folder))
            return self._fresh[-1]
        request = {
            "call": call,
            "arguments": arguments,
            "environ": environ and dict(environ),
            "folder": folder,
        }
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            descriptors = [nothing if each is None else each for each in streams]
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        except OSError as error:
            raise RuntimeError("the fork server has ended") from error
        finally:
            os.close(nothing)
        self._started += 1
        return ForkedChild(self, self._started - 1)

    def state_of(self, number: int) -> tuple[int, int | None]:
        """Process and exit code of a child, by the order of starts; no exit code while it runs.

        Raises:
            RuntimeError: The server has ended.
        """
        with contextlib.suppress(OSError):
            self._socket.send(json.dumps({"child": number}).encode())
            if answer := self._socket.recv(_MESSAGE_BYTES):
                pid, code = json.loads(answer)
                return pid, code
        raise RuntimeError("the fork server has ended")


class ForkedChild:
    """A child of a fork server; as far as it goes, like `subprocess.Popen`."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server = server
        self._number = number
        self.returncode: int | None = None

    @property
    def pid(self) -> int:
        """Its process; waits until the server has imported all."""
        return self._server.state_of(self._number)[0]

    def poll(self) -> int | None:
        """Its exit code, negative for a signal that killed it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.state_of(self._number)[1]
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait `timeout` seconds for its end, or without a limit; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: It has not ended.
        """
        began, pause = time.monotonic(), _POLL_S
        while (code := self.poll()) is None:
            if timeout is not None and time.monotonic() > began + timeout:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            # one question: it is not reaped, and its PID not used again, before the next one
            pid, self.returncode = self._server.state_of(self._number)
            if self.returncode is None:
                os.kill(pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def serve() -> None:
    """Fork for each request on stdin, until nobody can ask any more."""
    parent, *preload = sys.argv[1:]
    end_with_parent(int(parent))
    gc.disable()
    for name in preload:
        importlib.import_module(name)
    # modules are no garbage; to look through them takes a child 0.2 s, and copies their pages
    gc.freeze()
    gc.enable()
    requests = socket.socket(fileno=os.dup(0))
    server, children = os.getpid(), _Children()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 3)
        if not message:
            return
        request = json.loads(message)
        if "child" in request:
            requests.send(json.dumps(children.state_of(request["child"])).encode())
        elif pid := os.fork():
            children.pids.append(pid)
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            requests.close()
            _be_child(server, request, descriptors)


class _Children:
    def __init__(self) -> None:
        self.pids: list[int] = []
        self._codes: dict[int, int] = {}

    def state_of(self, number: int) -> tuple[int, int | None]:
        pid = self.pids[number]
        if number not in self._codes:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._codes[number] = os.waitstatus_to_exitcode(status)
        return pid, self._codes.get(number)


def _be_child(server: int, request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Call what is asked for, and end as an interpreter does, but with all modules in place.

    To take apart what the server has imported would take seconds.
    """
    code: object = 1
    try:
        end_with_parent(server)
        code = _call(request, descriptors)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as an interpreter does at its end
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are no daemons
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _call(request: Mapping[str, Any], descriptors: Sequence[int]) -> int | None:
    """Be the child: take its streams, terminal, environment and folder, and call its function."""
    os.setsid()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    if os.isatty(0):
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty())  # type: ignore[union-attr]
    if request["environ"] is not None:
        os.environ.clear()
        os.environ.update(request["environ"])
    if request["folder"] is not None:
        os.chdir(request["folder"])
    sys.argv = [request["call"], *request["arguments"]]
    return function_of(request["call"])()


# Starting a fresh interpreter, and how a process ends
# ----------------------------------------------------

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); from {} import {} as call; sys.exit(call())"
)
_SAFE_PATH = "-P" if sys.version_info >= (3, 11) else "-I"
"""Keeps the current folder out of the module path."""
_PACKAGES = str(Path(__file__).resolve().parents[2])
"""The folder in which this package is."""
_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2): PR_SET_PDEATHSIG


def start(call: str, *arguments: str, **options: Any) -> "subprocess.Popen[Any]":  # noqa: ANN401
    """Call a function in a fresh interpreter that has the module path of this one.

    An interactive interpreter, as that of a notebook, has "" in it for whatever folder is the current one:
    the folder of this package takes its place, as it may be the entry by which that was found.

    The process has a session of its own, so that Ctrl+C and a closed terminal reach only this process. Its
    standard streams are /dev/null, since libraries write to them past Python, and into the screen.

    Args:
        call: `module:function`; it finds `arguments` in `sys.argv`, and returns the exit code or None.
        arguments: Words for it.
        options: As for `subprocess.Popen`; they replace the above.
    """
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    path = json.dumps([folder or _PACKAGES for folder in sys.path])
    return subprocess.Popen(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-I", "-c", _BOOT.format(*call.split(":")), *arguments, path],
        **{**nothing, "start_new_session": True, **options},
    )


def function_of(call: str) -> Callable[[], int | None]:
    """Import a `module:function`."""
    module, name = call.split(":")
    found: Callable[[], int | None] = getattr(importlib.import_module(module), name)
    return found


def mptui_command(*arguments: str) -> list[str]:
    """The command line of this program with this interpreter, for processes in any folder.

    Without `-P` a `json.py` in the current folder, of a data set for example, would be run.
    """
    return [sys.executable, _SAFE_PATH, "-m", "mptui", *arguments]


def exit_code_name(code: int) -> str:
    """Name the exit code of a process as `subprocess` reports it: `SIGKILL`, or `code 3`."""
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def shell_exit_code(code: int) -> int:
    """Convert an exit code of `subprocess` to the shell's: 128 + the signal that killed the process."""
    return code if code >= 0 else 128 - code


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process as soon as the thread that forked it ends; on Linux only.

    A process that is stopped or busy with an import is killed as well. Its own children are not.

    Args:
        parent: The process that forked this one; if it has ended already, this one ends at once.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


# Runs in processes of their own, forked from one that has imported all that a run needs
# --------------------------------------------------------------------------------------

MAIN = "mptui.cli.main:main"
"""Entry point of the command `mptui`."""

# torch imports its compiler as it builds the first optimizer, which takes 2 s: once will do
RUN_MODULES = ("torch._dynamo", "mptui.cli.main", "mptui.runs.planning.plan", "mptui.runs.session.session")
"""What a run imports."""


# Detaches a training process from its terminal, so that closing the shell doesn't end it
# ---------------------------------------------------------------------------------------

LOG = "console.log"
"""File in the run directory for the output of a detached run."""

_LAUNCHERS = {"SLURM_JOB_ID": "SLURM", "TORCHELASTIC_RUN_ID": "torchrun"}


def launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of a launcher that ends all processes of its job; None if there is none."""
    return next((name for variable, name in _LAUNCHERS.items() if environ.get(variable)), None)


def environ_outside() -> dict[str, str]:
    """Return the environment without what tells of a launcher: for a child that this process waits for."""
    return {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}


def check_detach(environ: Mapping[str, str] = os.environ) -> None:
    """Check that a run can be detached.

    Raises:
        ConfigError: SLURM or torchrun started this process.
    """
    if (name := launcher(environ)) is not None:
        raise ConfigError(
            f"can't detach under {name}, which ends all processes of a job",
            hint="use `mptui run` without --detach",
        )


def leave_terminal(log: Path) -> None:
    """Detach from the terminal: redirect output to `log`, and ignore SIGHUP.

    Raises:
        OSError: The log can't be written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    printed = open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    for number, target in ((0, nowhere), (1, printed), (2, printed)):
        os.dup2(target, number)
    os.close(nowhere)
    os.close(printed)
    leave_session()


def leave_session() -> None:
    """Start a new session without a terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # it is a session leader already
        os.setsid()
