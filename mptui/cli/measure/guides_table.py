"""`mptui bench --table guides`: the networks of a guide by number format, measured here."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from mptui import format as fmt
from mptui.cli.measure.bench_table import by_name, print_rows
from mptui.cli.output import print_json, print_next
from mptui.cli.table import TableColumn
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.hardware.devices import Device
    from mptui.lab.bench.bench import Row
    from mptui.lab.bench.guides_table import Subject
    from mptui.lab.bench.measure import Measurer


_LIMIT_S = 90.0
"""Time limit of a measurement: a format that a CPU emulates can take minutes per step."""


def check_table(table: str, given: dict[str, str | None]) -> None:
    """Check `--table` and the flags beside it.

    Raises:
        ConfigError: There is no such table, or it was combined with a flag that it has no use for.
    """
    if table != "guides":
        raise ConfigError(f"--table {table}: unknown table", hint="use --table guides")
    taken = [flag for flag, value in given.items() if value is not None]
    if taken:
        raise ConfigError(
            f"--table guides with {', '.join(taken)}: the table has its own networks and data",
            hint="leave it out, or measure your own model without --table",
        )


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
    """Measure the table and show it, with the guide's claims beside."""
    from mptui.hardware.devices import find_machine, select_device
    from mptui.lab.bench.card_claims import beside_claims
    from mptui.lab.bench.measure import Measurer

    subjects = _subjects(only, sets)
    chosen = select_device(device, find_machine(with_torch=True))
    rows: list[dict[str, Any]] = []
    interrupted = False
    with Measurer(os.environ) as measurer:
        for subject in subjects:
            row, interrupted = _measured(subject, chosen, sets, measurer, rounds, seconds)
            rows.append(row)
            if interrupted:
                break
    cards = beside_claims(rows, chosen.name)
    document = {
        "device": chosen.torch_name,
        "device_name": chosen.name,
        "rounds": rounds,
        "seconds": seconds,
        "rows": rows,
        "cards": cards,
    }
    if as_json:
        print_json(document)
    else:
        _show(document, markdown=markdown)
        _show_cards(cards, markdown=markdown)
        print_next("measure your model: mptui bench --model NAME --data DATA --against guides")
    return 130 if interrupted else 0


def _subjects(only: str | None, sets: Sequence[str]) -> list["Subject"]:
    """Return the networks of `--only` that can be measured; a line on stderr says which can't.

    Raises:
        ConfigError: There is none.
    """
    from mptui.lab.bench import gpt2
    from mptui.lab.bench.guides_table import SUBJECTS

    named = by_name(only, {each.name: each for each in (*SUBJECTS, gpt2.SUBJECT)}, "not in the table")
    why = gpt2.why_left_out(sets)
    if why is None or gpt2.SUBJECT not in named:
        return named
    if named == [gpt2.SUBJECT]:
        raise ConfigError(f"--only {only}: {why}", hint="measure others: mptui bench --table guides")
    typer.echo(f"{gpt2.SUBJECT.title} is left out: {why}", err=True)
    return [each for each in named if each is not gpt2.SUBJECT]


def _measured(
    subject: "Subject",
    device: "Device",
    sets: Sequence[str],
    measurer: "Measurer",
    rounds: int,
    seconds: float,
) -> tuple[dict[str, Any], bool]:
    """Return a row of the table, and whether ctrl+c interrupted it; partial results are shown."""
    from mptui.lab.bench import gpt2
    from mptui.lab.bench.bench import AblationRun
    from mptui.lab.bench.guides_table import described, formats, request_of
    from mptui.lab.bench.measure import Effort, endless
    from mptui.runs.planning.plan import plan_run

    effort = Effort(seconds, limit_s=_LIMIT_S)
    sizes: dict[str, Any]
    if subject is gpt2.SUBJECT:
        bench, sizes = gpt2.ablation(device, effort, measurer), gpt2.sizes(device)
    else:
        request = request_of(subject, device, sets)
        plan = plan_run(request)
        bench = AblationRun(
            endless(request, plan), formats(plan.device), effort=effort, measure=measurer.measure
        )
        side = plan.config.data.image_size
        sizes = {"image_size": side, "size": f"{side} px", "batch_size": plan.config.training.batch_size}

    def tell(row: "Row") -> None:
        rate = row.failed or f"{row.rounds[-1].samples_per_second:,.1f} {subject.unit}/s"
        typer.echo(f"{subject.title}, {row.variant.title}: {clean(rate)}", err=True)

    interrupted = bench.measure_rounds(rounds, tell)
    return described(subject, bench, **sizes), interrupted


def _show(document: dict[str, Any], *, markdown: bool) -> None:
    from mptui.lab.bench.stats import rounds_text

    headings = (
        "",
        "trained at",
        "FP32 samples/s",
        "format",
        "times FP32",
        "interval",
        "memory",
        "guides say",
    )
    rows = [line for row in document["rows"] for line in _lines(row)]
    columns = [
        TableColumn(heading, [row[number] for row in rows], right=number not in {0, 1, 3})
        for number, heading in enumerate(headings)
    ]
    title = f"{document['device_name']}: FP32 without TF32, eager, NHWC; {rounds_text(document['rounds'])}"
    names = [f"{row['name']} {found['name']}" for row in document["rows"] for found in row["formats"]]
    print_rows(title, columns, markdown=markdown, claims=names)


def _show_cards(claims: list[dict[str, Any]], *, markdown: bool) -> None:
    """Show what guides claim of single cards beside what was measured here."""
    if not claims:
        return
    headings = (
        "network",
        "format",
        "guide on",
        "times FP32",
        "here",
        "memory",
        "here",
        "epoch",
        "here",
        "IoU",
    )
    lines = [
        [
            claim["network"],
            claim["format"].upper(),
            claim["card"],
            *_pair(claim, "speed", "{:.2f}"),
            *_pair(claim, "memory", "{:.0%}"),
            *_pair(claim, "epoch_s", "{:.0f} s"),
            fmt.UNKNOWN if claim["iou"] is None else f"{claim['iou']:.3f}",
        ]
        for claim in claims
    ]
    columns = [
        TableColumn(heading, [line[number] for line in lines], right=number > 2)
        for number, heading in enumerate(headings)
    ]
    typer.echo("")
    print_rows("what guides claim of single cards, beside this device", columns, markdown=markdown)
    typer.echo("; ".join(dict.fromkeys(claim["source"] for claim in claims)), err=True)
    typer.echo("IoU or accuracy here: mptui parity --model unet --precision bf16 --data FOLDER", err=True)


def _pair(claim: dict[str, Any], key: str, form: str) -> list[str]:
    """Return what is claimed, and what was measured."""
    values = claim[key], claim["measured"][key]
    return [fmt.UNKNOWN if value is None else form.format(value) for value in values]


def _lines(row: dict[str, Any]) -> list[list[str]]:
    """Return one line per format of a network; the first names the network."""
    base, *others = row["formats"]
    rate = base["samples_per_second"]
    first = [
        row["title"],
        f"{row['size']}, batch {row['batch_size']}",
        fmt.UNKNOWN if rate is None else f"{rate:,.1f}",
    ]
    lines = []
    for number, found in enumerate(others):
        claim = (row["claim"] or {}).get(found["name"])
        lines.append(
            [
                *(first if number == 0 else ["", "", ""]),
                found["title"],
                *_gain(found),
                fmt.UNKNOWN if found["memory"] is None else f"{found['memory']:.0%}",
                fmt.UNKNOWN if claim is None else f"{claim:.2f}",
            ]
        )
    return lines


def _gain(found: dict[str, Any]) -> list[str]:
    over = found["ratio"]
    if over is None:
        return [fmt.UNKNOWN, found["failed"] or ""]
    if over["low"] is None:
        return [f"{over['value']:.2f}", "one round"]
    noise = ", noise" if found["verdict"] == "same" else ""
    return [f"{over['value']:.2f}", f"{over['low']:.2f} to {over['high']:.2f}{noise}"]
