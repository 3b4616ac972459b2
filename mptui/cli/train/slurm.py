"""`mptui slurm`: a batch script of SLURM for a run."""

from typing import Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_next
from mptui.errors import ConfigError
from mptui.processes.start import mptui_command

_REFUSED = {
    "name": "give it before the flags of the run",
    "resume": "leave it out: a job always resumes its run",
    "detach": "leave it out: SLURM runs the job in the background",
    "isolate": "leave it out: SLURM runs the job in the background",
    "dry_run": "use mptui run --dry-run",
    "nproc_per_node": "use --gpus-per-node",
    "nnodes": "use --nodes",
    "rdzv_endpoint": "leave it out: the script sets it",
}
"""Flags of `mptui run` that don't belong in a job -> what to do instead."""


class JobOptions(o.NewRun):
    """What is asked of SLURM."""

    nodes: int = o.option(1, "N", "Number of nodes.", min=1)
    gpus_per_node: int = o.option(1, "N", "GPUs on each node, a process for each; 0: on the CPU.", min=0)
    cpus_per_node: int | None = o.option(None, "N", "Processor cores on each node.", min=1)
    time: str | None = o.option(None, "TIME", "Time limit, as 4:00:00 or 2-00:00:00.")
    partition: str | None = o.option(None, "NAME", "Partition.")
    signal_before: int = o.option(
        120, "SECONDS", "Time between the request to save and the time limit.", min=1
    )
    sbatch: list[str] | None = o.option(
        None, "NAME=VALUE", "Another #SBATCH line, as account=abc; repeatable."
    )
    submit: bool = o.flag("Send the script by sbatch.")


_OPTIONS = "nodes gpus_per_node cpus_per_node time partition signal_before sbatch name submit"


def slurm(ctx: typer.Context, options: Annotated[JobOptions, _OPTIONS]) -> int:
    """Print the SLURM batch script of a run, or submit it.

    All other flags are those of `mptui run`. Before its time limit, the job saves and is queued again.
    """
    from mptui.runs.launch import slurm as launch_slurm
    from mptui.runs.store.directory import check_name

    if options.name is not None:
        check_name(options.name)
    _check_run_flags(ctx)
    script = launch_slurm.batch_script(
        launch_slurm.BatchJob(
            command=mptui_command("run", *ctx.args),
            name=options.name,
            nodes=options.nodes,
            gpus_per_node=options.gpus_per_node,
            cpus_per_node=options.cpus_per_node,
            time=options.time,
            partition=options.partition,
            signal_before_s=options.signal_before,
            settings=tuple(options.sbatch or ()),
        )
    )
    if not options.submit:
        typer.echo(script, nl=False)
        return 0
    typer.echo(launch_slurm.submit(script))
    print_next("squeue --me; once it runs: mptui attach RUN")
    return 0


def _check_run_flags(ctx: typer.Context) -> None:
    """Check the flags of the run as `mptui run` does on any machine, before a job waits for nodes.

    Raises:
        ConfigError: A setting is wrong, or a flag doesn't belong in a job.
        TyperException: A flag is unknown.
    """
    from mptui.config.resolve import resolve

    assert ctx.parent is not None
    command = ctx.parent.command.get_command(ctx.parent, "run")  # type: ignore[attr-defined]
    run = command.make_context("run", list(ctx.args), parent=ctx.parent)
    for name, instead in _REFUSED.items():
        if run.params.get(name):
            raise ConfigError(f"--{name.replace('_', '-')}: not for a job of SLURM", hint=instead)
    request = o.SettingOptions(**run.params).request()
    resolve(request.profile, task=None, flags=request.flags, sets=request.sets, environ=request.environ)
