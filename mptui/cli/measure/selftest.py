"""`mptui selftest`: kills, resumes and compares runs on this disk and device."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import console, print_json, print_next
from mptui.errors import RunDirectoryError

if TYPE_CHECKING:
    from mptui.lab.selftest import SelftestReport, Tally


class SelftestOptions(o.InRunsDir, o.SettingOptions):
    """Where runs are killed, and how often."""

    kills: int = o.option(12, "N", "Number of kills.", min=2)


def selftest(options: Annotated[SelftestOptions, "runs_dir device kills"], output: o.Output) -> int:
    """Kill and resume small runs, and check that they lose nothing.

    Half of the kills happen inside a save.
    """
    from mptui.lab.selftest import selftest as run_it

    report = run_it(
        options.runs_dir,
        options.device or "auto",
        options.kills,
        lambda tally: _progress(tally, options.kills),
    )
    document = _document(report)
    if output.as_json:
        print_json(document)
    else:
        _print_table(document)
    if not report.tally.sound:
        raise RunDirectoryError(
            f"{options.runs_dir}: {len(report.tally.damaged)} damaged checkpoints, "
            f"{len(report.tally.differing)} runs with other results",
            hint="check this disk (dmesg, smartctl), and try another with --runs-dir",
        )
    if not output.as_json:
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
