"""Starts a run in a separate process, for --detach and --isolate.

The process is forked before torch is imported, and keeps the terminal until it has locked the run directory,
so that earlier errors are printed here, with their exit codes.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from mptui.cli.output import print_json
from mptui.errors import DiskError
from mptui.processes.child import shell_exit_code
from mptui.runs.launch.requeue import requeue
from mptui.streams import OutputError, drop_unwritten
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.cli.console import Renderer

Ready = Callable[[Path], None]
"""Called with the run directory once it exists."""

Train = Callable[[Ready, bool, bool], int]
"""Trains, given `Ready`, --json and --quiet; returns the exit code."""

POLL_S = 0.1
_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Started:
    """A run that has started in process `pid`."""

    directory: Path
    pid: int


def begin(
    train: Train,
    *,
    detach: bool,
    isolate: bool,
    as_json: bool,
    quiet: bool,
    resumes: bool,
    is_launcher: bool = False,
) -> int:
    """Call `train` in this process, in a detached one, or in one that this console follows.

    A job of SLURM that was asked to stop is queued again.

    Args:
        train: Trains.
        detach: Let it run on in the background.
        isolate: Follow it in another process.
        as_json: Print one JSON document.
        quiet: Print only warnings and the result.
        resumes: Whether the same command goes on with this run.
        is_launcher: Whether `train` starts the processes that own the run, and is followed.

    Raises:
        ConfigError: Runs can't be detached here.
    """
    process = os.getpid()
    try:
        if detach:
            from mptui.runs.remote.daemonize import check_detach

            check_detach()
            code = _start(train, partial(_report_started, as_json=as_json), is_launcher)
        elif isolate or is_launcher:
            # the launcher suspends its ranks before itself
            how = signal.SIGTSTP if is_launcher else signal.SIGSTOP
            follow = partial(_follow, suspend=how, as_json=as_json, quiet=quiet)
            code = _start(train, follow, is_launcher)
        else:
            code = train(lambda _: None, as_json, quiet)
    except typer.Exit as stopped:  # before there was anything to save
        code = stopped.exit_code
    if code == _TERMINATED and os.getpid() == process:
        told = requeue(os.environ, resumes=resumes)
        if told is not None:
            typer.echo(told, err=True)
    return code


def _start(train: Train, then: Callable[[Started], int], is_launcher: bool) -> int:
    """Call `train` in a new process, and `then` in this one once the run is ready.

    Returns in both processes: in the new one the exit code of `train`; in this one that of `then`, or of
    `train` if it ended before it was ready.
    """
    assert threading.active_count() == 1  # no thread survives a fork
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    forwarded = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    blocked = {*forwarded, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # until both processes have their handlers
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        os.close(read)
        return train(partial(_detach_when_ready, write, not is_launcher), False, False)
    os.close(write)
    for number in forwarded:
        signal.signal(number, lambda number, _frame: _send_on(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    with os.fdopen(read, encoding="utf-8") as pipe:
        directory = pipe.readline()
    if directory:
        return then(Started(Path(json.loads(directory)), child))
    return _exit_code_of(child)


def _send_on(child: int, number: int) -> None:
    """Send a signal to a child process; one that has ended needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _is_alive(child: int) -> bool:
    """Whether a child process has not ended; it is not waited for."""
    import psutil

    return bool(psutil.Process(child).status() != psutil.STATUS_ZOMBIE)


def _exit_code_of(child: int) -> int:
    """Wait for the end of a process; 128 + signal number if a signal killed it."""
    _, status = os.waitpid(child, 0)
    return shell_exit_code(os.waitstatus_to_exitcode(status))


def _detach_when_ready(write: int, owns: bool, directory: Path) -> None:
    """Lock a run that this process owns, leave the terminal, and notify the parent if it still exists.

    Raises:
        RunDirectoryError: Another process trains this run.
        DiskError: The run's directory can't be written.
    """
    from mptui.runs.remote.daemonize import LOG, leave_terminal
    from mptui.runs.store.directory import claim

    if owns:
        claim(directory)
    leave_terminal(directory / LOG)
    with contextlib.suppress(BrokenPipeError):
        os.write(write, json.dumps(str(directory)).encode() + b"\n")
    os.close(write)


def _report_started(started: Started, *, as_json: bool) -> int:
    """Print the started run, and the commands to watch and stop it.

    Raises:
        DiskError: stdout can't be written. The run continues.
    """
    try:
        _print_started(started, as_json=as_json)
    except OutputError as error:
        drop_unwritten(sys.stdout)
        run = shell_word(started.directory)
        raise DiskError(
            f"standard output: {error.strerror}",
            hint=f"the run has started and continues: mptui attach {run}; mptui stop {run}",
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


def _suspend(run: int, number: int, renderer: "Renderer") -> None:
    """Suspend the process of a run, then this one; continue both when the shell continues this one."""
    from mptui.cli.train.run_host import suspend

    def hung_up(number: int, _frame: FrameType | None) -> None:
        _send_on(run, signal.SIGCONT)  # the run outlives its terminal
        os._exit(128 + number)

    _send_on(run, number)
    os.waitid(os.P_PID, run, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if not _is_alive(run):
        return
    before = signal.signal(signal.SIGHUP, hung_up)
    suspend(renderer)
    _send_on(run, signal.SIGCONT)
    signal.signal(signal.SIGHUP, before)


def _follow(started: Started, *, suspend: int, as_json: bool, quiet: bool) -> int:
    """Show the run on this console until it ends, and return its exit code.

    SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded. SIGHUP ends only this process. SIGTSTP (ctrl+z)
    suspends the run, by the signal `suspend`, and this process.
    """
    from mptui.cli.train.run_host import renderer_of, tell_end
    from mptui.runs.remote.attached_run import AttachedRun
    from mptui.runs.store.directory import status_of

    def send_on(number: int, _frame: FrameType | None) -> None:
        _send_on(started.pid, number)

    for forwarded in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(forwarded, send_on)
    asked_to_suspend = threading.Event()
    signal.signal(signal.SIGTSTP, lambda _number, _frame: asked_to_suspend.set())
    source = AttachedRun(started.directory, is_alive=partial(_is_alive, started.pid)).start()
    renderer = renderer_of(silent=as_json or quiet)
    finished = None
    try:
        while not source.finished:
            for event in source.poll():
                renderer.handle(event)
                finished = event
            if asked_to_suspend.is_set():
                asked_to_suspend.clear()
                _suspend(started.pid, suspend, renderer)
            time.sleep(POLL_S)
    finally:
        renderer.close()
    code = _exit_code_of(started.pid)
    summary = status_of(started.directory)
    if "final" in summary:  # else it was stopped before a process of its group began it
        tell_end(summary, started.directory, code, as_json=as_json, quiet=quiet)
    message, hint = getattr(finished, "message", ""), getattr(finished, "hint", "")
    if message:
        typer.echo(f"mptui: {clean(message)}\n  {clean(hint)}", err=True)
    return code
