"""`mptui export`: a trained network as a file for use elsewhere, checked against the run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.options import Checkpoint, Force, check_checkpoint, given_data, note, opened
from mptui.cli.output import file_progress, print_json
from mptui.io.written_files import OutputFiles
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.use.export import Exported
    from mptui.lab.use.trained import Trained

FORMAT_VERSION = 1

_Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="safetensors|pt2|onnx|diffusers",
        help="Format of the file; diffusers: of --model vae.",
    ),
]
_Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Output folder; default: RUN-export, in this folder."),
]
_Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME|PATH",
        help="Images to compare on; default: the run's own.",
        show_default=False,
    ),
]
_Images = Annotated[
    int, typer.Option("--images", metavar="N", min=1, help="Number of validation images to compare on.")
]
_Licence = Annotated[
    str | None,
    typer.Option(
        "--license", metavar="SPDX", help="Licence of the file, for its model card.", show_default=False
    ),
]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export)


def export(
    run: o.Run,
    format_: _Format = "safetensors",
    out: _Out = None,
    checkpoint: Checkpoint = None,
    data: _Data = None,
    images: _Images = 200,
    licence: _Licence = None,
    force: Force = False,
    trust_code: o.TrustCode = False,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    as_json: o.Json = False,
) -> int:
    """Write a trained network as a file, with a model card.

    The file is loaded again and compared with the run's network on real images;
    it is kept only if they agree.
    """
    check_checkpoint(checkpoint)
    from mptui.lab.use.export import SETTINGS, ExportRequest, check_format, export_run
    from mptui.runs.store.directory import find_run

    check_format(format_)
    began = time.monotonic()
    trained = opened(find_run(runs_dir, run), checkpoint, dict(SETTINGS), trust_code=trust_code)
    request = ExportRequest(
        format=format_,
        folder=out or Path(f"{trained.run.name}-export"),
        data=given_data(data),
        images=images,
        licence=licence,
        output=OutputFiles(force=force),
    )
    with file_progress() as on_progress:
        exported = export_run(trained, request, on_progress=on_progress, note=note)
    document = _document(trained, format_, exported, time.monotonic() - began)
    if as_json:
        print_json(document)
    else:
        _print(document)
    return 0


def _document(trained: "Trained", name: str, exported: "Exported", seconds: float) -> dict[str, Any]:
    from mptui.lab.use.export_formats import BATCH_SIZES

    agreement = exported.agreement
    return {
        "version": FORMAT_VERSION,
        "run": trained.run.name,
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "format": name,
        "precision": trained.precision.name,
        "file": str(exported.file),
        "bytes": exported.size,
        "card": str(exported.card),
        "images": agreement.images,
        "batch_sizes": list(BATCH_SIZES),
        "largest_difference": agreement.difference,
        "tolerance": agreement.tolerance,
        "other_classes": agreement.other_classes,
        "seconds": round(seconds, 1),
    }


def _print(document: dict[str, Any]) -> None:
    sizes = ", ".join(map(str, document["batch_sizes"]))
    typer.echo(clean(f"{document['file']}: {document['bytes'] / 2**20:,.1f} MiB", 4096))
    typer.echo(
        f"agrees with mptui predict --precision {document['precision']} on {document['images']:,} images, in "
        f"batches of {sizes}: outputs differ by {document['largest_difference']:.3g} at most "
        f"(accepted: {document['tolerance']:.3g})"
    )
    typer.echo(clean(f"model card: {document['card']}", 4096))
