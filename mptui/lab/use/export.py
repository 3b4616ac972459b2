"""Exports a trained network: writes the file, loads it again, and keeps it only if it computes the same."""

import errno
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mptui.errors import ConfigError, DataError, DiskError, MptuiError
from mptui.io.files import sync_folder
from mptui.io.written_files import OutputFiles, disk_hint
from mptui.lab.use.evaluate import Course, course_of, open_samples
from mptui.lab.use.export_formats import (
    EXPORT_FORMATS,
    LOADED,
    Agreement,
    ExportFormat,
    Inputs,
    Network,
    as_text,
    compare,
    facts_of,
    has_classes,
    real_inputs,
)
from mptui.lab.use.model_card import CARD, CURVES, card, curves
from mptui.lab.use.predict import outputs_of
from mptui.lab.use.trained import Trained, new_network
from mptui.models.vae import Autoencoder
from mptui.text import clean

OnProgress = Callable[[int, int], None]
Note = Callable[[str], None]

SETTINGS: dict[str, tuple[str, Any]] = {
    "hardware.device": ("mptui export", "cpu"),
    "training.batch_size": ("mptui export", LOADED),
    "precision.mode": ("mptui export", "fp32"),
    "precision.fp32_layers": ("mptui export", []),
    "speed.channels_last": ("mptui export", False),
}
"""Settings that a run is opened with for an export: the file computes in float32, on any device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """What to export.

    Attributes:
        format: A key of `EXPORT_FORMATS`.
        folder: Folder of the file and its model card; created if missing.
        data: Values of [data] that a person gave for the images to compare on; empty: the run's own data.
        images: Images to compare on, at most.
        licence: SPDX identifier of the file's licence; None: not stated.
        output: Writes the files.
    """

    format: str
    folder: Path
    data: Mapping[str, Any]
    images: int
    licence: str | None
    output: OutputFiles = field(default_factory=OutputFiles)


@dataclass(frozen=True, slots=True)
class Exported:
    """A written file, its size in bytes, its model card, and how it agrees with the run's network."""

    file: Path
    size: int
    card: Path
    agreement: Agreement


def check_format(name: str) -> ExportFormat:
    """Return a format that can be written here.

    Raises:
        ConfigError: There is no such format, or a module of it is not installed.
    """
    if name not in EXPORT_FORMATS:
        raise ConfigError(f"--format {clean(name, 100)}: no such format", hint=f"use {_either()}")
    spec = EXPORT_FORMATS[name]
    missing = [module for module in spec.modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"--format {name}: {' and '.join(missing)} not installed",
            hint=f"install with: pip install 'mptui[{spec.extra}]'",
        )
    return spec


def _either() -> str:
    *first, last = EXPORT_FORMATS
    return f"{', '.join(first)} or {last}"


def export_run(trained: Trained, request: ExportRequest, *, on_progress: OnProgress, note: Note) -> Exported:
    """Export a run that was opened with `SETTINGS`.

    The file is written beside its place, loaded by the runtime of its format, and compared with the run's
    network on real images. It takes its place only if they agree.

    Raises:
        ConfigError: The format can't be written here, or a file of another origin would be replaced.
        DataError: The images are missing or unreadable.
        DiskError: The disk is full or not writable.
        MptuiError: The network can't be exported in this format, or the file computes other outputs.
    """
    spec = check_format(request.format)
    if spec.model not in {"", trained.config.model.name}:
        raise ConfigError(
            f"--format {request.format} is for --model {spec.model}, not for {trained.config.model.name}",
            hint="use --format safetensors",
        )
    name = spec.file or trained.run.name + spec.suffix
    for planned in (name, CARD, CURVES):
        request.output.check(request.folder / planned)
    for region in trained.fp32_regions:
        region.remove()
    model = trained.model.to(memory_format=torch.contiguous_format)
    course = course_of(trained)
    data = open_samples(trained, request.data, on_progress=on_progress, note=note)
    facts = facts_of(trained, course, request.licence)
    if not len(data.split):
        raise DataError(f"{data.dataset.name}: no images to compare on", hint="use --data with images")
    try:
        request.folder.mkdir(parents=True, exist_ok=True)
        with (
            closing(real_inputs(trained, data, lambda problem: None)) as batches,
            tempfile.TemporaryDirectory(dir=request.folder, prefix=".", suffix=".partial") as partial,
        ):
            first = next(batches)
            if isinstance(model, Autoencoder):
                side = trained.config.data.image_size
                facts["latents"] = {"scaling_factor": model.scaling_factor(first[0]), "sample_size": side}
            file = Path(partial, name)
            _write(spec, model, tuple(tensor[:2] for tensor in first), as_text(facts), file=file)
            network = _load(spec, trained, file, as_text(facts))
            agreement = compare(
                lambda *inputs: outputs_of(trained, *inputs),
                network,
                chain([first], batches),
                images=max(LOADED, min(request.images, len(data.split))),
                has_classes=has_classes(trained.preprocessing.kind),
                on_progress=on_progress,
            )
            if not agreement.close:
                raise _other_outputs(request.format, agreement)
            _describe(Path(partial), name, spec, facts, course=course, agreement=agreement)
            _put_in_place(Path(partial), request)
    except OSError as error:
        raise DiskError(
            f"{request.folder}: cannot write: {(error.strerror or str(error)).lower()}",
            hint=disk_hint(error, request.folder, "choose another folder with --out"),
        ) from error
    file = request.folder / name
    return Exported(file, file.stat().st_size, request.folder / CARD, agreement)


def _write(spec: ExportFormat, model: nn.Module, example: Inputs, facts: str, *, file: Path) -> None:
    try:
        spec.write(model, example, facts, file)
    except OSError:
        raise
    except Exception as error:  # exporters raise nearly anything for what they don't support
        if (cause := _of_disk(error)) is not None:
            raise cause from error
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise MptuiError(
            f"this network can't be exported as {spec.suffix[1:]}: {clean(first_line, 300)}",
            hint="use another --format; --debug shows the exporter's error"
            if spec is EXPORT_FORMATS["safetensors"]
            else "use --format safetensors, which holds any network; --debug shows the exporter's error",
        ) from error


def _of_disk(error: Exception) -> OSError | None:
    """Return the error of the disk that an exporter tells in an error of its own."""
    told = re.search(r"os error (\d+)", str(error))  # Rust's words
    if told is not None:
        return OSError(int(told[1]), os.strerror(int(told[1])))
    torchs = re.search("PytorchStreamWriter failed writing|unexpected pos", str(error))
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) if torchs else None


def _load(spec: ExportFormat, trained: Trained, file: Path, facts: str) -> Network:
    network, found = spec.load(file, lambda: new_network(trained.plan, len(trained.classes)))
    if found != facts:
        raise MptuiError(
            f"{file.name}: the facts in the file are not those that were written",
            hint="the file was removed. Report this, with the versions of torch and of the runtime",
        )
    return network


def _other_outputs(name: str, found: Agreement) -> MptuiError:
    classes = f", and gives {found.other_classes:,} another class" if found.other_classes else ""
    return MptuiError(
        f"the {name} file computes other outputs than the run: they differ by up to {found.difference:.3g}"
        f" (accepted: {found.tolerance:.3g}) on {found.images:,} images{classes}",
        hint="the file was removed. Use another --format, and report this with the versions of torch",
    )


def _describe(
    folder: Path,
    name: str,
    spec: ExportFormat,
    facts: dict[str, Any],
    *,
    course: Course,
    agreement: Agreement,
) -> None:
    """Write the model card and its curves."""
    drawn = curves(course)
    if drawn is not None:
        (folder / CURVES).write_text(drawn, encoding="utf-8")
    text = card(facts, course, agreement, file=name, usage=spec.usage, has_curves=drawn is not None)
    (folder / CARD).write_text(text, encoding="utf-8")


def _put_in_place(partial: Path, request: ExportRequest) -> None:
    """Move each file to its place by one rename; a large ONNX file has its weights beside it."""
    files = sorted(partial.iterdir())
    for path in files:
        request.output.check(request.folder / path.name)
    for path in files:
        path.chmod(0o644)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        request.output.put(path, request.folder / path.name)
    sync_folder(request.folder)
