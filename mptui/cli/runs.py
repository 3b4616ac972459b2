"""`mptui runs`: what was trained, how it ended, and how two runs differ."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from mptui import format as fmt
from mptui.cli import completion
from mptui.cli import options as o
from mptui.cli.output import console, print_json, print_next
from mptui.text import clean

runs = typer.Typer(rich_markup_mode=None)

Second = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run to compare it with.", autocompletion=completion.runs),
]

_BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 32


def app_command(app: typer.Typer) -> None:
    """Add `runs` to the commands of `app`."""
    app.add_typer(runs, name="runs")


@runs.callback(invoke_without_command=True)
def list_all(ctx: typer.Context, runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR, as_json: o.Json = False) -> None:
    """List the runs, newest last, or compare two of them."""
    if ctx.invoked_subcommand is not None:
        return
    from mptui.codec import finite_json
    from mptui.runs.compare import summaries

    listed = summaries(runs_dir, _tell_unreadable)
    if as_json:
        print_json(finite_json(listed))
        return
    if not listed:
        print_next(f"there are no runs in {runs_dir}; start one: mptui run --profile fast")
        return
    _print_list(listed)
    going = any(summary["status"] == "running" for summary in listed)
    print_next(
        "watch one: mptui attach RUN"
        if going
        else "go on with one: mptui resume RUN; how two differ: mptui runs compare RUN RUN"
    )


@runs.command()
def compare(
    first: o.Run, second: Second, runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR, as_json: o.Json = False
) -> None:
    """Put two runs beside each other: values that differ, accuracy, speed, memory, time, curves."""
    from mptui.codec import finite_json
    from mptui.runs.compare import compare as compared
    from mptui.runs.directory import find_run

    found = compared(find_run(runs_dir, first), find_run(runs_dir, second))
    if as_json:
        print_json(finite_json(found))
    else:
        _print_comparison(found)


def _tell_unreadable(error: OSError) -> None:
    typer.echo(clean(f"can't read {error.filename}: {error.strerror}", limit=4096), err=True)


def _print_list(listed: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    names = [clean(Path(str(summary["directory"])).name) for summary in listed]
    table.add_column("run", min_width=max(map(len, names)))  # whole: it is what the other commands take
    for heading in ("status", "epochs", "steps", "best", "images/s", "precision"):
        table.add_column(heading, justify="left" if heading in {"status", "precision"} else "right")
    for name, summary in zip(names, listed, strict=True):
        best = summary.get("best") or {}
        value = best.get("value")
        rate = summary.get("samples_per_second")
        silent = summary.get("silent_s")
        table.add_row(
            name,
            str(summary.get("status")) + (f", silent for {silent:,} s" if silent else ""),
            str(summary.get("epochs", fmt.UNKNOWN)),
            f"{summary.get('optimizer_steps', 0):,}",
            f"{best['metric']} {value:.4f}" if isinstance(value, float) else fmt.UNKNOWN,
            f"{rate:,.1f}" if isinstance(rate, float) else fmt.UNKNOWN,
            str((summary.get("precision") or {}).get("used") or fmt.UNKNOWN),
        )
    console().print(table)


def _print_comparison(found: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in found["runs"]:
        table.add_column(clean(name), justify="right")
    table.add_column("difference", justify="right")
    for key, (one, other) in {**found["settings"], **found["figures"]}.items():
        if one is not None or other is not None:
            table.add_row(key, _shown(key, one), _shown(key, other), _difference(one, other))
    for name, curves in found["curves"].items():
        table.add_row(f"{name} by epoch", *_drawn(curves), "")
    console().print(table)
    if not found["settings"]:
        typer.echo("the two have the same configuration", err=True)


def _shown(key: str, value: object) -> str:
    if value is None:
        return fmt.UNKNOWN
    if key.endswith("_bytes") and isinstance(value, int):
        return f"{value / (1 << 20):,.0f} MiB"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return clean(str(value), 60)


def _difference(one: object, other: object) -> str:
    """How far the second figure is from the first, in percent."""
    first, second = _number(one), _number(other)
    if first is None or second is None or not first:
        return ""
    return f"{100 * (second - first) / abs(first):+.1f} %"


def _number(value: object) -> float | None:
    """A finite number; None for anything else, and for what no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _drawn(curves: list[list[float]]) -> list[str]:
    """Both curves as bars over the same range."""
    finite = [value for curve in curves for value in curve if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return [_bars(curve, low, (high - low) or 1.0) for curve in curves]


def _bars(curve: list[float], low: float, span: float) -> str:
    columns = min(len(curve), _CURVE_WIDTH)
    values = [curve[(n + 1) * len(curve) // columns - 1] for n in range(columns)]
    return "".join(
        _BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] if math.isfinite(value) else "×"
        for value in values
    )
