"""A run in a process of its own, on a disk whose calls fail, stop the process, or kill it."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NoReturn

from mptui.processes.start import MAIN, function_of
from tests.run_server import Child, RunServer

CALLS = (
    *("statvfs", "mkdir", "open", "write", "fsync", "close", "rename", "replace"),
    *("symlink", "unlink", "rmdir", "ftruncate"),
)
"""The functions of `os` that saving uses."""

When = Literal["before", "half", "after"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in call number `at` (from 0) of those in `only`, and in the next `count - 1` calls.

    `half` interrupts a write halfway; other calls are done and then fail. With a `name`, only calls on paths
    that match this pattern count.
    """

    at: int
    when: When
    strike: Callable[[], None]
    count: float = 1
    only: Collection[str] = CALLS
    name: str = "*"

    def counts(self, call: str, path: str) -> bool:
        """Whether a call on a path is one that counts."""
        return call in self.only and fnmatchcase(path, self.name)


@contextlib.contextmanager
def faulty_disk(folder: Path, fault: Fault | None = None) -> Iterator[list[str]]:
    """Inject `fault` into calls on files in `folder`, in all threads of this process.

    Yields:
        The names of the calls made so far, a growing list.
    """
    disk = _Disk(os.path.realpath(folder), fault)
    whole = {name: getattr(os, name) for name in CALLS}
    for name in CALLS:
        setattr(os, name, disk.wrapped(name, whole[name]))
    try:
        yield disk.calls
    finally:
        for name in CALLS:
            setattr(os, name, whole[name])


class _Disk:
    def __init__(self, folder: str, fault: Fault | None) -> None:
        self._folder = folder
        self._fault = fault
        self._ours: dict[int, str] = {}
        self._counted = 0
        self.calls: list[str] = []

    def wrapped(self, name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            path = self._path_of(arguments, options)
            if path is None:
                return whole(*arguments, **options)
            self.calls.append(name)
            fault = self._due(name, path)
            if fault is not None and fault.when == "before":
                fault.strike()
            if fault is None or fault.when == "before":
                return self._noted(name, whole(*arguments, **options), arguments)
            if fault.when == "half" and name == "write":
                arguments = (arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            with contextlib.suppress(OSError):  # it fails in any case
                whole(*arguments, **options)
            return fault.strike()

        return call

    def _due(self, name: str, path: str) -> Fault | None:
        """Return the fault if it applies to this call."""
        fault = self._fault
        if fault is None or not fault.counts(name, path):
            return None
        number, self._counted = self._counted, self._counted + 1
        return fault if fault.at <= number < fault.at + fault.count else None

    def _noted(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        if name == "open":
            self._ours[result] = os.path.abspath(arguments[0])  # noqa: PTH100
        elif name == "close":
            self._ours.pop(arguments[0], None)
        return result

    def _path_of(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """Return the path in the folder that a call uses; None for other calls."""
        first, folder = arguments[0], options.get("dir_fd")
        if isinstance(first, int):
            return self._ours.get(first)
        if folder is not None:
            return f"{self._ours[folder]}/{os.fspath(first)}" if folder in self._ours else None
        return next((path for path in map(self._inside, arguments[:2]) if path is not None), None)

    def _inside(self, path: Any) -> str | None:
        if not isinstance(path, (str, os.PathLike)):
            return None
        whole = os.path.abspath(path)  # noqa: PTH100 - a symlink is itself here, not what it leads to
        return whole if whole == self._folder or whole.startswith(self._folder + os.sep) else None


def run_on_disk(
    server: RunServer, disk: dict[str, object], arguments: Sequence[object], output: Path
) -> Child:
    """Start `mptui ARGUMENTS`.

    `disk` has the fault: its `folder`, what a `Fault` takes, and `error`: None kills the process, "stop"
    stops it, and a number is the error of the call.
    """
    return server.run([json.dumps(disk), *arguments], output, call=f"{__name__}:main")


def main():
    """Run the program on the disk that comes first in `argv`."""
    disk = json.loads(sys.argv.pop(1))
    folder, error = disk.pop("folder"), disk.pop("error")
    strike = {None: kill_this_process, "stop": stop_this_process}.get(error) or failing(error)
    with faulty_disk(Path(folder), Fault(strike=strike, **{"when": "before", **disk})):
        function_of(MAIN)()


def kill_this_process() -> NoReturn:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("killed, and still here")


def failing(number):
    """Return an action that fails with an errno."""

    def strike():
        raise OSError(number, os.strerror(number))

    return strike


def stop_this_process():
    """Stop all threads until the process is continued; then the call proceeds."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
