"""`mptui run`: a training run without a screen."""

import os

import typer

from mptui.cli import options as o
from mptui.errors import ConfigError


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    ctx: typer.Context,
    profile: o.Profile = None,
    model: o.Model = None,
    data: o.Data = None,
    epochs: o.Epochs = None,
    max_steps: o.MaxSteps = None,
    batch_size: o.BatchSize = None,
    lr: o.Lr = None,
    precision: o.Precision = None,
    compile: o.Compile = None,
    workers: o.Workers = None,
    device: o.Device = None,
    seed: o.Seed = None,
    download: o.Download = False,
    sets: o.Set = None,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    name: o.Name = None,
    resume: o.Resume = False,
    dry_run: o.DryRun = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    """Train, and write a run directory that says what happened."""
    from mptui.hardware.memory import keep_freed_memory
    from mptui.runs.plan import Request, plan_run

    keep_freed_memory()
    request = Request(profile, o.overrides(ctx.params), tuple(sets or ()), os.environ)
    if resume and name is None:
        raise ConfigError("--resume: of which run?", hint="name it with --name, or use: mptui resume RUN")
    plan = plan_run(request)
    if dry_run:
        from mptui.config.dump import dry_run_text

        typer.echo(dry_run_text(plan.resolved), nl=False)
        for note in plan.notes:
            typer.echo(note, err=True)
        return 0

    from mptui.cli.host import host
    from mptui.runs.directory import CONFIG, create_run
    from mptui.runs.session import Session

    goes_on = resume and (runs_dir / str(name) / CONFIG).is_file()
    path = (
        runs_dir / str(name)
        if goes_on
        else create_run(runs_dir, plan.resolved.profile, str(plan.config.model.name), name)
    )
    session = Session(plan, path, resume=goes_on, force_compile=plan.resolved.compile_forced)
    return host(session, as_json=as_json, quiet=quiet)
