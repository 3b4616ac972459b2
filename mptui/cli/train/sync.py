"""`mptui sync`: sends what the trackers of a run have missed."""

from typing import Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json
from mptui.text import clean


class SyncOptions(o.SettingOptions, o.OfRun):
    """A run, and the settings of its trackers."""


def sync(options: Annotated[SyncOptions, "run sets runs_dir"], output: o.Output) -> None:
    """Send to the trackers of a run what they have missed.

    With --set logging.trackers or another setting of a tracker, also to one that the run did not have.
    """
    from mptui.config.resolve import resolve
    from mptui.runs.store.directory import CONFIG, check_version
    from mptui.runs.trackers.feeder import send_missing

    path = options.path()
    check_version(path)
    config = resolve(
        str(path / CONFIG), task=None, flags={}, sets=tuple(options.sets or ()), environ={}
    ).config
    sent = send_missing(path, config)
    if output.as_json:
        print_json({"run": path.name, "sent": sent})
        return
    for name, rows in sent.items():
        typer.echo(clean(f"{name}: {rows:,} events sent" if rows else f"{name}: nothing was missing"))
