"""Child processes forked from an interpreter that has imported what they need.

Importing torch takes seconds, forking a process that has imported it takes milliseconds. The fork server of
`multiprocessing` does not serve here: there is one for each program, which can't be ended and keeps the
environment it began with; its children share the terminal and the standard streams of the program, outlive
one that is killed, and can't be waited for while the server still imports.
"""

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
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from mptui.processes.child import end_with_parent, function_of, start

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._server, self._number = server, number
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
