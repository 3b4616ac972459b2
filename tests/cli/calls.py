"""The command line in the process of the test: it has imported what commands need, and a start takes no time.

Arguments, environment, folder, the descriptors of stdout and stderr, and exit code are as a shell has them. A
test of signals, of a training, or of the start itself has a process (`tests.program`).
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import typer

from mptui.cli import main as cli


def program():
    """All commands."""
    return typer.main.get_command(cli.app)


def call(*arguments, environ=None, folder=None, stdout=None):
    """Call `mptui ARGUMENTS`.

    Args:
        arguments: Words of the command line.
        environ: Additions to the environment.
        folder: The current folder.
        stdout: What takes its place, as an open file; None: what is returned has it.
    """
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as complaint, _as_in_a_shell():
        sys.argv = ["mptui", *map(str, arguments)]
        os.environ.update(environ or {})
        os.chdir(folder or Path.cwd())
        commands = patch.object(cli, "app", program())
        with _descriptor(1, stdout or told), _descriptor(2, complaint), commands:
            code = _exit_code_of_main()
        return subprocess.CompletedProcess(arguments, code, _text_in(told), _text_in(complaint))


def _exit_code_of_main():
    try:
        cli.main()
    except SystemExit as end:
        return end.code


@contextlib.contextmanager
def _as_in_a_shell() -> Iterator[None]:
    """Restore what a command changes in its process."""
    here, numbers = Path.cwd(), (signal.SIGUSR1, signal.SIGUSR2)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        with (
            patch.object(sys, "argv", sys.argv),
            patch.dict(os.environ),
            patch.object(warnings, "formatwarning", warnings.formatwarning),
        ):
            yield
    finally:
        os.chdir(here)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _descriptor(number, file) -> Iterator[None]:
    """Have a file in the place of a descriptor."""
    kept = os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def _text_in(file):
    file.seek(0)
    return file.read().decode("utf-8", "surrogateescape")
