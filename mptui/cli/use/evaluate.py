"""`mptui evaluate`: all metrics of a trained run on a set, its worst samples and its surest mistakes."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json, print_next
from mptui.cli.use.use_options import (
    Budget,
    Checkpoint,
    Strict,
    check_checkpoint,
    exit_code_of,
    given_data,
    head,
    note,
    opened,
    settings_of,
    tell_left_out,
)
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.lab.use.evaluation.evaluation import Evaluation, ListedSample
    from mptui.lab.use.trained import Trained

FORMAT_VERSION = 1
_MOST_CLASSES_SHOWN = 50

_Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME|PATH",
        help="Data to measure on: its validation half, or all of it if it has none; default: the run's own.",
        show_default=False,
    ),
]
_Worst = Annotated[
    int,
    typer.Option("--worst", metavar="N", min=0, help="Number of samples to list by name.", show_default=True),
]
_Precisions = Annotated[
    str | None,
    typer.Option(
        "--precisions",
        metavar="LIST|all",
        help="Compare precisions for inference: fp32, fp16, bf16, int8 (needs torchao), separated by commas.",
        show_default=False,
    ),
]
_Compiled = Annotated[
    bool,
    typer.Option("--compile", help="With --precisions: measure the speed of compiled code (takes minutes)."),
]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evaluate")(evaluate)


def evaluate(
    ctx: typer.Context,
    run: o.Run,
    data: _Data = None,
    checkpoint: Checkpoint = None,
    worst: _Worst = 10,
    budget: Budget = None,
    strict: Strict = False,
    precision: o.Precision = None,
    download: o.Download = False,
    device: o.Device = None,
    trust_code: o.TrustCode = False,
    batch_size: o.BatchSize = None,
    workers: o.Workers = None,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    precisions: _Precisions = None,
    compiled: _Compiled = False,
    as_json: o.Json = False,
) -> int:
    """Measure a trained run, and name its worst samples.

    On the run's own validation data, the figures are those of the run.
    The run may be training; nothing of it is changed.
    """
    check_checkpoint(checkpoint)
    from mptui.runs.store.directory import find_run

    if precisions is not None:
        from mptui.lab.use.evaluation.precision_comparison import precision_names

        names = precision_names(precisions)
    trained = opened(find_run(runs_dir, run), checkpoint, settings_of(ctx.params), trust_code=trust_code)
    from mptui.lab.use.evaluation.evaluation import evaluate_run
    from mptui.registry.tasks import TASKS

    given = given_data(data) | ({"download": True} if download else {})
    if precisions is not None:
        from mptui.cli.use.precision_table import show_comparison

        show_comparison(trained, given, names, compiled=compiled, as_json=as_json)
        return 0
    with file_progress() as on_progress:
        found = evaluate_run(trained, given, listed=worst, on_progress=on_progress, note=note)
    for problem in found.problems:
        tell_left_out(problem)
    if as_json:
        print_json(_document(trained, found))
    else:
        _print(trained, found)
        print_next(TASKS[trained.plan.task].use.format(run=shell_word(trained.run)))
    return exit_code_of(found.problems, strict=strict)


def _document(trained: "Trained", found: "Evaluation") -> dict[str, Any]:
    from mptui.codec import finite_json

    result, confusion = found.result, found.confusion
    document: dict[str, Any] = finite_json(
        {
            **head(trained, FORMAT_VERSION),
            "data": found.data.dataset.name,
            "part": found.data.part,
            "samples": len(found.data.split),
            "classes": list(trained.classes),
            "batch_size": found.limit or trained.config.training.batch_size,
            "loss": result.loss,
            "metrics": result.metrics,
            "per_class": result.per_class,
            "confusion": None if confusion is None else confusion.tolist(),
            "recorded": found.recorded,
            "worst": [_entry(sample) for sample in found.worst],
            "confused": [_entry(sample) for sample in found.confused],
            "left_out": [{"file": problem.path, "reason": problem.reason} for problem in found.problems],
            "seconds": result.seconds,
        }
    )
    return document


def _entry(sample: "ListedSample") -> dict[str, Any]:
    return {
        "file": clean(sample.name, 4096),
        "loss": sample.loss,
        "class": sample.truth,
        "predicted": sample.predicted,
        "confidence": sample.confidence,
    }


def _print(trained: "Trained", found: "Evaluation") -> None:
    data = found.data
    typer.echo(
        clean(
            f"{trained.run.name}, {trained.checkpoint} checkpoint (step {trained.step:,}), on "
            f"{data.dataset.name}: {data.part}, {len(data.split):,} samples, {trained.precision.name}"
        )
    )
    _print_metrics(found)
    _print_classes(found)
    _print_samples("highest loss", found.worst)
    _print_samples("wrong with the highest confidence", found.confused)


def _print_metrics(found: "Evaluation") -> None:
    from mptui.registry.tasks import VAL_LOSS

    for name, value in {VAL_LOSS: found.result.loss, **found.result.metrics}.items():
        typer.echo(f"  {clean(name, 24):<18} {_figure(value)}{_compared(value, found.recorded, name)}")


def _compared(value: float, recorded: dict[str, float] | None, name: str) -> str:
    if recorded is None or name not in recorded:
        return ""
    before = recorded[name]
    if value == before or (math.isnan(value) and math.isnan(before)):
        return "   as the run measured"
    return f"   the run measured {before:.6f}"


def _print_classes(found: "Evaluation") -> None:
    from mptui.cli.table import TableColumn, fitting, lines, terminal_width

    per_class = found.result.per_class
    names = list(next(iter(per_class.values()), {}))
    if not names:
        return
    shown = names[:_MOST_CLASSES_SHOWN]
    columns = [TableColumn("class", [clean(name, 40) for name in shown])]
    columns += [
        TableColumn(clean(metric, 24), [_figure(values[name]) for name in shown], right=True, leave=place)
        for place, (metric, values) in enumerate(per_class.items(), 1)
    ]
    typer.echo("")
    for line in lines(fitting(columns, terminal_width())):
        typer.echo(line)
    if len(names) > len(shown):
        typer.echo(f"… {len(names) - len(shown):,} more classes: --json has all")


def _print_samples(title: str, samples: "list[ListedSample]") -> None:
    if not samples:
        return
    typer.echo(f"\n{title}")
    for sample in samples:
        words = ""
        if sample.truth is not None and sample.confidence is not None:
            words = f"  {sample.truth} → {sample.predicted} {sample.confidence:.3f}"
        typer.echo(clean(f"  {sample.loss:8.4f}{words}  {sample.name}", 4096))


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.6f}"
