"""Evaluate."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui import text as fmt
from mptui.cli import options as o
from mptui.cli.output import (
    TableColumn,
    file_progress,
    fitting,
    lines,
    print_json,
    print_next,
    terminal_width,
)
from mptui.cli.use.used_run import MIRROR, UsedRun, exit_code_of, head, note, tell_left_out
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.lab.use.evaluate import Evaluation, ListedSample, Mirrored
    from mptui.lab.use.precisions import PrecisionComparison, PrecisionResult
    from mptui.lab.use.trained import Trained


# `mptui evaluate`: all metrics of a trained run on a set, its worst samples and its surest mistakes
# --------------------------------------------------------------------------------------------------

_MOST_CLASSES_SHOWN = 50


class EvaluateOptions(UsedRun):
    """A run, and what is measured."""

    data: str | None = o.option(
        None,
        "NAME|PATH",
        "Data to measure on: its validation half, or all of it if it has none; default: the run's own.",
    )
    worst: int = o.option(10, "N", "Number of samples to list by name.", min=0)
    precisions: str | None = o.option(
        None,
        "LIST|all",
        "Compare precisions for inference: fp32, fp16, bf16, int8 (needs torchao), separated by commas.",
    )
    mirror: bool = o.flag(MIRROR)
    compiled: bool = o.flag(
        "With --precisions: measure the speed of compiled code (takes minutes).", "--compile"
    )


_OPTIONS = (
    "run data checkpoint worst mirror budget strict precision download device trust_code batch_size workers"
    " runs_dir precisions compiled"
)


def evaluate(options: Annotated[EvaluateOptions, _OPTIONS], output: o.Output) -> int:
    """Measure a trained run, and name its worst samples.

    On the run's own validation data, the figures are those of the run.
    The run may be training; nothing of it is changed.
    """
    options.check_checkpoint()
    if options.precisions is not None:
        if options.mirror:
            raise typer.BadParameter("--precisions measures each image as it is: leave --mirror out")
        from mptui.lab.use.precisions import precision_names

        names = precision_names(options.precisions)
    trained = options.opened(options.path())
    from mptui.lab.use.evaluate import evaluate_run
    from mptui.registry.tasks import TASKS

    given = options.given_data() | ({"download": True} if options.download else {})
    if options.precisions is not None:
        show_comparison(trained, given, names, compiled=options.compiled, as_json=output.as_json)
        return 0
    with file_progress() as on_progress:
        found = evaluate_run(
            trained,
            given,
            listed=options.worst,
            on_progress=on_progress,
            note=note,
            mirror=options.mirror,
        )
    for problem in found.problems:
        tell_left_out(problem)
    if output.as_json:
        print_json(_document(trained, found), older={"loss": "val_loss"})
    else:
        _print(trained, found)
        print_next(TASKS[trained.plan.task].use.format(run=shell_word(trained.run)))
    return exit_code_of(found.problems, strict=options.strict)


def _document(trained: "Trained", found: "Evaluation") -> dict[str, Any]:
    from mptui.events import finite_json

    result, confusion = found.result, found.confusion
    document: dict[str, Any] = finite_json(
        {
            **head(trained),
            "data": found.data.dataset.name,
            "part": found.data.part,
            "samples": len(found.data.split),
            "classes": list(trained.classes),
            "batch_size": found.limit or trained.config.training.batch_size,
            "val_loss": result.loss,
            "metrics": result.metrics,
            "per_class": result.per_class,
            "confusion": None if confusion is None else confusion.tolist(),
            "recorded": found.recorded,
            **_mirrored(found),
            "worst": [_entry(sample) for sample in found.worst],
            "confused": [_entry(sample) for sample in found.confused],
            "left_out": [{"file": problem.path, "reason": problem.reason} for problem in found.problems],
            "seconds": result.seconds,
        }
    )
    return document


def _mirrored(found: "Evaluation") -> dict[str, Any]:
    from mptui.lab.use.mirrored import AS_IT_IS

    mirrored = found.mirrored
    if mirrored is None:
        return {"views": [AS_IT_IS.name]}
    return {
        "views": mirrored.views,
        "images_per_second": mirrored.images_per_second,
        "without_mirror": {
            "val_loss": mirrored.alone.loss,
            "metrics": mirrored.alone.metrics,
            "images_per_second": mirrored.images_per_second_alone,
        },
    }


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

    if (mirrored := found.mirrored) is not None:
        _print_mirrored(found, mirrored)
        return
    for name, value in {VAL_LOSS: found.result.loss, **found.result.metrics}.items():
        typer.echo(f"  {clean(name, 24):<18} {_figure(value)}{_compared(value, found.recorded, name)}")


def _print_mirrored(found: "Evaluation", mirrored: "Mirrored") -> None:
    """Print the figures averaged over views beside those of the images as they are."""
    from mptui.registry.tasks import VAL_LOSS

    typer.echo(f"averaged over {len(mirrored.views)} views: {', '.join(mirrored.views)}")
    averaged = {VAL_LOSS: found.result.loss, **found.result.metrics}
    alone = {VAL_LOSS: mirrored.alone.loss, **mirrored.alone.metrics}
    speeds = (mirrored.images_per_second, mirrored.images_per_second_alone)
    cells = [
        [*(_figure(values[name]) for name in averaged), fmt.figure(speed)]
        for values, speed in zip((averaged, alone), speeds, strict=True)
    ]
    names = [*(clean(name, 24) for name in averaged), "images/s"]
    columns = [TableColumn("", names), TableColumn("averaged", cells[0], right=True)]
    columns.append(TableColumn("as it is", cells[1], right=True))
    for line in lines(fitting(columns, terminal_width())):
        typer.echo(f"  {line}")


def _compared(value: float, recorded: dict[str, float] | None, name: str) -> str:
    if recorded is None or name not in recorded:
        return ""
    before = recorded[name]
    are_nan = math.isnan(value) and math.isnan(before)
    if are_nan or value == before:
        return "   as the run measured"
    return f"   the run measured {before:.6f}"


def _print_classes(found: "Evaluation") -> None:
    from mptui.cli.output import TableColumn, print_rows

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
    print_rows(columns)
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


# `mptui evaluate --precisions`: a trained run in several precisions, as a table or JSON
# --------------------------------------------------------------------------------------


def show_comparison(
    trained: "Trained", given: Mapping[str, Any], names: Sequence[str], *, compiled: bool, as_json: bool
) -> None:
    """Compare precisions, and print the result."""
    from mptui.lab.use.precisions import compare_precisions

    with file_progress() as on_progress:
        found = compare_precisions(
            trained, given, names, compiled=compiled, on_progress=on_progress, note=note
        )
    if as_json:
        print_json(_precisions_document(trained, found))
        return
    data = found.data
    typer.echo(
        clean(
            f"{trained.run.name}, {trained.checkpoint} checkpoint (step {trained.step:,}), on "
            f"{data.dataset.name}: {data.part}, {len(data.split):,} samples, {trained.plan.device.torch_name}"
        )
    )
    for line in lines(fitting(_columns(found.rows), terminal_width())):
        typer.echo(f"  {line}")
    for row in found.rows:
        if row.note:
            typer.echo(f"  {row.precision}: {row.note}")
    print_next(f"weights for use elsewhere: mptui export {shell_word(trained.run)}")


def _columns(rows: "list[PrecisionResult]") -> list[TableColumn]:
    measured = [row.result for row in rows if row.result is not None]
    metrics = list(measured[0].metrics) if measured else []
    columns = [TableColumn("precision", [row.precision for row in rows])]
    for place, name in enumerate(metrics):
        cells = ["–" if row.result is None else f"{row.result.metrics[name]:.4f}" for row in rows]
        columns.append(TableColumn(clean(name, 24), cells, right=True, leave=5 + place if place else 0))
    losses = ["–" if row.result is None else f"{row.result.loss:.5f}" for row in rows]
    speeds = [fmt.figure(row.images_per_second) for row in rows]
    columns += [
        TableColumn("val_loss", losses, right=True, leave=2),
        TableColumn("images/s", speeds, right=True),
        TableColumn("weights", [_megabytes(row.weight_bytes) for row in rows], right=True, leave=1),
    ]
    if any(row.peak_bytes for row in rows):
        columns.append(TableColumn("peak memory", [_megabytes(row.peak_bytes) for row in rows], right=True))
    columns.append(TableColumn("here", [row.support or "–" for row in rows], leave=3))
    return columns


def _megabytes(value: int | None) -> str:
    return f"{value / (1 << 20):,.1f} MiB" if value else "–"


def _precisions_document(trained: "Trained", found: "PrecisionComparison") -> dict[str, Any]:
    from mptui.events import finite_json

    document: dict[str, Any] = finite_json(
        {
            **head(trained),
            "data": found.data.dataset.name,
            "part": found.data.part,
            "samples": len(found.data.split),
            "batch_size": trained.config.training.batch_size,
            "precisions": [
                {
                    "precision": row.precision,
                    "support": row.support,
                    "val_loss": row.result.loss if row.result else None,
                    "loss": row.result.loss if row.result else None,
                    "metrics": row.result.metrics if row.result else None,
                    "samples_per_second": row.images_per_second,
                    "images_per_second": row.images_per_second,
                    "weight_bytes": row.weight_bytes or None,
                    "peak_bytes": row.peak_bytes,
                    "note": row.note,
                }
                for row in found.rows
            ],
        }
    )
    return document
