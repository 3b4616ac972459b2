"""`mptui stop`: end a run of another process, and save it first."""

import os
import signal
import time
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_next
from mptui.text import clean

if TYPE_CHECKING:
    from pathlib import Path

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the start of it, or its directory.")]

POLL_S = 0.1


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stop")(stop)


def stop(run: Run, runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR) -> int:
    """Save a run and end it, wherever it runs, and wait until that is done."""
    from mptui.runs.directory import find_run, owner_of

    path = find_run(runs_dir, run)
    owner = owner_of(path)
    if owner is None:
        _tell_end(path, "is not running; it is")
        return 0
    _ask(path, owner)
    typer.echo(f"asked {clean(path.name)} to save and stop …", err=True)
    while owner_of(path) is not None:
        time.sleep(POLL_S)
    _tell_end(path, "is")
    return 0


def _ask(run: "Path", owner: int) -> None:
    """Through the run's socket, or by a signal where there is none."""
    from mptui.runs.attached import Connection

    try:
        connection = Connection(run)
        connection.send("stop")
    except OSError:
        os.kill(owner, signal.SIGTERM)
    else:
        connection.close()


def _tell_end(run: "Path", words: str) -> None:
    from mptui.runs.directory import CHECKPOINTS, CRASHED, status_of

    summary = status_of(run)
    status, steps = str(summary["status"]), summary.get("optimizer_steps")
    after = f" after step {steps:,}" if isinstance(steps, int) else ""
    typer.echo(clean(f"{run.name} {words} {status}{after}"))
    last = run / CHECKPOINTS / "last"
    if last.exists():
        typer.echo(clean(f"checkpoint: {last.resolve() if last.is_symlink() else last}"))
    if status in {"stopped", CRASHED}:
        print_next(clean(f"go on with it: mptui resume {run}"))
