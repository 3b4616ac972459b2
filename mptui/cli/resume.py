"""`mptui resume`: go on with a run where it stopped."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mptui.cli import background
from mptui.cli import options as o
from mptui.cli.signals import Signals

if TYPE_CHECKING:
    from mptui.runs.plan import Request


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("resume")(resume)


def resume(
    ctx: typer.Context,
    run: o.Run,
    epochs: o.Epochs = None,
    workers: o.Workers = None,
    device: o.Device = None,
    sets: o.Set = None,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    detach: o.Detach = False,
    isolate: o.Isolate = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    """Resume a run from its newest checkpoint.

    A run that was stopped in the middle of an epoch continues there.
    """
    from mptui.runs.directory import CONFIG, check_version, find_run

    path = find_run(runs_dir, run)
    check_version(path)
    request = o.request_of(ctx, str(path / CONFIG))
    train = partial(_train, request, path)
    return background.begin(train, detach=detach, isolate=isolate, as_json=as_json, quiet=quiet)


def _train(request: "Request", path: Path, ready: background.Ready, as_json: bool, quiet: bool) -> int:
    signals = Signals()
    from mptui.cli.host import host
    from mptui.hardware.memory import keep_freed_memory
    from mptui.runs.plan import plan_run
    from mptui.runs.session import Session

    keep_freed_memory()
    plan = plan_run(request)
    signals.leave_if_stopped()
    ready(path)
    session = Session(plan, path, resume=True, force_compile=plan.resolved.compile_forced)
    return host(session, signals, as_json=as_json, quiet=quiet)
