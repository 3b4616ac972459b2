"""`mptui bench`: what each precision and speed setting is worth on this device, model and data."""

import os
import time
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.measure.bench_table import show
from mptui.cli.measure.guides_table import guides_table
from mptui.cli.output import print_json, print_next
from mptui.errors import ConfigError

if TYPE_CHECKING:
    from mptui.lab.bench.bench import AblationRun, Row
    from mptui.runs.planning.plan import Plan

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
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", metavar="N", min=0.1, callback=o.finite, help="End by then, with what is measured."
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
    minutes: Minutes = None,
    only: Only = None,
    against: Against = None,
    table: Table = None,
    as_json: o.Json = False,
    markdown: Markdown = False,
) -> int:
    """Measure what each precision and speed setting is worth here.

    Each is added alone to the plain FP32 loop, and left out of all of them together.
    """
    began = time.monotonic()
    from mptui.lab.bench.ablation import switches, variants
    from mptui.lab.bench.bench import AblationRun
    from mptui.lab.bench.measure import COMPILE_S, Effort, Measurer, endless
    from mptui.runs.planning.plan import plan_run

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
        lab = AblationRun(
            request,
            variants(found, every),
            effort=Effort(seconds),
            measure=measurer.measure,
            compile_s=COMPILE_S["cpu" if plan.device.kind == "cpu" else "gpu"],
            budget_s=inf if minutes is None else 60 * minutes - (time.monotonic() - began),
        )
        _tell_time(lab, rounds, minutes)
        progress = _Progress(lab, rounds)
        try:
            for _ in range(rounds):
                lab.round(progress)
        except KeyboardInterrupt:
            interrupted = True  # what is complete is still worth its table
    document = {
        "model": plan.config.model.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "rounds": lab.rounds,
        "seconds": seconds,
        "variants": _with_claims(lab.document()) if against else lab.document(),
    }
    if as_json:
        print_json(document)
    else:
        show(lab, document, claims=against is not None, style="markdown" if markdown else "table")
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


def _tell_time(lab: "AblationRun", rounds: int, minutes: float | None) -> None:
    """Say beforehand how long it will take."""
    from mptui import format as fmt

    expected_s = lab.expected_s(rounds)
    what = f"{rounds} round{'s' if rounds > 1 else ''} of {len(lab.rows)} variants"
    told = f"about {fmt.duration(expected_s)}: {what}"
    if minutes is None:
        told += "; for less: --minutes N, --only NAME,… or fewer --rounds"
    elif expected_s > 60 * minutes:
        told += f"; ends after {fmt.duration(60 * minutes)} with what is measured by then"
    typer.echo(told, err=True)


class _Progress:
    """Says on stderr how far it is, and how long it still takes."""

    def __init__(self, lab: "AblationRun", rounds: int) -> None:
        self._lab, self._rounds = lab, rounds
        self._done = 0

    def __call__(self, row: "Row") -> None:
        from mptui import format as fmt

        self._done += 1
        told = row.failed or f"{row.rounds[-1].samples_per_second:,.1f} images/s"
        left = fmt.duration(self._lab.expected_s(self._rounds))
        total = self._rounds * len(self._lab.rows)
        typer.echo(f"[{self._done}/{total}] {row.variant.title}: {told}   {left} left", err=True)


def _with_claims(document: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from mptui.lab.bench.claims import CLAIMS

    return [
        {**row, "claim": asdict(CLAIMS[row["name"]]) if row["name"] in CLAIMS else None} for row in document
    ]
