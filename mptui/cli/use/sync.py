"""`mptui sync`: sends what the trackers of a run have missed."""

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json
from mptui.text import clean

FORMAT_VERSION = 1


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sync")(sync)


def sync(
    run: o.Run, sets: o.Set = None, runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR, as_json: o.Json = False
) -> None:
    """Send to the trackers of a run what they have missed.

    With --set logging.trackers or another setting of a tracker, also to one that the run did not have.
    """
    from mptui.config.resolve import resolve
    from mptui.runs.store.directory import CONFIG, check_version, find_run
    from mptui.runs.trackers.feeder import send_missing

    path = find_run(runs_dir, run)
    check_version(path)
    config = resolve(str(path / CONFIG), task=None, flags={}, sets=tuple(sets or ()), environ={}).config
    sent = send_missing(path, config)
    if as_json:
        print_json({"version": FORMAT_VERSION, "run": path.name, "sent": sent})
        return
    for name, rows in sent.items():
        typer.echo(clean(f"{name}: {rows:,} events sent" if rows else f"{name}: nothing was missing"))
