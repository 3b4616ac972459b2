"""`mptui run`: trains without the live screen."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mptui.cli import options as o
from mptui.cli.train import processes
from mptui.cli.train.signals import Signals
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.processes.rank_place import RankPlace, rank_place
from mptui.runs.launch.group_options import MOST_RESTARTS

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    ctx: typer.Context,
    profile: o.Profile = None,
    model: o.Model = None,
    weights: o.Weights = None,
    task: o.Task = None,
    data: o.Data = None,
    epochs: o.Epochs = None,
    max_steps: o.MaxSteps = None,
    batch_size: o.BatchSize = None,
    lr: o.Lr = None,
    precision: o.Precision = None,
    compile: o.Compile = None,
    workers: o.Workers = None,
    device: o.Device = None,
    nproc_per_node: o.NprocPerNode = None,
    nnodes: o.Nnodes = None,
    rdzv_endpoint: o.RdzvEndpoint = None,
    max_restarts: o.MaxRestarts = MOST_RESTARTS,
    accelerate_config: o.AccelerateConfig = None,
    scale_batch: o.ScaleBatch = False,
    seed: o.Seed = None,
    price_per_hour: o.PricePerHour = None,
    download: o.Download = False,
    sets: o.Set = None,
    trust_code: o.TrustCode = False,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    name: o.Name = None,
    resume: o.Resume = False,
    detach: o.Detach = False,
    isolate: o.Isolate = False,
    dry_run: o.DryRun = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> int:
    """Train, and record the run in a run directory."""
    group = processes.group_of(ctx)
    request = o.request_of(ctx)
    if resume and name is None:
        raise ConfigError("--resume needs --name", hint="name the run with --name, or use: mptui resume RUN")
    if scale_batch:
        request = processes.scaled(request, group, runs_dir / str(name) if resume else None)
    if dry_run:
        return _dry_run(request, None if group is None else group.first)
    if group is not None:
        return processes.begin(ctx, group, request)
    train = partial(_train, request, runs_dir, name, resume, detach or isolate)
    return processes.begin_process(
        train, detach=detach, isolate=isolate, as_json=as_json, quiet=quiet, resumes=resume
    )


def _dry_run(request: "Request", place: RankPlace | None) -> int:
    from mptui.config.resolve import dry_run_text
    from mptui.runs.planning.plan import effective_words, head_notes, plan_run

    plan = plan_run(request, place=place)
    typer.echo(dry_run_text(plan.resolved), nl=False)
    typer.echo(f"Effective: {effective_words(plan.config.training)}", err=True)
    for note in (*plan.notes, *head_notes(plan)):
        typer.echo(note, err=True)
    return 0


def _train(
    request: "Request",
    runs_dir: Path,
    name: str | None,
    resume: bool,
    in_background: bool,
    ready: processes.Ready,
    as_json: bool,
    quiet: bool,
) -> int:
    signals = Signals()
    from mptui.hardware.host import keep_freed_memory
    from mptui.runs.planning.plan import plan_run

    keep_freed_memory()
    place = rank_place(os.environ)
    plan = plan_run(request, place=place)

    from mptui.cli.train.host import follow, host, joined
    from mptui.runs.planning.build import check_inputs
    from mptui.runs.session.session import Session
    from mptui.runs.store.directory import check_is_run, check_name, create_run, has_started
    from mptui.runs.store.files import discard_unstarted

    check_inputs(plan)  # reports mistakes before a directory is created
    signals.leave_if_stopped()
    ranks = joined(plan, place, signals)
    if not ranks.is_first:
        return follow(plan, ranks, signals)
    if name is not None:
        check_name(name)
    resumes = resume and (runs_dir / str(name)).is_dir()
    if resumes:
        check_is_run(runs_dir / str(name))
    path = (
        runs_dir / str(name)
        if resumes
        else create_run(runs_dir, plan.resolved.profile, str(plan.config.model.name), name)
    )
    ready(path)
    goes_on = resumes and has_started(path)
    forced = plan.resolved.compile_forced
    session = Session(plan, path, resume=goes_on, force_compile=forced, ranks=ranks)
    try:
        return host(session, signals, as_json=as_json, quiet=quiet)
    except (ConfigError, DataError, OwnCodeError):
        if (
            not resumes and not in_background
        ):  # in the background, the error is recorded only in the directory
            discard_unstarted(path)
        raise
