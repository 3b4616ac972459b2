"""A fork of the process of tests, made before the first of them, that waits until a fork server is needed.

What tests import, the program needs as well: a fresh interpreter takes seconds to import it once more.
"""

import json
import os
import signal
import socket
import sys
import threading
import traceback
import warnings

from mptui.processes.start import end_with_parent, function_of

_MESSAGE_BYTES = 1 << 20


class Spare:
    """A process for one fork server; as far as that goes, like `Popen`."""

    def __init__(self):
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tests = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which wait for work as it forks
            self.pid = os.fork()
        if not self.pid:
            try:
                self._ours.close()
                _serve(theirs, tests)
            except BaseException:  # noqa: BLE001 - as an interpreter does at its end
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()

    def start(self, call, *words, stdin, stderr, env):
        """Call a function in it; `stderr` is that of the tests."""
        assert stderr is None
        message = json.dumps([call, words, env])
        socket.send_fds(self._ours, [message.encode()], [stdin.fileno()])
        return self

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        os.waitpid(self.pid, 0)


def _serve(channel, tests):
    end_with_parent(tests)
    message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
    if not message:  # no test needed it
        return
    os.setsid()
    (stdin,) = descriptors
    os.dup2(stdin, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _be_as_an_interpreter()
    call, words, environ = json.loads(message)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [call, *words]
    function_of(call)()


def _be_as_an_interpreter():
    """Undo what pytest has changed in this process, but for `fsync`, which costs what no test needs."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    os.fsync = lambda _: None  # type: ignore[assignment]
