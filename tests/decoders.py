"""Processes that read samples, forked from one that has imported the decoders.

A fresh interpreter takes 0.2 s of a processor, and a test of a pool starts several.

To a pool they are what `mptui.processes.start.start` gives. A test of the start itself, or of how such a
process ends with its parent, overrides `forked_decoders` in its module.
"""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mptui.processes.start import ForkServer, function_of

_PRELOAD = (
    "simplejpeg",
    "tifffile",
    "mptui.data.prepare",
    "mptui.data.worker",
    "mptui.data.scan",
    "tests.data.samples",
    "tests.decoders",
)
_OUT_OF_THE_WAY = 500
_POLL_S, _LONGEST_POLL_S = 0.0005, 0.01
_MESSAGE_BYTES = 1 << 17


class _Server(ForkServer):
    """A fork server for many threads."""

    def __init__(self):
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        super().__init__(_PRELOAD, {**os.environ, **dict.fromkeys(threads, "1")})
        self._one = threading.Lock()

    def start(self, *call, **options):
        with self._one:
            return super().start(*call, **options)

    def state_of(self, number):
        with self._one:
            return super().state_of(number)


class _Process:
    """As far as pools use it, like `Popen`."""

    def __init__(
        self, server, call, arguments, *, stdin=None, stdout=None, env=None, pass_fds=(), text=False
    ):
        assert text or not (stdin or stdout)
        fds = {number: number for number in pass_fds}
        self.stdin: Any = None
        self.stdout: Any = None
        if stdin == subprocess.PIPE:
            fds[0], write = os.pipe()
            self.stdin = os.fdopen(write, "w", encoding="utf-8")
        if stdout == subprocess.PIPE:
            read, fds[1] = os.pipe()
            self.stdout = os.fdopen(read, encoding="utf-8")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            child = server.start(
                "tests.decoders:be_child",
                streams=(theirs.fileno(), None, None),
                environ=dict(os.environ if env is None else env),
                folder=str(Path.cwd()),
            )
            message = json.dumps([sys.path, call, arguments, list(fds)])
            socket.send_fds(ours, [message.encode()], list(fds.values()))
        for number in {0, 1} & fds.keys():
            os.close(fds[number])
        self.kill, self.poll = child.kill, child.poll
        self.pid = child.pid

    def wait(self, timeout=float("inf")):
        """Wait for its end, with shorter pauses than those of a server: most have just been killed."""
        began, pause = time.monotonic(), _POLL_S
        while (code := self.poll()) is None:
            if time.monotonic() > began + timeout:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_POLL_S)
        return code

    def communicate(self):
        with suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout:
            left = self.stdout.read()
        self.wait()
        return left, None


def be_child():
    """Take what `argv`, descriptors and modules a fresh process would have, and do its work."""
    with socket.socket(fileno=os.dup(0)) as channel:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 64)
    sys.path[:], call, arguments, numbers = json.loads(message)
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _OUT_OF_THE_WAY) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    if 0 not in numbers:
        os.dup2(1, 0)
    for descriptor, number in zip(aside, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = [call, *arguments]
    return function_of(call)()


@cache
def server():
    return _Server()


def close_server():
    if server.cache_info().currsize:
        server().close()


def forks_of(forks):
    """Return a `start` of processes that a fork server forks."""

    def start(call, *arguments, **options):
        return _Process(forks, call, arguments, **options)

    return start


@pytest.fixture(autouse=True, scope="module")
def forked_decoders():
    start = forks_of(server())  # here: it ends with the thread that starts it
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mptui.data.reading.start", start)
        patch.setattr("mptui.data.scan.start", start)
        yield
