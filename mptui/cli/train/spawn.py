"""A run in a process of its own, for --detach and --isolate.

The process is forked before torch is imported, and keeps the terminal until the run's directory exists and is
claimed: whatever is wrong is told at once, in its own words and with its own exit code.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import typer

from mptui.cli.output import print_json
from mptui.errors import DiskError
from mptui.streams import OutputError, drop_unwritten
from mptui.text import clean, shell_word

Ready = Callable[[Path], None]
"""To be called with the run's directory, once it is there."""

Train = Callable[[Ready, bool, bool], int]
"""Trains, given `Ready`, --json and --quiet; returns the exit code."""

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Started:
    """A run that has begun in process `pid`."""

    directory: Path
    pid: int


def begin(train: Train, *, detach: bool, isolate: bool, as_json: bool, quiet: bool) -> int:
    """Call `train`: in this process, in one that nobody waits for, or in one that this console follows.

    Raises:
        ConfigError: No run can go on alone here.
    """
    if detach:
        from mptui.runs.remote.daemonize import check_detach

        check_detach()
        return _start(train, partial(_tell, as_json=as_json))
    if isolate:
        return _start(train, partial(_follow, as_json=as_json, quiet=quiet))
    return train(lambda _: None, as_json, quiet)


def _start(train: Train, then: Callable[[Started], int]) -> int:
    """Call `train` in a new process; here, call `then` once the run is ready.

    Returns in both processes: the exit code of `train` in the new one, and here that of `then`, or of a
    `train` that came to nothing.
    """
    assert "torch" not in sys.modules
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    held = {signal.SIGTERM, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, held)  # the first could end this process alone, the other both
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        os.close(read)
        return train(partial(_leave, write), False, False)
    os.close(write)
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
    with os.fdopen(read, encoding="utf-8") as news:
        told = news.readline()
    if told:
        return then(Started(Path(json.loads(told)), child))
    return _exit_code_of(child)


def _exit_code_of(child: int) -> int:
    """Wait for the end of a process; 128 + the signal that killed it."""
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _leave(write: int, directory: Path) -> None:
    """Own the run, let the terminal go, and tell who waits; one that was killed meanwhile needs no word.

    Raises:
        RunDirectoryError: Another process trains this run.
        DiskError: The run's directory can't be written.
    """
    from mptui.runs.remote.daemonize import LOG, leave_terminal
    from mptui.runs.store.directory import claim

    claim(directory)
    leave_terminal(directory / LOG)
    with contextlib.suppress(BrokenPipeError):
        os.write(write, json.dumps(str(directory)).encode() + b"\n")
    os.close(write)


def _tell(started: Started, *, as_json: bool) -> int:
    """Say what runs, and what to do with it.

    Raises:
        DiskError: It can't be said on stdout. The run goes on.
    """
    try:
        _print_started(started, as_json=as_json)
    except OutputError as error:
        drop_unwritten(sys.stdout)
        run = shell_word(started.directory)
        raise DiskError(
            f"standard output: {error.strerror}",
            hint=f"the run has started, and goes on: mptui attach {run}; mptui stop {run}",
        ) from error
    return 0


def _print_started(started: Started, *, as_json: bool) -> None:
    from mptui.runs.remote.daemonize import LOG

    directory, run = clean(str(started.directory)), shell_word(started.directory)

    if as_json:
        print_json(
            {
                "run": started.directory.name,
                "directory": directory,
                "pid": started.pid,
                "status": "running",
                "log": str(started.directory / LOG),
            }
        )
        return
    typer.echo(f"run: {directory} (process {started.pid})")
    typer.echo(f"watch it: mptui attach {run}")
    typer.echo(f"stop it: mptui stop {run}")


def _follow(started: Started, *, as_json: bool, quiet: bool) -> int:
    """Show the run on this console to its end, as if it were of this process; return its exit code.

    SIGINT and SIGTERM are sent on. A terminal that hangs up ends this process alone.
    """
    from mptui.cli.train.run_host import renderer_of, tell_end
    from mptui.runs.remote.attached_run import AttachedRun
    from mptui.runs.store.directory import status_of

    def send_on(number: int, _frame: FrameType | None) -> None:
        os.kill(started.pid, number)

    signal.signal(signal.SIGINT, send_on)
    signal.signal(signal.SIGTERM, send_on)
    source = AttachedRun(started.directory).start()
    renderer = renderer_of(silent=as_json or quiet)
    finished = None
    try:
        while not source.finished:
            for event in source.poll():
                renderer.handle(event)
                finished = event
            time.sleep(POLL_S)
    finally:
        renderer.close()
    code = _exit_code_of(started.pid)
    tell_end(status_of(started.directory), started.directory, code, as_json=as_json, quiet=quiet)
    message, hint = getattr(finished, "message", ""), getattr(finished, "hint", "")
    if message:
        typer.echo(f"mptui: {clean(message)}\n  {clean(hint)}", err=True)
    return code
