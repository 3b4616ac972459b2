"""`mptui stop`: saves and stops a run of another process."""

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_next
from mptui.errors import RankError, RunDirectoryError
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from pathlib import Path

    from mptui.runs.remote.feed import Connection

POLL_S = 0.1
WAIT_S = 600.0
"""Saving to a slow disk, or compiling, can take minutes."""


class StopOptions(o.OfRun):
    """The run to stop."""

    timeout: float = o.option(
        WAIT_S, "SECONDS", "How long to wait; after that, the stop request stays in force.", min=0
    )


def stop(options: Annotated[StopOptions, "run timeout runs_dir"]) -> int:
    """Save and stop a run, and wait until it has ended.

    The run can be in any process of this machine. The exit code is 0 if it is saved, 8 if it has
    not ended within the timeout, else that of the run.
    """
    from mptui.runs.store.directory import RANKS
    from mptui.runs.store.lock import NAME as LOCK
    from mptui.runs.store.lock import holder_of, is_open_in, owner_of

    path = options.path()
    holder = holder_of(path) or holder_of(path / RANKS)  # no rank lives while a launcher restarts them
    if holder is None:
        _tell_end(path, "is not running; it is")
        return 0
    if holder.host is not None:
        raise RunDirectoryError(
            f"{path}: process {holder.pid} on {holder.host} trains this run",
            hint=f"stop it there: mptui stop {shell_word(path)}",
        )
    if not any(is_open_in(place, holder.pid) for place in (path, path / RANKS)):
        raise RunDirectoryError(
            f"{path}: its lock names process {holder.pid}, which has no file of this run open",
            hint=f"nothing was stopped; if no process trains this run, remove {path / LOCK}",
        )
    connection = _ask(path, holder.pid)
    typer.echo(f"asked {clean(path.name)} to save and stop …", err=True)
    until = time.monotonic() + options.timeout
    while holder.pid in {owner_of(path), owner_of(path / RANKS)}:
        if time.monotonic() >= until:
            raise RankError(
                f"{path}: process {holder.pid} was asked to stop {options.timeout:g} s ago "
                f"and {_busy(holder.pid)}",
                hint=f"wait for it (watch it: mptui attach {shell_word(path)}), or end it without saving: "
                f"kill -9 {holder.pid}",
            )
        connection = _tell_warnings(connection)
    return _tell_end(path, "is")


def _busy(pid: int) -> str:
    """Describe the state of a process that has not ended."""
    import psutil

    try:
        asleep = psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        asleep = False
    return f"is suspended (to continue it: kill -CONT {pid})" if asleep else "has not ended yet"


def _ask(run: "Path", owner: int) -> "Connection | None":
    """Send the request through the run's socket, or as a signal if it has none or does not answer."""
    from mptui.runs.remote.feed import Connection

    connection = None
    try:
        connection = Connection(run)
        answer = connection.answer(connection.send("stop"))
        if "error" in answer:
            raise ConnectionError(answer["error"])
        connection.set_timeout(POLL_S)
    except OSError:
        if connection is not None:
            connection.close()
        _send_term(run, owner)
        return None
    return connection


def _tell_warnings(connection: "Connection | None") -> "Connection | None":
    """Wait a moment; print what the run says of its disk. Returns the connection if it still lasts."""
    if connection is None:
        time.sleep(POLL_S)
        return None
    try:
        documents = connection.documents()
    except OSError:
        connection.close()
        return None
    for document in documents:
        if isinstance(disk := document.get("disk"), str):
            typer.echo(clean(disk, 4096), err=True)
    return connection


def _send_term(run: "Path", owner: int) -> None:
    try:
        os.kill(owner, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it has ended
    except PermissionError:
        raise RunDirectoryError(
            f"{run}: process {owner}, which trains this run, belongs to another user",
            hint=f"stop it as that user: mptui stop {shell_word(run)}",
        ) from None


def _tell_end(run: "Path", words: str) -> int:
    """Print how a run ended, and return its exit code; 0 if it was stopped, and all of it is saved."""
    from mptui.engine.checkpoint.pointers import checkpoint_of, lost_words, steps_lost
    from mptui.runs.store.directory import CHECKPOINTS, CRASHED, status_of
    from mptui.runs.view.words import steps_words

    summary = status_of(run)
    status, steps = str(summary["status"]), summary.get("optimizer_steps")
    after = f" after step {steps_words(steps, summary.get('total_steps'))}" if isinstance(steps, int) else ""
    typer.echo(clean(f"{run.name} {words} {status}{after}"))
    lost = steps_lost(run / CHECKPOINTS, steps or 0)
    if cause := (summary.get("error") or {}).get("message") or lost_words(lost):
        typer.echo(clean(str(cause), 4096))
    last = checkpoint_of(run / CHECKPOINTS, "last")
    if last is not None and last.exists():
        typer.echo(clean(f"checkpoint: {last.resolve()}"))
    if status in {"stopped", CRASHED}:
        print_next(f"resume it: mptui resume {shell_word(run)}")
    code = summary.get("exit_code")
    if status == CRASHED or not isinstance(code, int):
        return 1
    return 0 if status == "stopped" and not lost else code
