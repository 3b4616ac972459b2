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

Nodes = Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Number of nodes.")]
GpusPerNode = Annotated[
    int,
    typer.Option(
        "--gpus-per-node", metavar="N", min=0, help="GPUs on each node, a process for each; 0: on the CPU."
    ),
]
CpusPerNode = Annotated[
    int | None, typer.Option("--cpus-per-node", metavar="N", min=1, help="Processor cores on each node.")
]
Time = Annotated[
    str | None, typer.Option("--time", metavar="TIME", help="Time limit, as 4:00:00 or 2-00:00:00.")
]
Partition = Annotated[str | None, typer.Option("--partition", metavar="NAME", help="Partition.")]
SignalBefore = Annotated[
    int,
    typer.Option(
        "--signal-before",
        metavar="SECONDS",
        min=1,
        help="Time between the request to save and the time limit.",
    ),
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="NAME=VALUE", help="Another #SBATCH line, as account=abc; repeatable."),
]
Submit = Annotated[bool, typer.Option("--submit", help="Send the script by sbatch.")]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command("slurm", context_settings=settings, options_metavar="[OPTIONS] [FLAGS OF mptui run]")(slurm)


def slurm(
    ctx: typer.Context,
    nodes: Nodes = 1,
    gpus_per_node: GpusPerNode = 1,
    cpus_per_node: CpusPerNode = None,
    time: Time = None,
    partition: Partition = None,
    signal_before: SignalBefore = 120,
    sbatch: Sbatch = None,
    name: o.Name = None,
    submit: Submit = False,
) -> int:
    """Print the SLURM batch script of a run, or submit it.

    All other flags are those of `mptui run`. Before its time limit, the job saves and is queued again.
    """
    from mptui.runs.launch import slurm as launch_slurm
    from mptui.runs.store.directory import check_name

    if name is not None:
        check_name(name)
    _check_run_flags(ctx)
    script = launch_slurm.batch_script(
        launch_slurm.BatchJob(
            command=mptui_command("run", *ctx.args),
            name=name,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            cpus_per_node=cpus_per_node,
            time=time,
            partition=partition,
            signal_before_s=signal_before,
            settings=tuple(sbatch or ()),
        )
    )
    if not submit:
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
    request = o.request_of(run)
    resolve(request.profile, task=None, flags=request.flags, sets=request.sets, environ=request.environ)
