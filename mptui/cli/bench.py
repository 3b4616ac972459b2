"""`mptui bench`: what each precision and speed setting is worth on this device, model and data."""

import os
import sys
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mptui.cli import options as o
from mptui.cli.guides_table import guides_table
from mptui.cli.output import console, print_json, print_next
from mptui.errors import ConfigError

if TYPE_CHECKING:
    from mptui.lab.bench import Bench, Row
    from mptui.lab.stats import Ratio
    from mptui.runs.plan import Plan

_BAR = 12
_PROFILE = "stable"

Rounds = Annotated[
    int,
    typer.Option("--rounds", metavar="N", min=1, help="How often all is measured; 6 or more make it sure."),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", metavar="S", min=0.1, callback=o.finite, help="Training that is timed, each time."
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="NAME,…", help="These switches alone (names as in --json, without + or -)."
    ),
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="guides", help="Hold what guides promise beside it.")
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="guides", help="The guides' networks by number format, in place of one model."
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench")(bench)


def bench(
    ctx: typer.Context,
    profile: o.Profile = None,
    model: o.Model = None,
    data: o.Data = None,
    batch_size: o.BatchSize = None,
    workers: o.Workers = None,
    device: o.Device = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    rounds: Rounds = 6,
    seconds: Seconds = 3.0,
    only: Only = None,
    against: Against = None,
    table: Table = None,
    as_json: o.Json = False,
    markdown: Markdown = False,
) -> int:
    """Measure what each precision and speed setting is worth here.

    Each is added alone to the plain FP32 loop, and left out of all of them together.
    """
    from mptui.lab.ablation import switches, variants
    from mptui.lab.bench import Bench
    from mptui.lab.measure import Effort, Measurer, endless
    from mptui.runs.plan import plan_run

    if against not in {None, "guides"}:
        raise ConfigError(f"--against {against}: there are only the guides", hint="use --against guides")
    if table is not None:
        _check_table(table, {"--model": model, "--data": data, "--profile": profile})
        return guides_table(
            device=device or "auto",
            sets=sets or (),
            only=only,
            rounds=rounds,
            seconds=seconds,
            as_json=as_json,
            markdown=markdown,
        )
    request = o.request_of(ctx, profile or _PROFILE)
    plan = plan_run(request)
    request = endless(request, plan)
    every = switches(plan.config, plan.device, _cpus(), _precision(plan))
    found = every if only is None else _chosen(only, every)
    interrupted = False
    with Measurer(os.environ) as measurer:
        lab = Bench(request, variants(found, every), effort=Effort(seconds), measure=measurer.measure)
        progress = _Progress(rounds * len(lab.rows))
        try:
            for _ in range(rounds):
                lab.round(progress)
        except KeyboardInterrupt:
            interrupted = True  # what is complete is still worth its table
    document = {
        "model": plan.config.model.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "rounds": rounds,
        "seconds": seconds,
        "variants": _with_claims(lab.document()) if against else lab.document(),
    }
    if as_json:
        print_json(document)
    else:
        _show(lab, document, claims=against is not None, style="markdown" if markdown else "table")
        print_next("mptui run --profile fast   # or a profile with the settings that pay here")
    return 130 if interrupted else 0


def _check_table(table: str, given: dict[str, str | None]) -> None:
    if table != "guides":
        raise ConfigError(f"--table {table}: there is only the guides'", hint="use --table guides")
    taken = [flag for flag, value in given.items() if value is not None]
    if taken:
        raise ConfigError(
            f"--table guides with {', '.join(taken)}: the table has networks and data of its own",
            hint="leave it out, or measure your own model without --table",
        )


def _cpus() -> int:
    from mptui.hardware.host import usable_cpus

    return usable_cpus()


def _precision(plan: "Plan") -> str:
    from mptui.hardware.advice import choose_precision

    return choose_precision("auto", plan.device).used


def _chosen(only: str, found: list[Any]) -> list[Any]:
    names = [name.strip() for name in only.split(",")]
    known = {switch.name: switch for switch in found}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"--only {', '.join(missing)}: no such switch here", hint=f"there are {', '.join(known)}"
        )
    return [known[name] for name in names]


class _Progress:
    """Says on stderr how far it is."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def __call__(self, row: "Row") -> None:
        self._done += 1
        told = row.failed or f"{row.rounds[-1].samples_per_second:,.1f} images/s"
        typer.echo(f"[{self._done}/{self._total}] {row.variant.title}: {told}", err=True)


def _with_claims(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from mptui.lab.claims import CLAIMS

    return [
        {**row, "claim": asdict(CLAIMS[row["name"]]) if row["name"] in CLAIMS else None} for row in document
    ]


def _show(
    lab: "Bench", document: dict[str, Any], *, claims: bool, style: Literal["table", "markdown"]
) -> None:
    from mptui.lab.stats import told_rounds

    headings = ["", "images/s", "times", "interval", "", "memory", "first step", "loss"]
    headings += ["guides say"] if claims else []
    fastest = max((row.rate or 0.0 for row in lab.rows), default=0.0)
    lines = [_line(lab, row, fastest, claims) for row in lab.rows]
    title = f"{document['model']} on {document['device_name']}: {told_rounds(document['rounds'])}"
    if style == "markdown":
        typer.echo(f"{title}\n")
        typer.echo(f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}")
        for line in lines:
            typer.echo(f"| {' | '.join(line)} |")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number in {0, 4} else "right", no_wrap=number == 0)
    for line in lines:
        table.add_row(*line)
    console(width=None if sys.stdout.isatty() else 120).print(table)


def _line(lab: "Bench", row: "Row", fastest: float, claims: bool) -> list[str]:
    if row.failed is not None:
        return [row.variant.title, "–", "–", row.failed, "", "–", "–", "–", *(["–"] if claims else [])]
    over, rate = lab.over_baseline(row), row.rate
    baseline = row.variant.against is None
    line = [
        row.variant.title,
        f"{rate:,.1f}" if rate is not None else "–",
        "1.00" if baseline else f"{over.median:.2f}" if over is not None else "–",
        "" if baseline or over is None else _interval(over),
        "█" * round(_BAR * rate / fastest) if rate is not None and fastest else "",
        f"{row.peak_bytes / 2**20:,.0f} MiB" if row.peak_bytes is not None else "–",
        f"{row.first_step_s:.1f} s" if row.first_step_s is not None else "–",
        _loss(lab, row),
    ]
    return [*line, _claim(row.variant.name)] if claims else line


def _loss(lab: "Bench", row: "Row") -> str:
    off = lab.off_baseline(row)
    told = "–" if row.loss is None else f"{row.loss:.3f}"
    return told if off is None or row.variant.against is None else f"{told} {off:+.1%}"


def _interval(over: "Ratio") -> str:
    if over.high == inf:
        return "one round"
    told = f"{over.low:.2f} to {over.high:.2f}"
    return f"{told}, noise" if over.verdict == "same" else told


def _claim(name: str) -> str:
    from mptui.lab.claims import CLAIMS

    claim = CLAIMS.get(name)
    if claim is None:
        return ""
    parts = [
        f"{claim.speed:.2f}" if claim.speed else "",
        f"{claim.memory:.0%} memory" if claim.memory else "",
    ]
    return ", ".join(part for part in parts if part)
