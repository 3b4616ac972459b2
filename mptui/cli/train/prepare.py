"""`mptui prepare`: converts a data set into tar shards of resized images, for slow file systems."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json, print_next
from mptui.cli.train.signals import Signals
from mptui.text import clean, counted, shell_word

if TYPE_CHECKING:
    from mptui.data.prepared import PreparedSet


class PrepareOptions(o.SettingOptions):
    """The data, and what is made of it."""

    data: str = o.argument(
        "DATA",
        "A folder or a torchvision set; of a prepared set, all bytes are verified.",
        show_default=False,
    )
    out: Path | None = o.option(None, "DIR", "Output folder; default: the name of the data, in this folder.")
    image_size: int | None = o.option(
        None,
        "N",
        "Image size of training in pixels; default: 224, with masks 512, for images alone 64.",
        min=8,
        max=4096,
    )
    resize: int | None = o.option(
        None,
        "N",
        "Shorter side to resize images to, as data.resize; default: twice --image-size.",
        min=8,
        max=16_384,
    )
    quality: int = o.option(90, "1-100", "Quality of the JPEGs.", min=1, max=100)
    lossless: bool = o.flag("Write PNGs: several times as large, without loss.")
    ignore_index: int | None = o.option(None, "N", "Mask value to ignore.", min=0, max=65535)
    bad_budget: float = o.option(
        0.01, "SHARE", "Largest fraction of unreadable files to leave out.", min=0, max=1
    )


_OPTIONS = "data out image_size resize quality lossless ignore_index bad_budget model download"


def prepare(options: Annotated[PrepareOptions, _OPTIONS], output: o.Output) -> int:
    """Convert a data set into tar shards as WebDataset's, resized.

    For disks that are slow with many files. Repeated after a stop or a kill, it continues where it stopped.
    """
    signals = Signals()
    from mptui.config.resolve import data_flags
    from mptui.config.schema import DataConfig
    from mptui.data.open import files_of, small_side
    from mptui.data.prepare import ConversionRequest, prepare_set
    from mptui.data.prepared import is_prepared
    from mptui.data.scan import ScanCancelledError
    from mptui.data.transforms import default_resize
    from mptui.registry.models import task_of_model
    from mptui.registry.tasks import TASKS, task_for

    if is_prepared(options.data):
        return _verify(options.data, output.as_json)
    flags = {key.partition(".")[2]: value for key, (_, value) in data_flags(options.data, "DATA").items()}
    config = DataConfig(
        **flags,
        download=options.download,
        ignore_index=options.ignore_index,
        bad_sample_budget=options.bad_budget,
    )
    began = time.monotonic()
    try:
        task = None if options.model is None else task_of_model(options.model)
        asked = None if task is None else TASKS[task].sample
        with file_progress() as on_progress:
            name, kind, found = files_of(config, asked, on_progress, lambda: signals.stop_requested)
        task = task_for(kind)
        side = options.image_size or TASKS[task].side.accelerator
        order = ConversionRequest(
            name=name,
            task=task,
            found=found,
            out=options.out or Path(f"{name}-{side}px"),
            image_size=side,
            resize=options.resize or default_resize(side),
            quality=0 if options.lossless else options.quality,
            data=config,
            small_side=small_side(config),
        )
        with file_progress() as on_progress:
            prepared = prepare_set(order, _print, on_progress, lambda: signals.stop_requested)
    except ScanCancelledError:
        typer.echo("stopped; the same command continues from here", err=True)
        signals.leave_if_stopped()
        raise
    _report(prepared, time.monotonic() - began, output.as_json)
    return 0


def _verify(data: str, as_json: bool) -> int:
    """Verify the checksums of a prepared set."""
    from mptui.data.prepared import check_bytes, open_prepared

    began = time.monotonic()
    prepared = open_prepared(data)
    with file_progress() as on_progress:
        check_bytes(prepared, on_progress)
    _print(f"{data}: prepared set, complete")
    _report(prepared, time.monotonic() - began, as_json)
    return 0


def _report(prepared: "PreparedSet", seconds: float, as_json: bool) -> None:
    document = _document(prepared, seconds)
    if as_json:
        print_json(document, older={"left_out": "left_out_count"})
        return
    typer.echo(
        f"{clean(str(prepared.folder), limit=4096)}: {document['samples']:,} samples for {document['task']},"
        f" {len(prepared.classes)} classes, {_sides(prepared)},"
        f" {document['bytes'] / 2**20:,.0f} MiB in {counted(document['shards'], 'shard')}"
    )
    if document["left_out_count"]:
        typer.echo(f"left out {document['left_out_count']} unusable files", err=True)
    print_next(f"mptui run --data {shell_word(prepared.folder)}")


def _sides(prepared: "PreparedSet") -> str:
    """Return the shorter sides of the stored images, which are not enlarged."""
    low, high = prepared.sides[:, 0].min(), prepared.sides[:, 0].max()
    return f"shorter side {low} px" if low == high else f"shorter sides {low} to {high} px"


def _document(prepared: "PreparedSet", seconds: float) -> dict[str, Any]:
    about = prepared.about
    return {
        "folder": str(prepared.folder),
        "name": about.name,
        "task": about.task,
        "classes": list(prepared.classes),
        "samples": about.count,
        "train_samples": about.train_count,
        "image_size": about.image_size,
        "side": about.side,
        "shards": len(about.tars),
        "bytes": sum(tar.bytes for tar in about.tars),
        "left_out_count": len(prepared.problems),
        "seconds": round(seconds, 1),
    }


def _print(line: str) -> None:
    typer.echo(clean(line, limit=4096), err=True)
