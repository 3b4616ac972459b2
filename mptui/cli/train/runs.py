"""`mptui runs`: lists runs with their results, and compares some of them, two also operation by operation."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui import text as fmt
from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.help import HeadedCommand
from mptui.cli.output import TableColumn, fitting, flat_error, lines, print_json, print_next, terminal_width
from mptui.io.records import as_number
from mptui.text import clean, some

if TYPE_CHECKING:
    from mptui.runs.listing.table import ListedRun, RunColumn

runs = typer.Typer(name="runs", rich_markup_mode=None)


class ListOptions(o.InRunsDir):
    """The runs that are listed, and what of them."""

    filters: list[str] | None = o.option(
        None,
        "WORD|COLUMN=VALUE",
        "Only runs with this word, or this value of a column; repeatable.",
        "--filter",
    )
    sort: str | None = o.option(
        None, "COLUMN", "Order by this column, the largest last.", autocompletion=completion.columns
    )
    reverse: bool = o.flag("Reverse the order.")
    columns: str | None = o.option(
        None, "COLUMN,…", "Columns of the table; a setting is one too: run,best,training.lr."
    )
    settings: bool = o.flag("Add the settings in which the listed runs differ.")


class ComparedRuns(o.OfRun):
    """The runs, and how they are compared."""

    others: list[str] = o.argument("RUN…", "Runs to compare with.", autocompletion=completion.runs)
    where: bool = o.flag("Also name the first operation of a step at which two runs of one seed part.")
    at: str | None = o.option(
        None,
        "STEP|last|best",
        "With --where: the checkpoint of the first run to begin with; default: the weights of the seed.",
    )


_CURVE_WIDTH = 32
_SAMPLES_SHOWN = 3


@runs.callback(invoke_without_command=True)
@o.command
def list_all(
    ctx: typer.Context,
    options: Annotated[ListOptions, "filters sort reverse columns settings runs_dir"],
    output: o.Output,
) -> None:
    """List the runs, newest last, or compare some of them."""
    if ctx.invoked_subcommand is not None:
        return
    from mptui.events import finite_json
    from mptui.runs.listing.rows import summaries
    from mptui.runs.listing.table import (
        chosen_runs,
        column_of,
        differing_settings,
        in_order,
        listed_runs,
        setting_column,
    )

    found = summaries(options.runs_dir, _warn_unreadable)
    columns = [column_of(name) for name in (options.columns or "").split(",") if name]
    order = column_of(options.sort) if options.sort else None
    filters = options.filters or []
    named = "".join([options.columns or "", options.sort or "", *filters])
    listed = chosen_runs(listed_runs(found, with_settings=options.settings or "." in named), filters)
    if order is not None:
        listed = in_order(listed, order)
    if options.reverse:
        listed.reverse()
    differing = differing_settings(listed) if options.settings else []
    if output.as_json:
        rows: list[dict[str, Any]] = [flat_error(run.summary) for run in listed]
        for row, run in zip(rows, listed, strict=True) if options.settings else ():
            row["settings"] = {key: run.settings.get(key) for key in differing}
        print_json(finite_json({"runs": rows}))
        return
    if not found:
        print_next(f"no runs in {options.runs_dir}; start one: mptui run --profile fast")
        return
    if not listed:
        print_next(f"no run of {len(found):,} matches; all of them: mptui runs")
        return
    _print_list(listed, [*columns, *map(setting_column, differing)], chosen=bool(columns))
    going = any(run.at("status") == "running" for run in listed)
    print_next(
        "watch one: mptui attach RUN"
        if going
        else "resume one: mptui resume RUN; compare some: mptui runs compare RUN RUN"
    )


@runs.command(cls=HeadedCommand)
@o.command
def compare(
    options: Annotated[ComparedRuns, "run others runs_dir where at"],
    settings: Annotated[o.SettingOptions, "trust_code"],
    output: o.Output,
) -> None:
    """Compare runs: differing settings, accuracy, speed, memory, time, curves."""
    from mptui.events import finite_json
    from mptui.runs.listing.rows import compare as compared
    from mptui.runs.store.directory import find_run

    if options.at is not None and not options.where:
        raise typer.BadParameter("--at needs --where")
    if options.where and len(options.others) > 1:
        raise typer.BadParameter("--where is of two runs")
    runs = [find_run(options.runs_dir, name) for name in (options.run, *options.others)]
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


def _print_list(listed: "Sequence[ListedRun]", more: "Sequence[RunColumn]", *, chosen: bool) -> None:
    """Print one line per run, with fewer columns on a narrow terminal.

    Args:
        listed: The runs.
        more: Columns besides those that are usual; with `chosen`, the only ones.
        chosen: Whether a person has chosen the columns.
    """
    from mptui.runs.listing.table import COLUMNS

    usual = [] if chosen else [column for column in COLUMNS.values() if not column.asked]
    columns = [
        TableColumn(column.name, [column.words(run) for run in listed], column.is_figure, column.leave)
        for column in [*usual, *more]
        if chosen or {column.words(run) for run in listed} != {column.usual}
    ]
    shown = columns if chosen else fitting(columns, terminal_width())
    for line in lines(shown):
        typer.echo(line)
    if left_out := [column.heading for column in columns if column not in shown]:
        typer.echo(f"not shown at this width: {', '.join(left_out)} (all: --json)", err=True)


def _print_comparison(found: dict[str, Any]) -> None:
    """Print a line for each setting and figure, with a column for each run; of two, with their difference."""
    from mptui.registry.tasks import metric_word
    from mptui.runs.listing.rows import cause_words, figure_name, figure_texts, what_differs

    names, differing = found["runs"], what_differs(found)
    pair = len(names) == 2
    rows = [
        (
            figure_name(key),
            *(clean(text, 60) for text in figure_texts(found, key, values)),
            *([_difference(*values)] if pair else []),
        )
        for key, values in {**differing, **found["figures"]}.items()
        if any(value is not None for value in values)
    ]
    rows += [
        (f"{metric_word(name)} by epoch", *_drawn(curves), *([""] if pair else []))
        for name, curves in found["curves"].items()
    ]
    headings = ["", *map(clean, names), *(["difference"] if pair else [])]
    # a narrow terminal leaves out the difference, or the last ones of many runs
    leave = [0, 0, 0, *range(1, len(headings) - 2)]
    cells = list(zip(*rows, strict=True))
    columns = [
        TableColumn(heading, cells[place] if rows else (), place > 0, leave[place])
        for place, heading in enumerate(headings)
    ]
    shown = fitting(columns, terminal_width())
    for line in lines(shown):
        typer.echo(line)
    if left_out := [column.heading for column in columns if column not in shown and not pair]:
        typer.echo(f"not shown at this width: {', '.join(left_out)} (all: --json)", err=True)
    typer.echo(clean(cause_words(differing), 2000))
    _print_branches(found)
    if "where" in found:
        _print_place(found["where"])


def _print_branches(found: dict[str, Any]) -> None:
    """List the branches of each run that has left some."""
    from mptui.runs.view.state import Branch

    for name, branches in zip(found["runs"], found["branches"], strict=True):
        for branch in branches:
            start, end, ended, best = Branch(**branch).words
            words = f"{name}: branch after step {start} to step {end}, {ended}, best {best}"
            typer.echo(clean(words, 2000))


def _print_place(where: dict[str, Any]) -> None:
    typer.echo()
    for sentence in where["sentences"]:
        typer.echo(clean(sentence, 4000))
    typer.echo(clean(f"batch: {some(where['samples'], _SAMPLES_SHOWN)}", 2000))


def _difference(one: object, other: object) -> str:
    """Format the change from the first figure to the second, in percent."""
    first, second = as_number(one), as_number(other)
    if not first or second is None:
        return ""
    return f"{100 * (second - first) / abs(first):+.1f} %"


def _drawn(curves: list[list[float]]) -> list[str]:
    """Draw curves as bars over the same range."""
    among = [value for curve in curves for value in curve]
    return [fmt.sparkline(_sampled(curve), among=among) for curve in curves]


def _sampled(curve: list[float]) -> list[float]:
    columns = min(len(curve), _CURVE_WIDTH)
    return [curve[(n + 1) * len(curve) // columns - 1] for n in range(columns)]
