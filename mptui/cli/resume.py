"""`mptui resume`: go on with a run where it stopped."""

import os
from typing import Annotated

import typer

from mptui.cli import options as o

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name, the start of it, or its directory.")]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("resume")(resume)


def resume(
    ctx: typer.Context,
    run: Run,
    epochs: o.Epochs = None,
    workers: o.Workers = None,
    device: o.Device = None,
    sets: o.Set = None,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    """Go on from the run's newest whole checkpoint, in the middle of an epoch if that is where it stopped."""
    from mptui.runs.directory import CONFIG, find_run

    path = find_run(runs_dir, run)
    from mptui.cli.host import host
    from mptui.hardware.memory import keep_freed_memory
    from mptui.runs.plan import Request, plan_run
    from mptui.runs.session import Session

    keep_freed_memory()
    plan = plan_run(Request(str(path / CONFIG), o.overrides(ctx.params), tuple(sets or ()), os.environ))
    session = Session(plan, path, resume=True, force_compile=plan.resolved.compile_forced)
    return host(session, as_json=as_json, quiet=quiet)
