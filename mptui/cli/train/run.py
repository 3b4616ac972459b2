"""`mptui run`: trains without the live screen."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.train import processes
from mptui.cli.train.training import RunPlace, train
from mptui.errors import ConfigError
from mptui.processes.rank_place import RankPlace

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Plan, Request


class LaunchOptions(o.Launch):
    """The processes of a run, and what else says so."""

    accelerate_config: Path | None = o.option(
        None,
        "FILE",
        "Processes, machines, GPUs and precision as in an accelerate file, unless given.",
        **o.PROCESSES,
    )
    scale_batch: bool = o.flag(
        "Multiply batch size and learning rate by the number of processes.", **o.PROCESSES
    )


class RunOptions(o.NewRun, o.Background):
    """Where the run is recorded and trained."""

    resume: bool = o.flag("Resume the run of this --name if it exists.", **o.RUN)
    dry_run: bool = o.flag("Print all settings as TOML with their sources, and exit.")


def run(
    ctx: typer.Context,
    settings: o.SettingOptions,
    launch: LaunchOptions,
    options: Annotated[RunOptions, "name dry_run runs_dir resume detach isolate"],
    output: o.QuietOutput,
) -> int:
    """Train, and record the run in a run directory."""
    group = processes.group_of(ctx)
    request = o.SettingOptions(
        **ctx.params
    ).request()  # as the group and an accelerate file have changed them
    if options.resume and options.name is None:
        raise ConfigError("--resume needs --name", hint="name the run with --name, or use: mptui resume RUN")
    if launch.scale_batch:
        begun = options.runs_dir / str(options.name) if options.resume else None
        request = processes.scaled(request, group, begun)
    if options.dry_run:
        return _dry_run(request, None if group is None else group.first)
    if group is not None:
        return processes.begin(ctx, group, request)
    return processes.begin_process(
        partial(train, request, _check, partial(_place, options)), options, output, resumes=options.resume
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


def _check(plan: "Plan") -> None:
    from mptui.runs.planning.build import check_inputs

    check_inputs(plan)  # reports mistakes before a directory is created


def _place(options: RunOptions, plan: "Plan") -> RunPlace:
    """Return the directory of the run of --name that is resumed, or make one."""
    from mptui.runs.store.directory import check_is_run, check_name, create_run, has_started

    if options.name is not None:
        check_name(options.name)
    path = options.runs_dir / str(options.name)
    resumes = options.resume and path.is_dir()
    if resumes:
        check_is_run(path)
    else:
        model = str(plan.config.model.name)
        path = create_run(options.runs_dir, plan.resolved.profile, model, options.name)
    return RunPlace(
        path,
        goes_on=resumes and has_started(path),
        # in the background, the error is recorded only in the directory
        for_mistakes=resumes or options.detach or options.isolate,
    )
