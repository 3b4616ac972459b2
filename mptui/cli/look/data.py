"""`mptui data`: what a set is understood to be, before a run trains on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json, print_next
from mptui.text import clean, clean_name, shell_word

if TYPE_CHECKING:
    from mptui.data.describe import DataFinding
    from mptui.data.types import Dataset

_MOST_CLASSES = 100
_MOST_FILES = 5


class DataOptions(o.SettingOptions):
    """The data, and what is written of it."""

    data: str = o.argument(
        "DATA", "A folder, a list of images, a set's name, or your MODULE:CLASS.", show_default=False
    )
    out: Path | None = o.option(None, "LIST.csv", "Also write it as a list of images and labels.")
    picture: Path | None = o.option(None, "FILE.png", "Also draw samples, with masks over their images.")
    force: bool = o.flag("Replace the files of --out and --picture.")


_OPTIONS = "data profile model sets seed out picture force download trust_code"


def data(options: Annotated[DataOptions, _OPTIONS], output: o.Output) -> int:
    """Show what a data set is understood to be.

    Its format, split, classes, masks, and what is left out and why: the same reading as that of
    `mptui run --data DATA` with the same settings.
    """
    from mptui.data.describe import data_findings, document
    from mptui.lab.doctor.data import read_data, write_new

    out, picture = options.out, options.picture
    for file in (out, picture):
        if file is not None:
            _check_new(file, force=options.force)
    with file_progress("checking files", lambda done, total: None) as on_progress:
        dataset, settings = read_data(options.request(), on_progress)
    findings = data_findings(dataset, settings.sampler)
    if output.as_json:
        print_json(document(options.data, dataset, findings))
    else:
        _show(dataset, findings)
    if out is not None:
        from mptui.data.describe import list_text

        write_new(out, list_text(dataset, out).encode())
    if picture is not None:
        from mptui.data.describe import sample_sheet
        from mptui.data.pictures import png_bytes

        write_new(picture, bytes(png_bytes(sample_sheet(dataset))))
    written = options.data if out is None else str(out)
    print_next(f"mptui run --data {shell_word(written)}")
    return 0


def _check_new(path: Path, *, force: bool) -> None:
    from mptui.errors import ConfigError

    if path.exists() and not force:
        raise ConfigError(
            f"{clean_name(str(path))} exists", hint="choose another name, or replace it: --force"
        )
    if path.is_dir():
        raise ConfigError(f"{clean_name(str(path))} is a folder", hint="name a file")


def _show(dataset: "Dataset", findings: "list[DataFinding]") -> None:
    from mptui.data.describe import image_facts

    reading = dataset.reading
    counts = f"{len(dataset.train):,} training and {len(dataset.val):,} validation images"
    if reading is not None and reading.test:
        counts += f"; {len(reading.test):,} of a test half are not read"
    _print_fact("data", dataset.name)
    _print_fact("format", reading.layout if reading is not None else _without_files(dataset))
    _print_fact("split", counts if reading is None else f"{reading.split}: {counts}")
    _show_classes(dataset)
    for number, fact in enumerate(image_facts(dataset)):
        _print_fact("" if number else "images", fact)
    for number, code in enumerate(() if reading is None else reading.mask_code[:_MOST_CLASSES]):
        _print_fact("" if number else "masks", code)
    left_out = () if reading is None else reading.left_out
    for each in left_out:
        names = ", ".join(clean_name(name) for name in each.files[:_MOST_FILES])
        more = ", …" if each.count > _MOST_FILES else ""
        _print_fact("left out", f"{each.count:,}: {each.reason}: {names}{more}")
    if not left_out:
        _print_fact("left out", "nothing")
    for warning in dataset.warnings:
        _print_fact("note", warning)
    for finding in findings:
        _print_fact("note", f"{finding.what}: {finding.do}")


def _without_files(dataset: "Dataset") -> str:
    from mptui.registry.own_code import is_own

    return "your own code" if is_own(dataset.name) else "built in"


def _show_classes(dataset: "Dataset") -> None:
    from mptui.registry.names import SampleKind

    if dataset.kind is SampleKind.IMAGE:
        _print_fact("classes", "none: images alone")
        return
    unit = "pixels" if dataset.kind is SampleKind.MASK else "images"
    _print_fact("classes", f"{len(dataset.classes):,}, {unit} in training and in validation")
    val_counts = () if dataset.reading is None else dataset.reading.val_counts
    counts = list(dataset.class_counts)
    shown = [clean(name, 40) for name in dataset.classes[:_MOST_CLASSES]]
    width = max(map(len, shown), default=0)
    for number, name in enumerate(shown):
        train = f"{counts[number]:>12,}" if number < len(counts) else ""
        val = f"{val_counts[number]:>12,}" if number < len(val_counts) else ""
        _print_fact("", f"  {name:{width}}{train}{val}")
    if (more := len(dataset.classes) - _MOST_CLASSES) > 0:
        _print_fact("", f"  and {more:,} more (--json has all)")


def _print_fact(what: str, text: str) -> None:
    typer.echo(f"{what:<9}  {clean(text, 500)}")
