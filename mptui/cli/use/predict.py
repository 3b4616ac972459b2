"""`mptui predict`: classes or masks of image files by a trained run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json, print_next
from mptui.cli.use.used_run import MIRROR, UsedRun, exit_code_of, head, note, tell_left_out
from mptui.errors import ConfigError
from mptui.io.written_files import OutputFiles
from mptui.text import clean, clean_name, shell_word

if TYPE_CHECKING:
    from mptui.lab.use.predict import PredictionRun

_TABLE = "predictions.csv"
_CSV, _JSON_LINES = (".csv",), (".jsonl", ".ndjson")


class PredictOptions(UsedRun):
    """A run, and what it is used for."""

    inputs: list[str] = o.argument(
        "INPUT…", "Image files, folders of images, or quoted patterns.", show_default=False
    )
    out: Path | None = o.option(
        None,
        "DIR|FILE",
        "Folder of the masks; of classes, a .csv or .jsonl file or a folder. Default: CSV on stdout.",
    )
    mirror: bool = o.flag(MIRROR)


_OPTIONS = (
    "run inputs out checkpoint mirror force budget strict precision device trust_code batch_size workers"
    " runs_dir"
)


def predict(options: Annotated[PredictOptions, _OPTIONS], output: o.Output) -> int:
    """Predict the classes or masks of images with a trained run.

    Images are resized, cut and normalised as in the run's validation. Masks have the size of their image.
    Files that can't be read are named, with an error in place of a class. The precision is the run's, unless
    given; exported files compute in fp32.
    """
    options.check_checkpoint()
    from mptui.lab.use.predict import find_inputs

    path = options.path()
    files = find_inputs(options.inputs)  # faults of arguments are told before torch is imported
    trained = options.opened(path)
    from mptui.lab.use.predict import PredictionRun
    from mptui.registry.names import SampleKind
    from mptui.registry.tasks import TASKS

    kind = trained.preprocessing.kind
    if kind is SampleKind.IMAGE:
        raise ConfigError(
            f"{trained.run.name} is of a network for {trained.plan.task}: it predicts nothing of an image",
            hint=TASKS[trained.plan.task].use.format(run=shell_word(trained.run)),
        )
    rows: list[dict[str, Any]] | None
    place: Path | None
    written = OutputFiles(force=options.force, inputs=files.paths)
    with file_progress() as on_progress:
        work = PredictionRun(trained, files, options.mirror, on_progress, tell_left_out, note)
        if kind is SampleKind.MASK:
            rows, place = _masks(work, options.out, written)
        else:
            rows, place = _classes(work, options.out, written, as_json=output.as_json)
    if output.as_json:
        print_json(_document(work, rows, place))
    _tell_end(work, place)
    return exit_code_of(work.problems, strict=options.strict)


def _classes(
    work: "PredictionRun", out: Path | None, output: OutputFiles, *, as_json: bool
) -> tuple[list[dict[str, Any]] | None, Path | None]:
    """Write the table; return its rows if they go into the JSON document, and its file."""
    from mptui.lab.use.predict import CsvTable, JsonLines, RowList

    classes, precision = work.trained.classes, work.trained.precision.name
    if out is None and as_json:
        rows = RowList(classes)
        work.classes(rows)
        return rows.rows, None
    if out is None:
        work.classes(CsvTable(sys.stdout, classes, precision))
        return None, None
    path = out if out.suffix in _CSV + _JSON_LINES and not out.is_dir() else out / _TABLE
    output.check(path)
    with output.write(path) as fresh, fresh.open("w", encoding="utf-8", newline="") as stream:
        work.classes((JsonLines if path.suffix in _JSON_LINES else CsvTable)(stream, classes, precision))
    return None, path


def _masks(work: "PredictionRun", out: Path | None, output: OutputFiles) -> tuple[list[dict[str, Any]], Path]:
    """Write the masks; return their rows of the JSON document, and their folder or file."""
    if out is None:
        raise ConfigError(
            f"{work.trained.run.name} predicts masks, which need a folder",
            hint="name it: --out DIR (or of one image, --out FILE.png)",
        )
    single = out.suffix == ".png"
    if single and len(work.files.paths) > 1:
        raise ConfigError(
            f"--out {out}: one file for the masks of {len(work.files.paths):,} images",
            hint="name a folder: --out DIR",
        )
    rows = [
        {
            "file": clean_name(work.files.paths[written.index], 4096),
            "mask": str(written.mask),
            "overlay": None if written.overlay is None else str(written.overlay),
            "shares": written.shares,
        }
        for written in work.masks(out, output, single=single)
    ]
    return rows, out


def _document(work: "PredictionRun", rows: list[dict[str, Any]] | None, place: Path | None) -> dict[str, Any]:
    from mptui.events import finite_json

    trained = work.trained
    document: dict[str, Any] = finite_json(
        {
            **head(trained),
            "classes": list(trained.classes),
            "mirror": work.mirror,
            "views": work.views,
            "out": None if place is None else str(place),
            "files": len(work.files.paths),
            "predicted": work.done,
            "left_out": [{"file": each.path, "reason": each.reason} for each in work.problems],
            "seconds": work.seconds,
            **({} if rows is None else {"predictions": rows}),
        }
    )
    return document


def _tell_end(work: "PredictionRun", place: Path | None) -> None:
    rate = work.done / work.seconds if work.seconds else 0.0
    where = "" if place is None else f" in {place}"
    left_out = f", {len(work.problems):,} left out" if work.problems else ""
    views = f", averaged over {len(work.views)} views ({', '.join(work.views)})" if work.mirror else ""
    typer.echo(
        clean(
            f"{work.done:,} of {len(work.files.paths):,} files{where}{left_out}{views}, "
            f"{work.trained.precision.name}, {rate:,.0f} images/s"
        ),
        err=True,
    )
    print_next(f"measure the run: mptui evaluate {shell_word(work.trained.run)}")
