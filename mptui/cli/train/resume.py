"""`mptui resume`: continue a run from its newest checkpoint."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.train import processes
from mptui.cli.train.signals import Signals
from mptui.errors import ConfigError
from mptui.processes.rank_place import rank_place
from mptui.runs.launch.group_options import MOST_RESTARTS, Group
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request


Fork = Annotated[
    bool, typer.Option("--fork", help="Go on as another run, named after this one, which stays as it is.")
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="STEP|last|best", help="With --fork: the checkpoint to begin with; default: last."
    ),
]
ForkProfile = Annotated[
    str | None,
    typer.Option("--profile", "-p", metavar="NAME|FILE", help="With --fork: switch to this profile."),
]
NoTui = Annotated[bool, typer.Option("--no-tui", help="Print progress instead of showing the live screen.")]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("resume")(resume)


def resume(
    ctx: typer.Context,
    run: o.Run,
    epochs: o.Epochs = None,
    workers: o.Workers = None,
    device: o.Device = None,
    nproc_per_node: o.NprocPerNode = None,
    nnodes: o.Nnodes = None,
    rdzv_endpoint: o.RdzvEndpoint = None,
    max_restarts: o.MaxRestarts = MOST_RESTARTS,
    price_per_hour: o.PricePerHour = None,
    fork: Fork = False,
    at: At = None,
    profile: ForkProfile = None,
    name: o.Name = None,
    sets: o.Set = None,
    trust_code: o.TrustCode = False,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    detach: o.Detach = False,
    isolate: o.Isolate = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    no_tui: NoTui = False,
) -> int:
    """Resume a run from its newest checkpoint, or fork it.

    Continues in the middle of an epoch if the run stopped there. Shows the live screen on a terminal.
    """
    from mptui.runs.store.directory import CONFIG, check_is_run, check_version, find_run
    from mptui.tui.terminal.process import has_terminal

    path = find_run(runs_dir, run)
    check_is_run(path)
    check_version(path)
    if fork:
        path = _forked(path, at or "last", name, profile)
        ctx.params |= {"fork": False, "at": None, "profile": None}
    elif at or profile or name:
        raise ConfigError(
            "--at, --profile and --name are flags of a fork",
            hint="add --fork, or change values with --set",
        )
    group = processes.group_of(ctx)
    request = o.request_of(ctx, str(path / CONFIG))
    on_screen = not (no_tui or quiet or as_json or detach or isolate) and has_terminal()
    if group is not None and not (on_screen and group.nodes == 1):
        return processes.begin(ctx, group, request, path=path)
    if on_screen:
        return _on_screen(request, path, group)
    train = partial(_train, request, path)
    return processes.begin_process(
        train, detach=detach, isolate=isolate, as_json=as_json, quiet=quiet, resumes=True
    )


def _forked(parent: Path, at: str, name: str | None, profile: str | None) -> Path:
    from mptui.runs.listing.forks import find_checkpoint, fork_run

    checkpoint = find_checkpoint(parent, at)
    run = fork_run(parent, checkpoint, name, profile)
    typer.echo(f"forked {clean(parent.name)} at step {checkpoint.step:,}: {clean(str(run))}", err=True)
    return run


def _on_screen(request: "Request", path: Path, group: Group | None) -> int:
    """Resume on the live screen of this terminal."""
    from mptui.tui.terminal.process import Part, guarded

    def screen(part: Part) -> int:
        from mptui.tui.cockpit import open_resumed

        return open_resumed(part, request, path, () if group is None else group.flags)

    return guarded(screen)


def _train(request: "Request", path: Path, ready: processes.Ready, as_json: bool, quiet: bool) -> int:
    signals = Signals()
    from mptui.cli.train.host import follow, host, joined
    from mptui.hardware.host import keep_freed_memory
    from mptui.runs.planning.plan import plan_run
    from mptui.runs.session.session import Session

    keep_freed_memory()
    place = rank_place(os.environ)
    plan = plan_run(request, place=place)
    signals.leave_if_stopped()
    ranks = joined(plan, place, signals)
    if not ranks.is_first:
        return follow(plan, ranks, signals)
    ready(path)
    forced = plan.resolved.compile_forced
    session = Session(plan, path, resume=True, force_compile=forced, ranks=ranks)
    return host(session, signals, as_json=as_json, quiet=quiet)
