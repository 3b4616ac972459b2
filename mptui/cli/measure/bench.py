"""Bench in its forms."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mptui import text as fmt
from mptui.cli import options as o
from mptui.cli.output import TableColumn, columns_of, print_json, print_next, print_rows
from mptui.cli.train.processes import rank_flags
from mptui.errors import ConfigError
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.hardware.devices import Device
    from mptui.lab.measure.bench import Subject
    from mptui.lab.measure.core import AblationRun, Deadline, Measurer, Ratio, Row
    from mptui.runs.planning.plan import Plan, Request


# `mptui bench`: measures the effect of each precision and speed setting
# ----------------------------------------------------------------------

_PROFILE = "stable"


class BenchOptions(o.Options):
    """What is measured, and for how long."""

    rounds: int = o.option(6, "N", "Measurement rounds; use 6 or more.", min=1)
    seconds: float = o.option(3.0, "S", "Seconds of training per measurement.", min=0.1)
    minutes: float | None = o.option(None, "N", "Time limit; partial results are shown.", min=0.1)
    only: str | None = o.option(
        None, "NAME,…", "Measure only these settings (names in --json, without + or -)."
    )
    against: str | None = o.option(None, "guides", "Show the claims of guides next to the results.")
    table: str | None = o.option(
        None, "guides", "Measure the networks of a guide's table instead of one model."
    )
    scaling: str | None = o.option(
        None, "N,…", "Measure these numbers of processes instead, each with --batch-size samples."
    )


_SETTINGS = "profile model weights task data batch_size workers device seed sets trust_code"


def bench(
    ctx: typer.Context,
    settings: Annotated[o.SettingOptions, _SETTINGS],
    options: BenchOptions,
    output: o.MarkdownOutput,
) -> int:
    """Measure the effect of each precision and speed setting.

    Each setting is added to the plain FP32 loop, and removed from all settings combined.
    """
    began = time.monotonic()
    if options.against not in {None, "guides"}:
        raise ConfigError(f"--against {options.against}: unknown claims", hint="use --against guides")
    if options.table is not None:
        check_table(options.table, settings)
        return guides_table(settings, options, output)
    request = settings.request(settings.profile or _PROFILE)
    from mptui.lab.measure.core import Deadline, Measurer
    from mptui.runs.planning.plan import plan_run

    deadline = Deadline(60 * (options.minutes or inf) - (time.monotonic() - began))
    if options.scaling is not None:
        words = [*rank_flags(ctx, _NOT_OF_RUN), "--profile", str(request.profile)]
        return show_scaling(words, request, options, output, deadline=deadline)
    plan = plan_run(request)
    with Measurer(os.environ) as measurer:
        lab = _ablation(request, plan, measurer, options, deadline=deadline)
        _print_time(lab, options)
        numbers, total = count(1), options.rounds * len(lab.rows)

        def on_row(row: "Row") -> None:
            left = fmt.duration(lab.expected_s(options.rounds))
            done = f"[{next(numbers)}/{total}] {row.variant.title}: {row.latest}"
            typer.echo(f"{done}   {left} left", err=True)

        interrupted = lab.measure_rounds(options.rounds, on_row)
    claims = options.against is not None
    document = _document(plan, lab, options.seconds, claims=claims)
    if output.as_json:
        print_json(document, older={"seconds": "seconds_per_round"})
    else:
        show(lab, document, claims=claims, markdown=output.markdown)
        print_next("mptui run --profile fast   # or a profile with the settings that are faster here")
    return 130 if interrupted else 0


def _ablation(
    request: "Request", plan: "Plan", measurer: "Measurer", options: BenchOptions, *, deadline: "Deadline"
) -> "AblationRun":
    from mptui.engine.compile import estimated_start_s
    from mptui.hardware.advice import choose_precision
    from mptui.hardware.host import usable_cpus
    from mptui.lab.measure.core import AblationRun, Effort, endless, switches, variants

    every = switches(plan.config, plan.device, usable_cpus(), choose_precision("auto", plan.device).used)
    chosen = by_name(options.only, {each.name: each for each in every}, "no such switch here")
    start_s = partial(estimated_start_s, plan.device.kind)
    measure = partial(measurer.measure, endless(request, plan))
    return AblationRun(variants(chosen, every, start_s), measure, Effort(options.seconds), deadline=deadline)


def _document(plan: "Plan", lab: "AblationRun", seconds: float, *, claims: bool) -> dict[str, Any]:
    from mptui.lab.measure.bench import CLAIMS

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
        "seconds_per_round": seconds,
        "variants": rows,
    }


def _print_time(lab: "AblationRun", options: BenchOptions) -> None:
    """Print how long it will take, before it starts."""
    rounds, minutes = options.rounds, options.minutes
    expected_s = lab.expected_s(rounds)
    what = f"{rounds} round{'s' if rounds > 1 else ''} of {len(lab.rows)} variants"
    line = f"about {fmt.duration(expected_s)}: {what}"
    if minutes is None:
        line += "; to shorten: --minutes N, --only NAME,… or fewer --rounds"
    elif expected_s > 60 * minutes:
        line += f"; ends after {fmt.duration(60 * minutes)} with partial results"
    typer.echo(line, err=True)


# The tables of `mptui bench`: one line per variant
# -------------------------------------------------

_BAR = 12
_WIDE = 4.0
"""An interval whose ends differ by more than this factor only says that there were too few rounds."""


_T = TypeVar("_T")


def by_name(only: str | None, known: Mapping[str, _T], fault: str) -> list[_T]:
    """Return the entries of `known` named in `--only NAME,…`, in its order; all without it.

    Raises:
        ConfigError: A name is unknown; `fault` is the message.
    """
    names = list(known) if only is None else [name.strip() for name in only.split(",")]
    if missing := [name for name in names if name not in known]:
        raise ConfigError(f"--only {', '.join(missing)}: {fault}", hint=f"there are {', '.join(known)}")
    return [known[name] for name in names]


def show(lab: "AblationRun", document: dict[str, Any], *, claims: bool, markdown: bool) -> None:
    """Print the results, one line per variant; columns that don't fit are omitted.

    Args:
        lab: The measured ablation.
        document: The document of `mptui bench --json`.
        claims: Whether to show published claims.
        markdown: Whether to print Markdown.
    """
    from mptui.lab.measure.bench import CLAIMS, sources
    from mptui.lab.measure.core import NO_TIME, rounds_text

    fastest = max((row.rate or 0.0 for row in lab.rows), default=0.0)
    rows = [_line(lab, row, fastest) for row in lab.rows]
    headings = ("", "images/s", "times", "interval", "", "memory", "first step", "loss")
    columns = columns_of(headings, rows, left={0, 4}, leave={4: 4, 5: 1, 6: 2, 7: 3})
    names = [row.variant.name for row in lab.rows]
    if claims:
        texts = [CLAIMS[name].text if name in CLAIMS else "" for name in names]
        columns.append(TableColumn("guides say", texts, right=True))
    title = f"{document['model']} on {document['device_name']}: {rounds_text(document['rounds'])}"
    print_rows(columns, title=title, markdown=markdown)
    if claims:
        typer.echo(sources(names), err=True)
    if markdown:
        return
    for row in lab.rows:
        if row.failed not in {None, NO_TIME}:
            typer.echo(clean(f"{row.variant.title} was not measured: {row.failed}"))
    if untried := [row.variant.title for row in lab.rows if row.failed == NO_TIME]:
        typer.echo(clean(f"not measured for lack of time: {', '.join(untried)}", limit=1000))


def _line(lab: "AblationRun", row: "Row", fastest: float) -> list[str]:
    none = fmt.UNKNOWN
    if row.failed is not None:
        return [row.variant.title, none, none, none, "", none, none, none]
    over, rate = lab.over_baseline(row), row.rate
    baseline = row.variant.against is None
    return [
        row.variant.title,
        fmt.filled("{:,.1f}", rate),
        "1.00" if baseline else none if over is None else f"{over.value:.2f}",
        "" if baseline or over is None else _interval(over),
        "█" * round(_BAR * rate / fastest) if rate is not None and fastest else "",
        none if row.peak_bytes is None else f"{row.peak_bytes / 2**20:,.0f} MiB",
        fmt.filled("{:.1f} s", row.first_step_s),
        _loss(lab, row),
    ]


def _loss(lab: "AblationRun", row: "Row") -> str:
    off = lab.off_baseline(row)
    text = fmt.filled("{:.3f}", row.loss)
    return text if off is None or row.variant.against is None else f"{text} {off:+.1%}"


def _interval(over: "Ratio") -> str:
    if over.high == inf:
        return "one round"
    if over.high > _WIDE * over.low:
        return "too wide"  # two or three rounds that differ
    text = f"{over.low:.2f}–{over.high:.2f}"
    return f"{text} noise" if over.verdict == "same" else text


# `mptui bench --table guides`: the networks of a guide by number format, measured here
# -------------------------------------------------------------------------------------

_LIMIT_S = 90.0
"""Time limit of a measurement: a format that a CPU emulates can take minutes per step."""


def check_table(table: str, settings: o.SettingOptions) -> None:
    """Check `--table` and the flags beside it.

    Raises:
        ConfigError: There is no such table, or it was combined with a flag that it has no use for.
    """
    if table != "guides":
        raise ConfigError(f"--table {table}: unknown table", hint="use --table guides")
    given = {"--model": settings.model, "--data": settings.data, "--profile": settings.profile}
    taken = [flag for flag, value in given.items() if value is not None]
    if taken:
        raise ConfigError(
            f"--table guides with {', '.join(taken)}: the table has its own networks and data",
            hint="leave it out, or measure your own model without --table",
        )


def guides_table(settings: o.SettingOptions, options: BenchOptions, output: o.MarkdownOutput) -> int:
    """Measure the table and show it, with the guide's claims beside."""
    from mptui.hardware.devices import find_machine, select_device
    from mptui.lab.measure.bench import beside_claims
    from mptui.lab.measure.core import Measurer

    sets = settings.sets or ()
    subjects = _subjects(options.only, sets)
    chosen = select_device(settings.device or "auto", find_machine(with_torch=True))
    rows: list[dict[str, Any]] = []
    interrupted = False
    with Measurer(os.environ) as measurer:
        for subject in subjects:
            row, interrupted = _measured(subject, chosen, sets, measurer, options=options)
            rows.append(row)
            if interrupted:
                break
    cards = beside_claims(rows, chosen.name)
    document = {
        "device": chosen.torch_name,
        "device_name": chosen.name,
        "rounds": options.rounds,
        "seconds_per_round": options.seconds,
        "rows": rows,
        "cards": cards,
    }
    if output.as_json:
        print_json(document, older={"seconds": "seconds_per_round"})
    else:
        _show(document, markdown=output.markdown)
        _show_cards(cards, markdown=output.markdown)
        print_next("measure your model: mptui bench --model NAME --data DATA --against guides")
    return 130 if interrupted else 0


def _subjects(only: str | None, sets: Sequence[str]) -> list["Subject"]:
    """Return the networks of `--only` that can be measured; a line on stderr says which can't.

    Raises:
        ConfigError: There is none.
    """
    from mptui.lab.measure import bench as measure_bench
    from mptui.lab.measure.bench import SUBJECTS

    named = by_name(
        only, {each.name: each for each in (*SUBJECTS, measure_bench.SUBJECT)}, "not in the table"
    )
    why = measure_bench.why_left_out(sets)
    if why is None or measure_bench.SUBJECT not in named:
        return named
    if named == [measure_bench.SUBJECT]:
        raise ConfigError(f"--only {only}: {why}", hint="measure others: mptui bench --table guides")
    typer.echo(f"{measure_bench.SUBJECT.title} is left out: {why}", err=True)
    return [each for each in named if each is not measure_bench.SUBJECT]


def _measured(
    subject: "Subject", device: "Device", sets: Sequence[str], measurer: "Measurer", *, options: BenchOptions
) -> tuple[dict[str, Any], bool]:
    """Return a row of the table, and whether ctrl+c interrupted it; partial results are shown."""
    from mptui.lab.measure import bench as measure_bench
    from mptui.lab.measure.bench import described, formats, request_of
    from mptui.lab.measure.core import AblationRun, Deadline, Effort, endless
    from mptui.runs.planning.plan import plan_run

    effort = Effort(options.seconds, limit_s=_LIMIT_S)
    sizes: dict[str, Any]
    if subject is measure_bench.SUBJECT:
        bench, sizes = measure_bench.ablation(device, effort, measurer), measure_bench.sizes(device)
    else:
        request = request_of(subject, device, sets)
        plan = plan_run(request)
        measure = partial(measurer.measure, endless(request, plan))
        bench = AblationRun(formats(plan.device), measure, effort, deadline=Deadline(inf))
        side = plan.config.data.image_size
        sizes = {"image_size": side, "size": f"{side} px", "batch_size": plan.config.training.batch_size}

    def tell(row: "Row") -> None:
        rate = row.failed or f"{row.rounds[-1].samples_per_second:,.1f} {subject.unit}/s"
        typer.echo(f"{subject.title}, {row.variant.title}: {clean(rate)}", err=True)

    interrupted = bench.measure_rounds(options.rounds, tell)
    return described(subject, bench, **sizes), interrupted


def _show(document: dict[str, Any], *, markdown: bool) -> None:
    from mptui.lab.measure.bench import sources
    from mptui.lab.measure.core import rounds_text

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
    columns = columns_of(headings, rows, left={0, 1, 3})
    title = f"{document['device_name']}: FP32 without TF32, eager, NHWC; {rounds_text(document['rounds'])}"
    names = [f"{row['name']} {found['name']}" for row in document["rows"] for found in row["formats"]]
    print_rows(columns, title=title, markdown=markdown)
    typer.echo(sources(names), err=True)


def _show_cards(claims: list[dict[str, Any]], *, markdown: bool) -> None:
    """Show what guides claim of single cards beside what was measured here."""
    if not claims:
        return
    pairs = ("times FP32", "here", "memory", "here", "epoch", "here")
    rows = [
        [
            claim["network"],
            claim["format"].upper(),
            claim["card"],
            *_pair(claim, "speed", "{:.2f}"),
            *_pair(claim, "memory", "{:.0%}"),
            *_pair(claim, "epoch_s", "{:.0f} s"),
            fmt.filled("{:.3f}", claim["iou"]),
        ]
        for claim in claims
    ]
    columns = columns_of(("network", "format", "guide on", *pairs, "IoU"), rows, left={0, 1, 2})
    typer.echo("")
    title = "what guides claim of single cards, beside this device"
    print_rows(columns, title=title, markdown=markdown)
    typer.echo("; ".join(dict.fromkeys(claim["source"] for claim in claims)), err=True)
    typer.echo("IoU or accuracy here: mptui parity --model unet --precision bf16 --data FOLDER", err=True)


def _pair(claim: dict[str, Any], key: str, form: str) -> list[str]:
    """Return what is claimed, and what was measured."""
    return [fmt.filled(form, value) for value in (claim[key], claim["measured"][key])]


def _lines(row: dict[str, Any]) -> list[list[str]]:
    """Return one line per format of a network; the first names the network."""
    base, *others = row["formats"]
    rate = base["samples_per_second"]
    first = [
        row["title"],
        f"{row['size']}, batch {row['batch_size']}",
        fmt.filled("{:,.1f}", rate),
    ]
    lines = []
    for number, found in enumerate(others):
        claim = (row["claim"] or {}).get(found["name"])
        lines.append(
            [
                *(first if number == 0 else ["", "", ""]),
                found["title"],
                *_gain(found),
                fmt.filled("{:.0%}", found["memory"]),
                fmt.filled("{:.2f}", claim),
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


# `mptui bench --scaling`: the throughput at numbers of processes
# ---------------------------------------------------------------

_NOT_OF_RUN = frozenset(
    {"batch_size", "rounds", "seconds", "minutes", "only", "against", "table", "scaling", "as_json"}
    | {"markdown", "profile"}
)
_SIZES = range(1, 65)


def show_scaling(
    words: list[str],
    request: "Request",
    options: BenchOptions,
    output: o.MarkdownOutput,
    *,
    deadline: "Deadline",
) -> int:
    """Measure the throughput at each number of processes, of which each has the flags `words`; print it."""
    from mptui.hardware.host import usable_cpus
    from mptui.lab.measure.bench import GroupMeasurer, variants
    from mptui.lab.measure.core import AblationRun, Effort, MeasureError, Measurer, endless
    from mptui.runs.planning.plan import plan_run

    sizes = o.numbers("--scaling", str(options.scaling), _SIZES, "numbers of processes", example="1,2,4")
    plan = plan_run(request)
    batch = plan.config.training.batch_size
    environ = dict(os.environ)
    if plan.device.kind == "cpu":  # as many threads for each process, whatever their number
        environ["OMP_NUM_THREADS"] = str(max(1, usable_cpus() // sizes[-1]))
    with Measurer(environ) as measurer:
        try:
            once = measurer.measure(endless(request, plan), {}, Effort(min(options.seconds, 2.0), loss_at=0))
        except MeasureError as error:
            raise ConfigError(f"one process could not be measured: {error}", hint="try: mptui run") from error
    group = GroupMeasurer(words, environ, batch / once.samples_per_second)
    effort = Effort(options.seconds, loss_at=0)
    lab = AblationRun(variants(sizes, batch), group.measure, effort, deadline=deadline)
    interrupted = lab.measure_rounds(
        options.rounds, lambda row: typer.echo(clean(f"{row.variant.title}: {row.latest}"), err=True)
    )
    document = _scaling_document(plan, lab)
    if output.as_json:
        print_json(document, older={"batch_size_per_process": "batch_size_per_rank"})
    else:
        _print_table(plan, lab, document, markdown=output.markdown)
        more = "on more GPUs than there are: mptui memory --ranks 64"
        print_next(f"mptui run --nproc-per-node {sizes[-1]}   # {more}")
    return 130 if interrupted else 0


def _scaling_document(plan: "Plan", lab: "AblationRun") -> dict[str, Any]:
    return {
        "model": plan.config.model.name,
        "device": plan.device.torch_name,
        "device_name": plan.device.name,
        "batch_size_per_rank": plan.config.training.batch_size,
        "rounds": lab.rounds,
        "processes": [_described(lab, row) for row in lab.rows],
    }


def _described(lab: "AblationRun", row: "Row") -> dict[str, Any]:
    """Return a row; what efficiency lacks to 1 went to waiting for more data, and to the rest."""
    from mptui.lab.measure.bench import PROCESSES, data_wait, efficiency

    share, wait, first_wait = efficiency(lab, row), data_wait(row), data_wait(lab.rows[0])
    to_data = to_others = None
    more_wait = None if wait is None or first_wait is None else wait - first_wait
    if share is not None and more_wait is not None:
        to_data = min(max(0.0, more_wait), max(0.0, 1 - share))
        to_others = max(0.0, 1 - share - to_data)
    return {
        "processes": row.variant.settings[PROCESSES],
        "samples_per_second": row.rate,
        "efficiency": share,
        "lost_to_data": to_data,
        "lost_to_sums_and_waiting": to_others,
        "data_wait_fraction": wait,
        "peak_bytes": row.peak_bytes,
        "rounds": [each.samples_per_second for each in row.rounds],
        "failed": row.failed,
    }


def _print_table(plan: "Plan", lab: "AblationRun", document: dict[str, Any], *, markdown: bool) -> None:
    from mptui.lab.measure.core import rounds_text

    rows = document["processes"]

    def column(heading: str, key: str, form: str) -> TableColumn:
        return TableColumn(heading, [fmt.filled(form, row[key]) for row in rows], right=True)

    columns = [
        column("processes", "processes", "{}"),
        column("images/s", "samples_per_second", "{:,.1f}"),
        column("of ideal", "efficiency", "{:.0%}"),
        column("lost to data", "lost_to_data", "{:.0%}"),
        column("sums and waiting", "lost_to_sums_and_waiting", "{:.0%}"),
    ]
    batch = plan.config.training.batch_size
    title = f"{plan.config.model.name} on {plan.device.name}, {batch} images in each process"
    print_rows(columns, title=f"{title}: {rounds_text(lab.rounds)}", markdown=markdown)
    for row in lab.rows:
        if row.failed is not None:
            typer.echo(clean(f"{row.variant.title}: not measured: {row.failed}"))
