"""Users and programs of processes on a GPU.

Inside a container NVML gives the PIDs of the machine, which are those of other processes there: a process is
looked up only if it runs the program that NVML names.
"""

from collections.abc import Sequence
from pathlib import PurePath

import psutil

from mptui.text import clean

_LONGEST = 60


def user_and_command(pid: int, nvml_name: str | None) -> tuple[str | None, str | None]:
    """Return the user and the program of a process, safe to show; None for what is unknown.

    Args:
        pid: Its PID, as NVML has it.
        nvml_name: Its program, as NVML has it.
    """
    if not nvml_name:
        return None, None
    program = clean(PurePath(nvml_name).name, _LONGEST)
    try:
        process = psutil.Process(pid)
        arguments, user = process.cmdline(), process.username()
    except (psutil.Error, OSError, UnicodeError):
        return None, program
    if not arguments or not _is_same(arguments[0], nvml_name):
        return None, program
    return clean(user, _LONGEST), clean(program_words(arguments), _LONGEST)


def program_words(arguments: Sequence[str]) -> str:
    """Return the program of a command line, and the script or module that Python runs.

    All other arguments are left out: they may hold passwords and tokens.
    """
    program = PurePath(arguments[0]).name
    if not program.startswith("python"):
        return program
    rest = iter(arguments[1:])
    for word in rest:
        if word == "-m":
            return f"{program} -m {next(rest, '')}".rstrip()
        if word == "-c":
            break
        if word in {"-W", "-X"}:
            next(rest, None)
        elif not word.startswith("-"):
            return f"{program} {PurePath(word).name}"
    return program


def _is_same(program: str, nvml_name: str) -> bool:
    """Whether NVML's name, a path with or without arguments, is that of `program`."""
    name = PurePath(program).name
    return name in {PurePath(nvml_name).name, PurePath(nvml_name.partition(" ")[0]).name}
