"""What a data set has, and some of its pictures, for the picker: listed, not scanned, in a child process.

Decoders are C code, which a hostile file may crash; and to list millions of files takes the interpreter
for itself. The built-in shapes have no files, and are drawn here.
"""

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mptui.config.resolve import Resolved
from mptui.config.schema import DataConfig
from mptui.errors import ConfigError, MptuiError
from mptui.hardware.devices import Device
from mptui.processes.start import start
from mptui.registry.names import BUILT_IN, SampleKind
from mptui.registry.own_code import is_own
from mptui.registry.tasks import DEFAULT_TASK
from mptui.runs.planning.plan import filled

if TYPE_CHECKING:
    from PIL.Image import Image

    from mptui.data.types import Dataset


PICTURES = 12
"""Pictures of a preview, from the whole training set in its order, and so from many classes."""

_SIDE = 64
"""Larger side in pixels that pictures are reduced to."""

_LOOK_AROUND_S = 0.2
_LONGEST = 32_768
"""Characters of a request that a pipe takes at once: a later `communicate` sends nothing of what is left."""
_KEYS = {"name", "path", "samples", "image_size", "val_fraction", "ignore_index", "sampler", "class_folders"}


@dataclass(frozen=True, slots=True)
class DataPreview:
    """A data set before its scan, which may leave out damaged files.

    Attributes:
        train: Number of training samples.
        val: Number of validation samples.
        classes: Number of classes; 0: none, or not known yet.
        sides: Smallest and largest shorter side of its images in pixels.
        pictures: Some training images, RGB, with masks over them.
        findings: What a person should know of it, with the remedy.
        lines: What it was understood to be, in four lines, before its masks are read.
    """

    train: int
    val: int
    classes: int
    sides: "tuple[int, int] | None"
    pictures: "tuple[Image, ...]"
    findings: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Describe it: `1,000 train · 200 val · 10 classes · 28 px`."""
        parts = [f"{self.train:,} train", f"{self.val:,} val"]
        if self.classes:
            parts.append(f"{self.classes:,} classes")
        if self.sides is not None:
            low, high = self.sides
            parts.append(f"{low} px" if low == high else f"{low} to {high} px")
        return " · ".join(parts)


def asked_of(resolution: Resolved) -> dict[str, Any]:
    """Return the settings that a preview depends on, ready for JSON."""
    config = resolution.config
    return {
        "data": config.data.model_dump(include=_KEYS),
        "kind": config.model.reads(resolution.task or DEFAULT_TASK).name,
        "seed": config.split_seed,
    }


def preview(resolution: Resolved, device: Device, should_stop: Callable[[], bool]) -> DataPreview | None:
    """List the data of a run, and read some of its pictures.

    Args:
        resolution: The run.
        device: Its device, which decides about the built-in shapes.
        should_stop: Called several times per second.

    Returns:
        None if the data is missing or damaged, or is the person's own code, which only a run executes; or
        after `should_stop`.
    """
    data = resolution.config.data
    if is_own(data.name):
        return None
    if data.path is None and data.name in {None, BUILT_IN}:
        try:
            return preview_here(filled(resolution, device)[0])
        except MptuiError:
            return None
    asked = json.dumps(asked_of(resolution))
    if len(asked) > _LONGEST:  # nothing has such a name
        return None
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}  # an argument can't be longer than 128 KiB
    with start(f"{__name__}:main", text=True, **pipes) as child:
        try:
            while not should_stop():
                try:
                    answer, _ = child.communicate(asked, timeout=_LOOK_AROUND_S)
                except subprocess.TimeoutExpired:
                    asked = ""  # of the first call; it goes on with that
                    continue
                return _from_json(json.loads(answer)) if child.returncode == 0 else None
        finally:
            child.kill()
    return None


def preview_here(resolution: Resolved) -> DataPreview:
    """Return the preview of data whose decoding needs no process of its own.

    Raises:
        ConfigError, DataError: The data is missing or damaged.
    """
    return _from_json(_looked_at(asked_of(resolution)))


def main() -> int:
    """Write the preview of the data that stdin names to stdout, as JSON; return 1 if there is none."""
    try:
        found = _looked_at(json.load(sys.stdin))
    except MptuiError:
        return 1
    sys.stdout.write(json.dumps(found))
    return 0


def _looked_at(asked: dict[str, Any]) -> dict[str, Any]:
    from mptui.data.describe import data_findings, header_sides, reading_lines

    data = DataConfig.model_validate(asked["data"])
    dataset = _listed(data, SampleKind[asked["kind"]], asked["seed"])
    pictures = [
        [*picture.size, base64.b64encode(picture.tobytes()).decode()] for picture in _pictures(dataset)
    ]
    has_classes = dataset.kind is SampleKind.CLASS or bool(dataset.sides)
    sides = header_sides(dataset.train, dataset.val) or dataset.sides
    dataset = replace(dataset, sides=sides)
    return {
        "counts": [len(dataset.train), len(dataset.val), len(dataset.classes) if has_classes else 0],
        "sides": sides,
        "pictures": pictures,
        "lines": reading_lines(dataset),
        "findings": [f"{each.what}: {each.do}" for each in data_findings(dataset, data.sampler)],
    }


def _listed(data: DataConfig, kind: SampleKind, seed: int) -> "Dataset":
    """Return the set as it is listed, without a scan.

    Raises:
        ConfigError, DataError: As `open_dataset`.
    """
    import numpy as np

    from mptui.data.assemble import split_train_val
    from mptui.data.describe import listed_dataset
    from mptui.data.kept_reading import build_reading
    from mptui.data.open import files_of, kind_of, open_dataset

    known = kind_of(data) or kind
    try:
        name, known, found = files_of(data, known, _ignore, _never)
    except ConfigError:  # it has no files of its own, and so no scan
        return open_dataset(
            data,
            kind=known,
            side=data.image_size or _SIDE,
            seed=seed,
            on_progress=_ignore,
            should_stop=_never,
            on_warning=_ignore,
        )
    count = len(found.images)
    labels = np.zeros(count, np.int64) if found.labels is None else found.labels
    rows = split_train_val(
        name, labels, np.arange(count), found.train_rows, fraction=data.val_fraction, seed=seed
    )
    dataset = listed_dataset(name, known, found, rows, shown=PICTURES, ignore_index=data.ignore_index)
    counts: tuple[Sequence[int], Sequence[int]] = dataset.class_counts, ()
    reading = build_reading(found, dataset.classes, counts, found.unpaired, val_fraction=data.val_fraction)
    return replace(dataset, reading=reading)


def _pictures(dataset: "Dataset") -> "list[Image]":
    """Read pictures, with masks over them; those that can't be read are left out."""
    import numpy as np

    from mptui.data.describe import masked
    from mptui.data.pictures import bright
    from mptui.data.types import BadSampleError

    train = dataset.train
    colours, pictures = bright(dataset.classes or ("background",)), []
    for row in np.unique(np.linspace(0, len(train) - 1, PICTURES).round().astype(int)):
        try:
            pictures.append(masked(train.request(int(row)).read(), colours, _SIDE))
        except BadSampleError:
            continue
    return pictures


def _from_json(found: dict[str, Any]) -> DataPreview:
    from PIL import Image

    pictures = tuple(
        Image.frombytes("RGB", (width, height), base64.b64decode(pixels))
        for width, height, pixels in found["pictures"]
    )
    (train, val, classes), sides = found["counts"], found["sides"]
    findings, lines = (tuple(map(str, found[key])) for key in ("findings", "lines"))
    ends = (min(sides), max(sides)) if sides else None
    return DataPreview(train, val, classes, ends, pictures, findings, lines)


def _ignore(*_: object) -> None:
    """Take progress and warnings, which the run reports."""


def _never() -> bool:
    return False
