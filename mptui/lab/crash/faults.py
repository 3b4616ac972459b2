"""A disk that fails: any one call of a save, before it is done, half done, or done and reported as failed.

Only calls on files of one folder are counted, in the order in which they come; so a save can be torn at
each of its points, one after the other, in a test or in `mptui selftest`.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NoReturn

CALLS = (
    *("statvfs", "mkdir", "open", "write", "fsync", "close", "rename", "replace"),
    *("symlink", "unlink", "rmdir", "ftruncate"),
)
"""The functions of `os` that saving comes down to."""

When = Literal["before", "half", "after"]


def failing(number: int) -> Callable[[], NoReturn]:
    """A strike that fails with an errno."""

    def strike() -> NoReturn:
        raise OSError(number, os.strerror(number))

    return strike


def kill_this_process() -> NoReturn:
    """A strike that nothing in this process can answer to."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("killed, and still here")


def stop_this_process() -> None:
    """A strike that stops all threads until the process is continued, and then lets the call go on."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: call number `at` (from 0) of those in `only`, and the `count - 1` that follow it.

    `half` tears a write; other calls have no half: they are done, and then fail. With a `name` only calls
    on a path that matches this pattern count.
    """

    at: int
    when: When
    strike: Callable[[], None]
    count: float = 1
    only: Collection[str] = CALLS
    name: str = "*"


@contextlib.contextmanager
def faulty_disk(folder: Path, fault: Fault | None = None) -> Iterator[list[str]]:
    """Let calls on what lies in `folder` fail as `fault` says, in all threads of this process.

    Yields:
        The names of the calls made so far; it grows.
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
        self._folder, self._fault = folder, fault
        self._ours: dict[int, str] = {}
        self._counted = 0
        self.calls: list[str] = []

    def wrapped(self, name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - any call of os
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
        """The fault, if this call is one of those that go wrong."""
        fault = self._fault
        if fault is None or name not in fault.only or not fnmatchcase(path, fault.name):
            return None
        number, self._counted = self._counted, self._counted + 1
        return fault if fault.at <= number < fault.at + fault.count else None

    def _noted(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        if name == "open":
            self._ours[result] = os.path.abspath(arguments[0])  # noqa: PTH100
        elif name == "close":
            self._ours.pop(arguments[0], None)
        return result

    def _path_of(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """What in the folder a call is about; None where it is about something else."""
        first, folder = arguments[0], options.get("dir_fd")
        if isinstance(first, int):
            return self._ours.get(first)
        if folder is not None:
            return f"{self._ours[folder]}/{os.fspath(first)}" if folder in self._ours else None
        return next((path for path in map(self._inside, arguments[:2]) if path is not None), None)

    def _inside(self, path: Any) -> str | None:  # noqa: ANN401
        if not isinstance(path, (str, os.PathLike)):
            return None
        whole = os.path.abspath(path)  # noqa: PTH100 - a symlink is itself here, not what it leads to
        return whole if whole == self._folder or whole.startswith(self._folder + os.sep) else None
