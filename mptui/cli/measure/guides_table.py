"""`mptui bench --table guides`: a guide's table of networks by number format, measured here."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli.output import console, print_json, print_next
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.bench.bench import Row
    from mptui.lab.bench.guides_table import Subject
    from mptui.runs.planning.plan import Request


_LIMIT_S = 90.0
"""A format that a processor emulates can take minutes a step: then that is what the table says."""


def guides_table(
    *,
    device: str,
    sets: Sequence[str],
    only: str | None,
    rounds: int,
    seconds: float,
    as_json: bool,
    markdown: bool,
) -> int:
    """Measure the table and show it, with what the guide says beside."""
    from mptui.hardware.devices import find_machine, select_device
    from mptui.lab.bench import guides_table as lab

    found = find_machine(with_torch=True)
    chosen = select_device(device, found.devices)
    rows: list[dict[str, Any]] = []
    interrupted = False
    for subject in _subjects(only):
        row, interrupted = _measured(subject, lab.request_of(subject, chosen, sets), rounds, seconds)
        rows.append(row)
        if interrupted:
            break
    document = {
        "device": chosen.torch_name,
        "device_name": chosen.name,
        "rounds": rounds,
        "seconds": seconds,
        "rows": rows,
    }
    if as_json:
        print_json(document)
    else:
        _show(document, markdown=markdown)
        print_next("your own model, switch by switch: mptui bench --model NAME --data DATA --against guides")
    return 130 if interrupted else 0


def _subjects(only: str | None) -> "list[Subject]":
    from mptui.lab.bench.guides_table import SUBJECTS

    known = {subject.name: subject for subject in SUBJECTS}
    names = list(known) if only is None else [name.strip() for name in only.split(",")]
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"--only {', '.join(missing)}: not in the table", hint=f"there are {', '.join(known)}"
        )
    return [known[name] for name in names]


def _measured(
    subject: "Subject", request: "Request", rounds: int, seconds: float
) -> tuple[dict[str, Any], bool]:
    """A row of the table, and whether ctrl+c cut it short: what was measured is still worth showing."""
    from mptui.lab.bench.bench import AblationRun
    from mptui.lab.bench.guides_table import described, formats
    from mptui.lab.bench.measure import Effort, Measurer, endless
    from mptui.runs.planning.plan import plan_run

    plan = plan_run(request)
    effort = Effort(seconds, limit_s=_LIMIT_S)
    with Measurer(os.environ) as measurer:
        bench = AblationRun(
            endless(request, plan), formats(plan.device), effort=effort, measure=measurer.measure
        )

        def tell(row: "Row") -> None:
            figure = row.failed or f"{row.rounds[-1].samples_per_second:,.1f} images/s"
            typer.echo(f"{subject.title}, {row.variant.title}: {clean(figure)}", err=True)

        interrupted = False
        try:
            for _ in range(rounds):
                bench.round(tell)
        except KeyboardInterrupt:
            interrupted = True
    return described(subject, plan, bench), interrupted


def _show(document: dict[str, Any], *, markdown: bool) -> None:
    from mptui.lab.bench.stats import told_rounds

    headings = ["", "trained at", "FP32 images/s", "format", "times FP32", "interval", "memory", "guides say"]
    lines = [line for row in document["rows"] for line in _lines(row)]
    of = told_rounds(document["rounds"])
    title = f"{document['device_name']}: FP32 without TF32, eager, NHWC; {of}"
    if markdown:
        typer.echo(f"{title}\n\n| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
        for line in lines:
            typer.echo(f"| {' | '.join(line)} |")
    else:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        for number, heading in enumerate(headings):
            table.add_column(heading, justify="left" if number in {0, 1, 3} else "right", no_wrap=number < 2)
        for line in lines:
            table.add_row(*line)
        console(width=None if sys.stdout.isatty() else 120).print(table)


def _lines(row: dict[str, Any]) -> list[list[str]]:
    """A line for each format of a network; the first names it."""
    base, *others = row["formats"]
    rate = "–" if base["samples_per_second"] is None else f"{base['samples_per_second']:,.1f}"
    first = [row["title"], f"{row['image_size']} px, batch {row['batch_size']}", rate]
    lines = []
    for number, found in enumerate(others):
        says = (row["claim"] or {}).get(found["name"])
        lines.append(
            [
                *(first if number == 0 else ["", "", ""]),
                found["title"],
                *_gain(found),
                "–" if found["memory"] is None else f"{found['memory']:.0%}",
                "–" if says is None else f"{says:.2f}",
            ]
        )
    return lines


def _gain(found: dict[str, Any]) -> list[str]:
    over = found["ratio"]
    if over is None:
        return ["–", found["failed"] or ""]
    if over["low"] is None:
        return [f"{over['median']:.2f}", "one round"]
    noise = ", noise" if found["verdict"] == "same" else ""
    return [f"{over['median']:.2f}", f"{over['low']:.2f} to {over['high']:.2f}{noise}"]
