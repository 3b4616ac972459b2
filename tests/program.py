"""The program in a process of its own, forked from one that has imported torch: that takes no seconds.

Streams, environment, folder, session, signals and exit code are as a shell has them. A test of the start
itself starts an interpreter.
"""

import importlib
import os
import subprocess
import sys
from functools import cache
from threading import Thread

import pytest

from mptui.processes import start
from mptui.processes.start import MAIN, RUN_MODULES
from tests.run_server import RunServer
from tests.spare import Spare

DEADLINE_S = 300
_IMPORTED = (
    "mptui.tui.app",
    "mptui.tui.cockpit",
    "mptui.tui.screens.picker",
    "mptui.tui.screens.live",
    "mptui.cli.train.host",
    "mptui.models.classifiers",
    "numpy.ma",
    "pydantic.type_adapter",
    "typer._adapters",
)
"""What programs import as they begin, beside what a run does."""

_spares: list[Spare] = []


def import_for(items):
    """Import what programs do if one of the tests starts some: they share it with the tests."""
    if any(item.get_closest_marker("program") for item in items):
        for name in (*RUN_MODULES, *_IMPORTED):
            importlib.import_module(name)


def keep_spare():
    """Fork what `server` will be, while no test has changed anything."""
    _spares.append(Spare())


@cache
def server():
    """The process that has imported all; each process of tests has one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start, "start", _spares.pop().start)
        return RunServer(*_IMPORTED, "tests.quick_start")


def close_server():
    if server.cache_info().currsize:
        server().close()


class Program:
    """`mptui ARGUMENTS`, or another `module:function`, with pipes as stdout and stderr; like `Popen`."""

    def __init__(self, *arguments, environ=None, folder=None, call=MAIN, forks=None):
        (self.stdout, out), (self.stderr, err) = (_pipe(), _pipe())
        self._process = (forks or server()).start(
            call,
            *map(str, arguments),
            streams=(None, out, err),
            environ={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
            folder=None if folder is None else str(folder),
        )
        os.close(out)
        os.close(err)
        self.pid = self._process.pid
        self.poll, self.wait = self._process.poll, self._process.wait
        self.send_signal, self.kill = self._process.send_signal, self._process.kill

    @property
    def returncode(self):
        return self._process.returncode

    def communicate(self, timeout=DEADLINE_S):
        """Read its output until all its writers have closed it; then wait for its end."""
        reads = [_Read(stream) for stream in (self.stdout, self.stderr)]
        try:
            out, err = (read.result(timeout) for read in reads)
        except TimeoutError:
            self.kill()
            raise
        self.stdout.close()
        self.stderr.close()
        self.wait(timeout)
        return out, err


class _Read(Thread):
    """Reads a stream to its end. A daemon: a stream that never ends doesn't hold up who waits for it."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self._stream = stream
        self.start()

    def run(self):
        self._text = self._stream.read()

    def result(self, timeout):
        self.join(timeout)
        if self.is_alive():
            raise TimeoutError(f"a stream has not ended after {timeout} s")
        return self._text


def run_to_end(*arguments, **options):
    """Run it to its end."""
    process = Program(*arguments, **options)
    out, err = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def execute():
    """Run the code that comes first in `argv`."""
    exec(sys.argv.pop(1), {"__name__": "__main__"})


def without():
    """Run the program without the streams that come first in `argv`: closed at the start, each is None."""
    from mptui.cli.main import main

    closed = {name: getattr(sys, name) for name in sys.argv.pop(1).split(",")}
    for name, stream in closed.items():
        os.close(stream.fileno())
        setattr(sys, name, None)
    try:
        main()
    finally:
        vars(sys).update(closed)


def in_its_locale():
    """Run the program as if the process had begun with its environment, which a fork has not."""
    from mptui.cli.main import main
    from mptui.tui.terminal import graphics as drawing

    drawing.given_environ = lambda: os.environ  # type: ignore[attr-defined]
    main()


def _pipe():
    read, write = os.pipe()
    return os.fdopen(read, encoding="utf-8"), write
