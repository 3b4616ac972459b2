"""`mptui attach`: the live screen of a run in another process, or of a finished run."""

from pathlib import Path
from typing import Annotated

from mptui.cli import completion
from mptui.cli import options as o
from mptui.errors import ConfigError, RunDirectoryError


class AttachOptions(o.InRunsDir):
    """The run to watch."""

    run: str | None = o.argument(
        "RUN",
        "Name of a run in --runs-dir, its start, or its directory (./NAME); default: the running "
        "or the newest run.",
        default=None,
        show_default=False,
        autocompletion=completion.runs,
    )
    readonly: bool = o.flag("Only watch: keys don't control the run.")


def attach(options: Annotated[AttachOptions, "run readonly runs_dir"]) -> int:
    """Watch and control a run. `q` closes the screen; the run continues."""
    from mptui.runs.store.directory import check_version, find_run
    from mptui.tui.terminal.process import check_terminal, guarded

    path = (
        _running_or_newest(options.runs_dir)
        if options.run is None
        else find_run(options.runs_dir, options.run)
    )
    check_version(path)
    check_terminal()

    def show(_part: object) -> int:
        from mptui.runs.remote.feed import AttachedRun

        source = AttachedRun(path, readonly=options.readonly).start()  # reads while the screen's modules load
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
