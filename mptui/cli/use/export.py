"""`mptui export`: a trained network as a file for use elsewhere, checked against the run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json
from mptui.cli.use.used_run import UsedRun, head, note
from mptui.io.written_files import OutputFiles
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.lab.use.export import Exported
    from mptui.lab.use.trained import Trained


class ExportOptions(UsedRun):
    """A run, and the file to write."""

    file_format: str = o.option(
        "safetensors",
        "safetensors|pt2|onnx|diffusers",
        "Format of the file; diffusers: of --model vae.",
        "--format",
    )
    out: Path | None = o.option(None, "DIR", "Output folder; default: RUN-export, in this folder.")
    data: str | None = o.option(None, "NAME|PATH", "Images to compare on; default: the run's own.")
    images: int = o.option(200, "N", "Number of validation images to compare on.", min=1)
    licence: str | None = o.option(None, "SPDX", "Licence of the file, for its model card.", "--license")


_OPTIONS = "run file_format out checkpoint data images licence force trust_code runs_dir"


def export(options: Annotated[ExportOptions, _OPTIONS], output: o.Output) -> int:
    """Write a trained network as a file, with a model card.

    The file is loaded again and compared with the run's network on real images;
    it is kept only if they agree.
    """
    options.check_checkpoint()
    from mptui.lab.use.export import SETTINGS, ExportRequest, check_format, export_run

    check_format(options.file_format)
    began = time.monotonic()
    trained = options.opened(options.path(), SETTINGS)
    request = ExportRequest(
        format=options.file_format,
        folder=options.out or Path(f"{trained.run.name}-export"),
        data=options.given_data(),
        images=options.images,
        licence=options.licence,
        output=OutputFiles(force=options.force),
    )
    with file_progress() as on_progress:
        exported = export_run(trained, request, on_progress=on_progress, note=note)
    document = _document(trained, options.file_format, exported, time.monotonic() - began)
    if output.as_json:
        print_json(document)
    else:
        _print(document)
    return 0


def _document(trained: "Trained", name: str, exported: "Exported", seconds: float) -> dict[str, Any]:
    from mptui.lab.use.export_formats import BATCH_SIZES

    agreement = exported.agreement
    return {
        **head(trained),
        "format": name,
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
