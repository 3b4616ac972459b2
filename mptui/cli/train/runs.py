"""`mptui runs`: lists runs with their results, and compares two of them, also operation by operation."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from mptui import text as fmt
from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import TableColumn, fitting, lines, print_json, print_next, terminal_width
from mptui.text import clean, some

runs = typer.Typer(name="runs", rich_markup_mode=None)


class ComparedRuns(o.OfRun):
    """The runs, and how they are compared."""

    second: str = o.argument("RUN", "Run to compare with.", autocompletion=completion.runs)
    where: bool = o.flag("Also name the first operation of a step at which runs of one seed part.")
    at: str | None = o.option(
        None,
        "STEP|last|best",
        "With --where: the checkpoint of the first run to begin with; default: the weights of the seed.",
    )


_COLUMNS = {
    "run": 0,
    "status": 0,
    "model": 0,
    "data": 0,
    "best": 1,
    "epochs": 2,
    "images/s": 3,
    "precision": 4,
    "steps": 5,
    "ranks": 6,
    "fork of": 7,
}
"""The columns of the list -> the order in which a narrow terminal omits them (`TableColumn.leave`)."""

_FIGURES = {"epochs", "images/s", "steps", "ranks"}

_USUAL = {"ranks": "1", "fork of": ""}
"""Columns that are left out where all runs have this."""

_CURVE_WIDTH = 32
_SAMPLES_SHOWN = 3


@runs.callback(invoke_without_command=True)
@o.command
def list_all(ctx: typer.Context, place: o.InRunsDir, output: o.Output) -> None:
    """List the runs, newest last, or compare two of them."""
    if ctx.invoked_subcommand is not None:
        return
    from mptui.events import finite_json
    from mptui.runs.listing.rows import summaries

    listed = summaries(place.runs_dir, _warn_unreadable)
    if output.as_json:
        print_json(finite_json(listed))
        return
    if not listed:
        print_next(f"no runs in {place.runs_dir}; start one: mptui run --profile fast")
        return
    _print_list(listed)
    going = any(summary["status"] == "running" for summary in listed)
    print_next(
        "watch one: mptui attach RUN"
        if going
        else "resume one: mptui resume RUN; compare two: mptui runs compare RUN RUN"
    )


@runs.command()
@o.command
def compare(
    options: Annotated[ComparedRuns, "run second runs_dir where at"],
    settings: Annotated[o.SettingOptions, "trust_code"],
    output: o.Output,
) -> None:
    """Compare two runs: differing settings, accuracy, speed, memory, time, curves."""
    from mptui.events import finite_json
    from mptui.runs.listing.rows import compare as compared
    from mptui.runs.store.directory import find_run

    if options.at is not None and not options.where:
        raise typer.BadParameter("--at needs --where")
    runs = [find_run(options.runs_dir, name) for name in (options.run, options.second)]
    found = compared(runs)
    if options.where:
        found["where"] = _parting_place(runs, found, options.at, trust_code=settings.trust_code)
    if output.as_json:
        print_json(finite_json(found))
    else:
        _print_comparison(found)


def _parting_place(
    runs: list[Path], found: dict[str, Any], at: str | None, *, trust_code: bool
) -> dict[str, Any]:
    from dataclasses import asdict

    from mptui.engine.mailbox import Mailbox
    from mptui.lab.measure.two_runs import parting_place

    place = parting_place(runs, Mailbox(), at=at, trust_code=trust_code)
    return {**asdict(place), "sentences": place.sentences(found["settings"], found["environment"])}


def _warn_unreadable(error: OSError) -> None:
    typer.echo(clean(f"can't read {error.filename}: {error.strerror}", limit=4096), err=True)


def _print_list(listed: list[dict[str, Any]]) -> None:
    """Print one line per run, with fewer columns on a narrow terminal."""
    rows = [_row(summary) for summary in listed]
    columns = [
        TableColumn(heading, [row[place] for row in rows], heading in _FIGURES, leave)
        for place, (heading, leave) in enumerate(_COLUMNS.items())
    ]
    columns = [column for column in columns if {*column.cells} != {_USUAL.get(column.heading)}]
    shown = fitting(columns, terminal_width())
    for line in lines(shown):
        typer.echo(line)
    if left_out := [column.heading for column in columns if column not in shown]:
        typer.echo(f"not shown at this width: {', '.join(left_out)} (all: --json)", err=True)


def _row(summary: dict[str, Any]) -> list[str]:
    """Return the cells of a run, in the order of `_COLUMNS`."""
    from mptui.runs.listing.forks import parent_words

    best, dataset = _table(summary, "best"), _table(summary, "dataset")
    value, rate, silent = best.get("value"), summary.get("samples_per_second"), summary.get("silent_s")
    status = str(summary.get("status")) + (f", silent for {silent:,} s" if silent else "")
    return [
        clean(Path(str(summary["directory"])).name),  # not shortened: other commands need it
        status,
        str(summary.get("model") or fmt.UNKNOWN),
        str(dataset.get("name") or fmt.UNKNOWN),
        f"{best['metric']} {value:.4f}" if isinstance(value, float) else fmt.UNKNOWN,
        str(summary.get("epochs", fmt.UNKNOWN)),
        f"{rate:,.1f}" if isinstance(rate, float) else fmt.UNKNOWN,
        str(_table(summary, "precision").get("used") or fmt.UNKNOWN),
        f"{summary.get('optimizer_steps', 0):,}",
        _ranks(summary),
        parent_words(Path(str(summary["directory"])), summary),
    ]


def _ranks(summary: dict[str, Any]) -> str:
    """Return the number of processes of a run, and of its nodes if it has several."""
    ranks, nodes = summary.get("ranks", 1), summary.get("nodes", 1)
    return f"{ranks:,} on {nodes:,} nodes" if nodes > 1 else f"{ranks:,}"


def _table(summary: dict[str, Any], name: str) -> dict[str, Any]:
    value = summary.get(name)
    return value if isinstance(value, dict) else {}


def _print_comparison(found: dict[str, Any]) -> None:
    rows = [
        (key, _shown(key, one), _shown(key, other), _difference(one, other))
        for key, (one, other) in {**found["settings"], **found["figures"]}.items()
        if one is not None or other is not None
    ]
    rows += [(f"{name} by epoch", *_drawn(curves), "") for name, curves in found["curves"].items()]
    headings = ("", *map(clean, found["runs"]), "difference")
    cells = list(zip(*rows, strict=True))
    columns = [
        TableColumn(heading, cells[place] if rows else (), place > 0, leave)
        for place, (heading, leave) in enumerate(zip(headings, (0, 0, 0, 1), strict=True))
    ]
    for line in lines(fitting(columns, terminal_width())):
        typer.echo(line)
    if not found["settings"]:
        typer.echo("both runs have the same configuration", err=True)
    if "where" in found:
        _print_place(found["where"])


def _print_place(where: dict[str, Any]) -> None:
    typer.echo()
    for sentence in where["sentences"]:
        typer.echo(clean(sentence, 4000))
    typer.echo(clean(f"batch: {some(where['samples'], _SAMPLES_SHOWN)}", 2000))


def _shown(key: str, value: object) -> str:
    if value is None:
        return fmt.UNKNOWN
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / (1 << 20):,.0f} MiB"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return clean(str(value), 60)


def _difference(one: object, other: object) -> str:
    """Format the change from the first figure to the second, in percent."""
    first, second = _number(one), _number(other)
    if not first or second is None:
        return ""
    return f"{100 * (second - first) / abs(first):+.1f} %"


def _number(value: object) -> float | None:
    """Convert to a finite float; None for other values and integers beyond a float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _drawn(curves: list[list[float]]) -> tuple[str, str]:
    """Draw both curves as bars over the same range."""
    one, other = (fmt.sparkline(_sampled(curve), among=[*curves[0], *curves[1]]) for curve in curves)
    return one, other


def _sampled(curve: list[float]) -> list[float]:
    columns = min(len(curve), _CURVE_WIDTH)
    return [curve[(n + 1) * len(curve) // columns - 1] for n in range(columns)]
