"""Starting a fresh interpreter, and how a process ends."""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
