"""`mptui bench`: measures the effect of each precision and speed setting."""

import os
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.measure import scaling as processes
from mptui.cli.measure.bench_table import by_name, show
from mptui.cli.measure.guides_table import check_table, guides_table
from mptui.cli.output import print_json, print_next
from mptui.errors import ConfigError

if TYPE_CHECKING:
    from mptui.lab.bench.bench import AblationRun, Row
    from mptui.lab.bench.measure import Measurer
    from mptui.runs.planning.plan import Plan, Request

_PROFILE = "stable"

Rounds = Annotated[
    int,
    typer.Option("--rounds", metavar="N", min=1, help="Measurement rounds; use 6 or more."),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds", metavar="S", min=0.1, callback=o.finite, help="Seconds of training per measurement."
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes", metavar="N", min=0.1, callback=o.finite, help="Time limit; partial results are shown."
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="NAME,…", help="Measure only these settings (names in --json, without + or -)."
    ),
]
Against = Annotated[
    str | None,
    typer.Option("--against", metavar="guides", help="Show the claims of guides next to the results."),
]
Table = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="guides", help="Measure the networks of a guide's table instead of one model."
    ),
]
Scaling = Annotated[
    str | None,
    typer.Option(
        "--scaling", metavar="N,…", help="Measure these numbers of processes instead, each with one's batch."
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
    weights: o.Weights = None,
    task: o.Task = None,
    data: o.Data = None,
    batch_size: o.BatchSize = None,
    workers: o.Workers = None,
    device: o.Device = None,
    seed: o.Seed = None,
    sets: o.Set = None,
    trust_code: o.TrustCode = False,
    rounds: Rounds = 6,
    seconds: Seconds = 3.0,
    minutes: Minutes = None,
    only: Only = None,
    against: Against = None,
    table: Table = None,
    scaling: Scaling = None,
    as_json: o.Json = False,
    markdown: Markdown = False,
) -> int:
    """Measure the effect of each precision and speed setting.

    Each setting is added to the plain FP32 loop, and removed from all settings combined.
    """
    began = time.monotonic()
    if against not in {None, "guides"}:
        raise ConfigError(f"--against {against}: unknown claims", hint="use --against guides")
    if table is not None:
        check_table(table, {"--model": model, "--data": data, "--profile": profile})
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
    budget_s = inf if minutes is None else 60 * minutes - (time.monotonic() - began)
    if scaling is not None:
        return processes.scaling(ctx, request, scaling, rounds=rounds, seconds=seconds, budget_s=budget_s)
    from mptui.lab.bench.measure import Measurer
    from mptui.runs.planning.plan import plan_run

    plan = plan_run(request)
    with Measurer(os.environ) as measurer:
        lab = _ablation(request, plan, only, measurer, seconds, budget_s)
        _print_time(lab, rounds, minutes)
        interrupted = lab.measure_rounds(rounds, _Progress(lab, rounds))
    document = _document(plan, lab, seconds, claims=against is not None)
    if as_json:
        print_json(document)
    else:
        show(lab, document, claims=against is not None, markdown=markdown)
        print_next("mptui run --profile fast   # or a profile with the settings that are faster here")
    return 130 if interrupted else 0


def _ablation(
    request: "Request", plan: "Plan", only: str | None, measurer: "Measurer", seconds: float, budget_s: float
) -> "AblationRun":
    from mptui.engine.compile.start_seconds import estimated_start_s
    from mptui.hardware.advice import choose_precision
    from mptui.hardware.host import usable_cpus
    from mptui.lab.bench.ablation import switches, variants
    from mptui.lab.bench.bench import AblationRun
    from mptui.lab.bench.measure import Effort, endless

    every = switches(plan.config, plan.device, usable_cpus(), choose_precision("auto", plan.device).used)
    return AblationRun(
        endless(request, plan),
        variants(by_name(only, {each.name: each for each in every}, "no such switch here"), every),
        effort=Effort(seconds),
        measure=measurer.measure,
        compile_s=partial(estimated_start_s, plan.device.kind),
        budget_s=budget_s,
    )


def _document(plan: "Plan", lab: "AblationRun", seconds: float, *, claims: bool) -> dict[str, Any]:
    from mptui.lab.bench.claims import CLAIMS

    rows = lab.document()
    if claims:
        for row in rows:
            claim = CLAIMS.get(row["name"])
            row["claim"] = None if claim is None else {"speed": claim.speed, "memory": claim.memory}
    return {
        "model": plan.config.model.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "rounds": lab.rounds,
        "seconds": seconds,
        "variants": rows,
    }


def _print_time(lab: "AblationRun", rounds: int, minutes: float | None) -> None:
    """Print how long it will take, before it starts."""
    from mptui import format as fmt

    expected_s = lab.expected_s(rounds)
    what = f"{rounds} round{'s' if rounds > 1 else ''} of {len(lab.rows)} variants"
    line = f"about {fmt.duration(expected_s)}: {what}"
    if minutes is None:
        line += "; to shorten: --minutes N, --only NAME,… or fewer --rounds"
    elif expected_s > 60 * minutes:
        line += f"; ends after {fmt.duration(60 * minutes)} with partial results"
    typer.echo(line, err=True)


class _Progress:
    """Prints progress and the time left on stderr."""

    def __init__(self, lab: "AblationRun", rounds: int) -> None:
        self._lab, self._rounds = lab, rounds
        self._done = 0

    def __call__(self, row: "Row") -> None:
        from mptui import format as fmt

        self._done += 1
        left = fmt.duration(self._lab.expected_s(self._rounds))
        total = self._rounds * len(self._lab.rows)
        typer.echo(f"[{self._done}/{total}] {row.variant.title}: {row.latest}   {left} left", err=True)
