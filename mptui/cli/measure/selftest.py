"""`mptui selftest`: kills, resumes and compares runs on this disk and device."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import console, print_json, print_next
from mptui.errors import RunDirectoryError

if TYPE_CHECKING:
    from mptui.lab.selftest import SelftestReport, Tally

Kills = Annotated[int, typer.Option("--kills", metavar="N", min=2, help="Number of kills.")]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("selftest")(selftest)


def selftest(
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    device: o.Device = None,
    kills: Kills = 12,
    as_json: o.Json = False,
) -> int:
    """Kill and resume small runs, and check that they lose nothing.

    Half of the kills happen inside a save.
    """
    from mptui.lab.selftest import selftest as run_it

    report = run_it(runs_dir, device or "auto", kills, lambda tally: _progress(tally, kills))
    document = _document(report)
    if as_json:
        print_json(document)
    else:
        _print_table(document)
    if not report.tally.sound:
        raise RunDirectoryError(
            f"{runs_dir}: {len(report.tally.damaged)} damaged checkpoints, "
            f"{len(report.tally.differing)} runs with other results",
            hint="check this disk (dmesg, smartctl), and try another with --runs-dir",
        )
    if not as_json:
        print_next("train: mptui run")
    return 0


def _progress(tally: "Tally", kills: int) -> None:
    typer.echo(f"killed {tally.kills} of {kills} times, {tally.inside_a_save} inside a save", file=sys.stderr)


def _document(report: "SelftestReport") -> dict[str, Any]:
    tally = report.tally
    return {
        "sound": tally.sound,
        "folder": str(report.folder),
        "device": report.device,
        "kills": tally.kills,
        "kills_inside_a_save": tally.inside_a_save,
        "runs": tally.runs,
        "steps_compared": tally.steps,
        "steps_taken_again": tally.steps_again,
        "damaged_checkpoints": tally.damaged,
        "runs_that_differ": tally.differing,
        "seconds": round(report.seconds, 1),
    }


def _print_table(document: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in document.items():
        shown = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        shown = (len(shown) if isinstance(shown, list) else shown) or 0
        table.add_row(name.replace("_", " "), str(shown))
    console().print(table)
