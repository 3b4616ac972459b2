"""`mptui runs`: what was trained, and how it ended."""

from pathlib import Path
from typing import Any

import typer

from mptui.cli import options as o
from mptui.cli.output import console, print_json, print_next


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("runs")(runs)


def runs(runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR, as_json: o.Json = False) -> None:
    """List the runs, newest last: running, finished or crashed, and their best figures."""
    from mptui.events import finite_json
    from mptui.runs.directory import list_runs, status_of

    listed = [status_of(path) for path in list_runs(runs_dir)]
    if as_json:
        print_json(finite_json(listed))
        return
    if not listed:
        print_next(f"there are no runs in {runs_dir}; start one: mptui run --profile fast")
        return
    _print_table(listed)
    print_next("go on with one: mptui resume RUN")


def _print_table(listed: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("run", "status", "epochs", "steps", "best", "images/s", "precision"):
        table.add_column(heading, justify="left" if heading in {"run", "status", "precision"} else "right")
    for summary in listed:
        best = summary.get("best") or {}
        value = best.get("value")
        rate = summary.get("samples_per_second")
        table.add_row(
            Path(str(summary["directory"])).name,
            str(summary.get("status")),
            str(summary.get("epochs", "–")),
            f"{summary.get('optimizer_steps', 0):,}",
            f"{best['metric']} {value:.4f}" if isinstance(value, float) else "–",
            f"{rate:,.1f}" if isinstance(rate, float) else "–",
            str((summary.get("precision") or {}).get("used") or "–"),
        )
    console().print(table)
