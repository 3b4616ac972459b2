"""`mptui attach`: the live screen of a run in another process, or of a finished run."""

from pathlib import Path
from typing import Annotated

import typer

from mptui.cli import completion
from mptui.cli import options as o
from mptui.errors import ConfigError, RunDirectoryError

Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Name of a run in --runs-dir, its start, or its directory (./NAME); default: the running "
        "or the newest run.",
        show_default=False,
        autocompletion=completion.runs,
    ),
]
Readonly = Annotated[bool, typer.Option("--readonly", help="Only watch: keys don't control the run.")]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("attach")(attach)


def attach(run: Run = None, readonly: Readonly = False, runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR) -> int:
    """Watch and control a run. `q` closes the screen; the run continues."""
    from mptui.runs.store.directory import check_version, find_run
    from mptui.tui.terminal.process import check_terminal, guarded

    path = find_run(runs_dir, run) if run is not None else _running_or_newest(runs_dir)
    check_version(path)
    check_terminal()

    def show(_part: object) -> int:
        from mptui.runs.remote.feed import AttachedRun

        source = AttachedRun(path, readonly=readonly).start()  # reads while the screen's modules load
        from mptui.tui.app import open_attached

        return open_attached(source)

    return guarded(show)


def _running_or_newest(folder: Path) -> Path:
    """Return the run that is running, else the newest.

    Raises:
        ConfigError: Several runs are running.
        RunDirectoryError: The folder has no runs.
    """
    from mptui.runs.store.directory import is_trained, list_runs, read_summary, started_of

    found = list_runs(folder)
    if not found:
        raise RunDirectoryError(
            f"no runs in {folder}", hint="name their folder with --runs-dir, or start a run: mptui run"
        )
    running = [path for path in found if is_trained(path)]
    if len(running) > 1:
        names = ", ".join(path.name for path in running)
        raise ConfigError(f"{len(running)} runs are running: {names}", hint="name one: mptui attach RUN")
    return running[0] if running else max(found, key=lambda path: started_of(path, read_summary(path)))
