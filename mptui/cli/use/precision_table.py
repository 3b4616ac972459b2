"""`mptui evaluate --precisions`: a trained run in several precisions, as a table or JSON."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from mptui import format as fmt
from mptui.cli.output import file_progress, print_json, print_next
from mptui.cli.table import TableColumn, fitting, lines, terminal_width
from mptui.cli.use.use_options import head, note
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.lab.use.evaluation.precision_comparison import PrecisionComparison, PrecisionResult
    from mptui.lab.use.trained import Trained

FORMAT_VERSION = 1


def show_comparison(
    trained: "Trained", given: Mapping[str, Any], names: Sequence[str], *, compiled: bool, as_json: bool
) -> None:
    """Compare precisions, and print the result."""
    from mptui.lab.use.evaluation.precision_comparison import compare_precisions

    with file_progress() as on_progress:
        found = compare_precisions(
            trained, given, names, compiled=compiled, on_progress=on_progress, note=note
        )
    if as_json:
        print_json(_document(trained, found))
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


def _document(trained: "Trained", found: "PrecisionComparison") -> dict[str, Any]:
    from mptui.codec import finite_json

    document: dict[str, Any] = finite_json(
        {
            **head(trained, FORMAT_VERSION),
            "data": found.data.dataset.name,
            "part": found.data.part,
            "samples": len(found.data.split),
            "batch_size": trained.config.training.batch_size,
            "precisions": [
                {
                    "precision": row.precision,
                    "support": row.support,
                    "loss": row.result.loss if row.result else None,
                    "metrics": row.result.metrics if row.result else None,
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
