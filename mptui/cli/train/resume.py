"""`mptui resume`: continue a run from its newest checkpoint."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.train import processes
from mptui.cli.train.training import RunPlace, train
from mptui.errors import ConfigError
from mptui.processes.rank_place import Group
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request


class ResumeOptions(o.OfRun, o.Background):
    """How the run goes on."""

    moved_data: Path | None = o.option(None, "DIR", "Where the data of the run is now.", "--data")
    fork: bool = o.flag("Go on as another run, named after this one, which stays as it is.")
    at: str | None = o.option(
        None, "STEP|last|best", "With --fork: the checkpoint to begin with; default: last."
    )
    profile: str | None = o.option(
        None, "NAME|FILE", "With --fork: switch to this profile.", "--profile", "-p"
    )
    name: str | None = o.option(None, "NAME", "Name of the run.")


class ResumeOutput(o.QuietOutput):
    """What is shown."""

    no_tui: bool = o.flag("Print progress instead of showing the live screen.")


def resume(
    ctx: typer.Context,
    settings: Annotated[o.SettingOptions, "epochs time workers device price_per_hour sets trust_code"],
    launch: o.Launch,
    options: Annotated[ResumeOptions, "run moved_data fork at profile name runs_dir detach isolate"],
    output: ResumeOutput,
) -> int:
    """Resume a run from its newest checkpoint, or fork it.

    Continues in the middle of an epoch if the run stopped there. Shows the live screen on a terminal.
    """
    from mptui.runs.store.directory import CONFIG, check_is_run, check_version
    from mptui.tui.terminal.process import has_terminal

    path = options.path()
    check_is_run(path)
    check_version(path)
    if options.fork:
        path = _forked(path, options)
        ctx.params |= {"fork": False, "at": None, "profile": None}
    elif any((options.at, options.profile, options.name)):
        raise ConfigError(
            "--at, --profile and --name are flags of a fork",
            hint="add --fork, or change values with --set",
        )
    group = processes.group_of(ctx)
    request = o.SettingOptions(**ctx.params).request(str(path / CONFIG))  # as the group has changed them
    if options.moved_data is not None:
        request = _with_data(request, options.moved_data)
    in_background = options.detach or options.isolate
    on_screen = not (output.no_tui or output.quiet or output.as_json or in_background) and has_terminal()
    shows_all = on_screen and (group is None or group.nodes == 1)
    if group is not None and not shows_all:
        return processes.begin(ctx, group, request, path=path)
    if on_screen:
        return _on_screen(request, path, group)
    place = RunPlace(path, goes_on=True, for_mistakes=True)
    training = partial(train, request, lambda _: None, lambda _: place)
    return processes.begin_process(training, options, output, resumes=True)


def _with_data(request: "Request", where: Path) -> "Request":
    """Return the request with the data elsewhere; a set that has a name keeps it."""
    from mptui.io.files import expanded, meant_path

    folder = str(expanded(meant_path(str(where))))
    return replace(request, flags={**request.flags, "data.path": ("--data", folder)})


def _forked(parent: Path, options: ResumeOptions) -> Path:
    from mptui.runs.listing.forks import find_checkpoint, fork_run

    checkpoint = find_checkpoint(parent, options.at or "last")
    run = fork_run(parent, checkpoint, options.name, options.profile)
    typer.echo(f"forked {clean(parent.name)} at step {checkpoint.step:,}: {clean(str(run))}", err=True)
    return run


def _on_screen(request: "Request", path: Path, group: Group | None) -> int:
    """Resume on the live screen of this terminal."""
    from mptui.tui.terminal.process import Part, guarded

    def screen(part: Part) -> int:
        from mptui.tui.cockpit import open_resumed

        return open_resumed(part, request, path, () if group is None else group.flags)

    return guarded(screen)
