"""Simulates a failing disk: any call of a save fails before it, halfway, or after it is done.

Only calls on files of one folder are counted, in order, so that tests and `mptui selftest` can interrupt a
save at each of its calls.
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
"""The functions of `os` that saving uses."""

When = Literal["before", "half", "after"]


def failing(number: int) -> Callable[[], NoReturn]:
    """Return an action that fails with an errno."""

    def strike() -> NoReturn:
        raise OSError(number, os.strerror(number))

    return strike


def kill_this_process() -> NoReturn:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("killed, and still here")


def stop_this_process() -> None:
    """Stop all threads until the process is continued; then the call proceeds."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


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
        """Return the fault if it applies to this call."""
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
        """Return the path in the folder that a call uses; None for other calls."""
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
