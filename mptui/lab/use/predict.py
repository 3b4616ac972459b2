"""Predicts classes and masks of image files by a trained run, and writes them for programs and people."""

import csv
import glob
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO

import numpy as np
import numpy.typing as npt
import tomli_w
import torch
import torch.nn.functional as F
from PIL import Image

from mptui.config.keys import with_values
from mptui.data.batch import Batch
from mptui.data.dataset import FileSplit, PathTable
from mptui.data.decode import opened, orientation_of, read_rgb, stored_size, upright_tiff_size
from mptui.data.layouts.walk import walk_images
from mptui.data.loader import Loader
from mptui.data.masks import CLASS_FILE
from mptui.data.pictures import BACKGROUND, Palette, palette
from mptui.data.types import RGB, BadSampleError, Dataset, PixelFormat, Problem, Split
from mptui.engine.reporting.step_time import HostCopy
from mptui.errors import DataError
from mptui.events import Event
from mptui.io.written_files import OutputFiles
from mptui.lab.use.evaluate import HalvingBatches
from mptui.lab.use.mirrored import AS_IT_IS, AveragedNetwork, mirror_views
from mptui.lab.use.trained import Trained
from mptui.runs.planning.build import LoaderMaker
from mptui.text import cell, clean_name

# Finds the image files that a person names: files, folders, patterns. Imports no torch
# -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Image files without labels.

    Attributes:
        paths: The files, each once, as they were named.
        folder: The absolute folder that all inputs lie in.
    """

    paths: Sequence[str]
    folder: str

    def split(self, stored: PixelFormat | None) -> FileSplit:
        """Return the files as samples, all of class 0; `stored` is the format of files with bands."""
        count = len(self.paths)
        return FileSplit(self.paths, np.zeros(count, np.int64), np.arange(count), stored)

    def relative(self, index: int) -> str:
        """Return the path of a file from `folder`."""
        return os.path.relpath(os.path.abspath(self.paths[index]), self.folder)  # noqa: PTH100


def find_inputs(inputs: Sequence[str]) -> InputFiles:
    """Find the images of inputs, in their order.

    Args:
        inputs: Files; folders, of which all images at any depth are taken; and patterns (`*`, `?`, `[…]`, and
            `**` for any depth).

    Raises:
        DataError: An input does not exist or can't be listed, or there is no image.
    """
    roots: list[str] = []
    found = {os.path.abspath(path): path for given in inputs for path in _files(given, roots)}  # noqa: PTH100
    paths = PathTable(found.values())
    if not len(paths):
        raise DataError(
            f"{', '.join(map(clean_name, inputs))}: no images", hint="give image files, or folders of images"
        )
    return InputFiles(paths, os.path.commonpath(roots))


def _files(given: str, roots: list[str]) -> Iterator[str]:
    """Yield the images of one input; append the folder that it stands for to `roots`."""
    named = os.path.expanduser(given)  # noqa: PTH111 - paths stay as they are written
    matches = [named] if os.path.lexists(named) else sorted(glob.glob(named, recursive=True))  # noqa: PTH207
    if not matches:
        raise DataError(
            f"{clean_name(given)}: no such file or folder",
            hint="check the path; quote a pattern for mptui to expand it",
        )
    for path in matches:
        absolute = os.path.abspath(path)  # noqa: PTH100 - links stay
        if os.path.isdir(path):  # noqa: PTH112
            roots.append(absolute)
            yield from walk_images(path)
        else:
            roots.append(os.path.dirname(absolute))  # noqa: PTH120
            yield path


# Writes masks as PNG files of class numbers, and as overlays on their images for people
# --------------------------------------------------------------------------------------
# OUT/masks/a.png      each pixel is the number of its class; a palette shows them as colours
# OUT/overlays/a.png   the image with its mask in these colours, at most 1024 pixels wide and high
# OUT/masks/classes.toml   the names of the numbers, as `mptui run --data` reads them beside masks

MASKS, OVERLAYS = "masks", "overlays"

_OVERLAY_SIDE = 1024
_OPACITY = 0.5
_THREADS = 4
_WAITING = 2 * _THREADS
_FAST = 1
"""Compression of overlays, which are large."""

Mask = npt.NDArray[np.uint8] | npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class WrittenMask:
    """A mask on disk: its file's index, its files, and the share of each class that occurs in it."""

    index: int
    mask: Path
    overlay: Path | None
    shares: dict[str, float]


class MaskFiles:
    """Writes the masks of files in threads, a few at a time.

    Args:
        folder: The output folder; or with `single`, the file of the only mask, without an overlay.
        files: The images.
        classes: Names of the classes.
        output: Writes the files.
        single: Write one mask to `folder` itself.

    Raises:
        ConfigError: A mask would replace a file of another origin: nothing is written.
    """

    def __init__(
        self, folder: Path, files: InputFiles, classes: Sequence[str], output: OutputFiles, *, single: bool
    ) -> None:
        self._folder = folder
        self._files = files
        self._classes = classes
        self._single = single
        self._output = output
        self._palette = palette(classes)
        self._names = mask_names([files.relative(index) for index in range(len(files.paths))])
        for index in range(len(files.paths)):
            output.check(self._mask(index))
            if not single:
                output.check(self._folder / OVERLAYS / f"{self._names[index]}.png")
        self._threads = ThreadPoolExecutor(_THREADS)
        self._coming: deque[Future[WrittenMask]] = deque()
        if not single:
            self._write_classes()

    def __enter__(self) -> "MaskFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def write(self, index: int, mask_HW: Mask) -> Iterator[WrittenMask]:
        """Write the mask of file `index`; yield masks that are on disk, in their order.

        Raises:
            DiskError: A file can't be written.
        """
        self._coming.append(self._threads.submit(self._write, index, mask_HW.copy()))
        while len(self._coming) > _WAITING:
            yield self._coming.popleft().result()

    def rest(self) -> Iterator[WrittenMask]:
        """Wait for the masks that are being written; raises as `write`."""
        while self._coming:
            yield self._coming.popleft().result()

    def _write(self, index: int, mask_HW: Mask) -> WrittenMask:
        mask = self._mask(index)
        self._save(_picture(mask_HW, self._palette), mask)
        overlay = None if self._single else self._overlay(index, mask_HW)
        counts = np.bincount(mask_HW.reshape(-1), minlength=len(self._classes)) / max(1, mask_HW.size)
        shares = {name: float(share) for name, share in zip(self._classes, counts, strict=True) if share}
        return WrittenMask(index, mask, overlay, shares)

    def _mask(self, index: int) -> Path:
        return self._folder if self._single else self._folder / MASKS / f"{self._names[index]}.png"

    def _overlay(self, index: int, mask_HW: Mask) -> Path | None:
        try:
            image_HW3 = read_rgb(self._files.paths[index], _OVERLAY_SIDE)
        except BadSampleError:  # of many bands: there is nothing to see
            return None
        path = self._folder / OVERLAYS / f"{self._names[index]}.png"
        shows_first = self._classes[0] != BACKGROUND
        self._save(overlay(image_HW3, mask_HW, self._palette, shows_first=shows_first), path)
        return path

    def _save(self, picture: Image.Image, path: Path) -> None:
        with self._output.write(path) as fresh:
            picture.save(fresh, "PNG", compress_level=_FAST)

    def _write_classes(self) -> None:
        path = self._folder / MASKS / CLASS_FILE
        numbers = {name: number for number, name in enumerate(self._classes)}
        self._output.check(path)
        with self._output.write(path) as fresh:
            fresh.write_text(tomli_w.dumps(numbers), "utf-8")


def overlay(
    image_HW3: npt.NDArray[np.uint8], mask: Mask, colours: Palette, *, shows_first: bool
) -> Image.Image:
    """Draw a mask over its image in colours; the first class is left clear unless `shows_first`."""
    picture = Image.fromarray(image_HW3)
    picture.thumbnail((_OVERLAY_SIDE, _OVERLAY_SIDE))
    numbers = Image.fromarray(mask.astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
    first = Image.fromarray((mask == 0).astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
    pixels_HW3, drawn_HW3 = np.asarray(picture).astype(np.float32), colours[np.asarray(numbers)]
    opacity_HW1 = np.full((*pixels_HW3.shape[:2], 1), _OPACITY, np.float32)
    if not shows_first:
        opacity_HW1[np.asarray(first) > 0] = 0
    blended_HW3 = pixels_HW3 + opacity_HW1 * (drawn_HW3 - pixels_HW3)
    return Image.fromarray(np.rint(blended_HW3).astype(np.uint8))


def _picture(mask_HW: Mask, colours: Palette) -> Image.Image:
    if mask_HW.dtype != np.uint8:
        return Image.fromarray(mask_HW.astype(np.uint16))
    picture = Image.fromarray(mask_HW.astype(np.uint8))
    picture.putpalette(colours.tobytes())
    return picture


def mask_names(names: Sequence[str]) -> list[str]:
    """Return the names of the masks of files without their `.png`, each once.

    A mask has the name of its image without extension (`a` for a.jpg), or with it where two would be alike.
    """
    stems = [name.removesuffix(Path(name).suffix) for name in names]
    counts = Counter(stems)
    taken = {name for name, stem in zip(names, stems, strict=True) if counts[stem] > 1}
    while more := {name for name, stem in zip(names, stems, strict=True) if stem in taken} - taken:
        taken |= more  # `a.jpg.png` beside a.jpg and a.png
    return [name if name in taken else stem for name, stem in zip(names, stems, strict=True)]


# Makes masks at the size of the original images
# ----------------------------------------------
# Logits are interpolated bilinearly to the size of the image, and each pixel gets the class of the highest:
# so outlines are smooth. Resizing the mask itself by nearest neighbour would draw each of its pixels as a
# block.
#
# Shapes: B images, K classes, H and W pixels of the network, h and w of the original image.

_NUMBERS_AT_ONCE = 1 << 25
"""Interpolated logits held at a time; a mask of more is made of strips."""
_MOST_IN_BYTES = 256

Size = tuple[int, int]
"""Height and width in pixels."""


def upright_size(path: str, *, as_stored: bool) -> Size | None:
    """Return the size of an image as it is decoded, from its header; None if it can't be read.

    Args:
        path: The file.
        as_stored: Whether it is read with all its bands.
    """
    if as_stored and (size := upright_tiff_size(path)) is not None:
        return size
    try:
        with opened(path) as image:
            width, height = stored_size(image)
            return (width, height) if orientation_of(image) >= 5 else (height, width)
    except BadSampleError:
        return None


def mask_of(scores_KHW: torch.Tensor, size: Size) -> torch.Tensor:
    """Return the mask of an image at its own size, as numbers of classes on the device.

    Args:
        scores_KHW: Logits, float32, or their difference from anything that is the same for all classes.
        size: Height and width of the mask.

    Returns:
        mask_hw: uint8, or int16 for more than 256 classes.
    """
    K, H, _ = scores_KHW.shape
    h, w = size
    dtype = torch.uint8 if K <= _MOST_IN_BYTES else torch.int16
    # half-pixel centres, as in F.interpolate
    centres_h = ((torch.arange(h, device=scores_KHW.device) + 0.5) * (H / h) - 0.5).clamp(0, H - 1)
    above_h = centres_h.long()
    below_h, share_h = (above_h + 1).clamp(max=H - 1), centres_h - above_h
    strips = []
    step = max(1, _NUMBERS_AT_ONCE // (K * max(w, scores_KHW.shape[2])))
    for first in range(0, h, step):
        rows = slice(first, first + step)
        strip_KhW = torch.lerp(
            scores_KHW[:, above_h[rows]], scores_KHW[:, below_h[rows]], share_h[rows, None]
        )
        wide_Khw = F.interpolate(strip_KhW, size=w, mode="linear", align_corners=False)
        strips.append(wide_Khw.argmax(dim=0).to(dtype))
    return torch.cat(strips)


class MaskMaker:
    """Makes the masks of a batch, as the result of a `Predictor`: all in one flat tensor.

    Args:
        files: The files.
        as_stored: Whether they are read with all their bands.

    Attributes:
        sizes: Size of each original image whose mask was made and not yet taken; None if it can't be read.
    """

    def __init__(self, files: InputFiles, *, as_stored: bool) -> None:
        self._files = files
        self._size = partial(upright_size, as_stored=as_stored)
        self._threads = ThreadPoolExecutor(_THREADS)
        self.sizes: dict[int, Size | None] = {}

    def __enter__(self) -> "MaskMaker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()

    def __call__(self, scores_BKHW: torch.Tensor, indices: npt.NDArray[np.int64]) -> torch.Tensor:
        """Return the masks of images, one after the other."""
        paths = [self._files.paths[index] for index in indices.tolist()]
        sizes = list(self._threads.map(self._size, paths))  # while the device computes
        self.sizes |= dict(zip(indices.tolist(), sizes, strict=True))
        masks = [
            scores_KHW.new_empty(0, dtype=torch.uint8)
            if size is None
            else mask_of(scores_KHW, size).flatten()
            for scores_KHW, size in zip(scores_BKHW, sizes, strict=True)
        ]
        return torch.cat(masks)

    def taken(self, masks: torch.Tensor, indices: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the masks in a result of `__call__`, as arrays of the sizes of the images."""
        at = 0
        for index in indices.tolist():
            height, width = self.sizes.pop(index) or (0, 0)
            yield masks[at : at + height * width].numpy().reshape(height, width)
            at += height * width


# Computes the outputs of a trained network for files, in their order
# -------------------------------------------------------------------
# The files pass the loader of the validation set, so that workers, views and normalisation are the run's.
# The results of a batch are copied to the host while the next one is computed.
#
# Shapes: B images, K classes, H and W pixels.

_FEW = 8
"""Number of files up to which no worker is started: they are decoded before it would be ready."""
_LATE = 1
"""Batches whose results are on their way to the host while the next is computed."""

Result = Callable[[torch.Tensor, npt.NDArray[np.int64]], torch.Tensor]
"""Called with the scores of images and the indices of their files; returns a tensor on the device."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Results of some files.

    Attributes:
        indices: Indices of the files.
        kept: For each of them, whether the result is its own: a file that can't be read has none.
        result: The result on the host.
    """

    indices: npt.NDArray[np.int64]
    kept: npt.NDArray[np.bool_]
    result: torch.Tensor


def loader_of(trained: Trained, files: Split, on_bad: Callable[[Problem], None]) -> Loader:
    """Return a loader of files without labels, with the views of the run's validation.

    Args:
        trained: The run.
        files: The files.
        on_bad: Called once for each file that can't be read.
    """
    config, count = trained.config, len(files)
    smaller = with_values(config, {"training.batch_size": min(config.training.batch_size, count)})
    resolved = replace(trained.plan.resolved, config=smaller)
    workers = 0 if count <= _FEW else trained.plan.workers
    plan = replace(trained.plan, resolved=resolved, workers=workers)
    kind, stored = trained.preprocessing.kind, trained.preprocessing.stored
    dataset = Dataset("", kind, trained.classes, train=files, val=files, pixels=stored or RGB)
    return LoaderMaker(plan, dataset, _unheard, on_bad, lambda: None).make(files, train=False, labelled=False)


def _unheard(_event: Event) -> None:
    pass


class Predictor:
    """Computes scores of images: logits, or with `mirror` logarithms of the mean probabilities.

    Softmax turns either into probabilities.

    Args:
        trained: The run.
        mirror: Average the probabilities over `mirror_views`.
        note: Called once if a batch does not fit into memory.
    """

    def __init__(self, trained: Trained, *, mirror: bool, note: Callable[[str], None]) -> None:
        self._trained = trained
        self._network = AveragedNetwork(trained.model, mirror_views(trained)) if mirror else None
        self.in_pieces = HalvingBatches(trained.device, note)

    def __call__(self, loader: Loader, result: Result) -> Iterator[Predicted]:
        """Yield the results of all files in order, each batch once the next one is on the device.

        Raises:
            DataError: Too many files can't be read.
            MemoryExhaustedError: Not even one image fits into memory.
        """
        waiting: deque[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], HostCopy]] = deque()
        done = 0

        def compute(batch: Batch) -> None:
            nonlocal done
            indices = np.arange(done, done + batch.size)
            with torch.inference_mode():
                copy = HostCopy([result(self._scores(batch)[: batch.size], indices)])
            waiting.append((indices, batch.sample_indices == indices, copy))
            done += batch.size

        for window in loader.windows(epoch=0, accumulate=1):
            for batch in window:
                self.in_pieces(batch, compute)
            while len(waiting) > _LATE:
                yield _arrived(*waiting.popleft())
        while waiting:
            yield _arrived(*waiting.popleft())

    def _scores(self, batch: Batch) -> torch.Tensor:
        return outputs_of(self._trained, batch.images_BCHW, network=self._network)


def outputs_of(
    trained: Trained, *inputs: torch.Tensor, network: Callable[..., torch.Tensor] | None = None
) -> torch.Tensor:
    """Return what a trained network makes of its inputs in the precision that it was opened with, as fp32.

    `network` wraps the network; None: it is called itself.
    """
    with trained.precision.forward_context():
        outputs: torch.Tensor = (network or trained.model)(*inputs)
    return outputs.float()


def _arrived(indices: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_], copy: HostCopy) -> Predicted:
    copy.wait()
    (result,) = copy
    return Predicted(indices, kept, result)


def probabilities(scores_BK: torch.Tensor, _indices: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return the probability of each class; the result of a classifier."""
    return scores_BK.softmax(dim=1)


# Writes the classes of files as CSV or as JSON lines, a row for each file
# ------------------------------------------------------------------------

_LONGEST = 4096
_DIGITS = 6

COLUMNS = ("file", "class", "probability")
LAST_COLUMNS = ("precision", "error")


class PredictionTable(Protocol):
    """A table that is being written."""

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""


class CsvTable:
    """CSV: file, class, its probability, and a column for the probability of each class, called p_CLASS.

    Then follow the precision of the forward pass, and why a file has no prediction.
    """

    def __init__(self, stream: TextIO, classes: Sequence[str], precision: str) -> None:
        self._rows = csv.writer(stream, lineterminator="\n")
        self._classes = [cell(name) for name in classes]
        self._precision = precision
        # formatted at once: of a thousand classes, one by one would take longer than the network
        self._template = ",".join([f"%.{_DIGITS}g"] * len(classes))
        self._rows.writerow([*COLUMNS, *(f"p_{name}" for name in classes), *LAST_COLUMNS])

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        texts, best = (self._template % tuple(probabilities)).split(","), _best(probabilities)
        name = cell(clean_name(file, _LONGEST))
        self._rows.writerow([name, self._classes[best], texts[best], *texts, self._precision, ""])

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""
        empty = [""] * (len(COLUMNS) - 1 + len(self._classes))
        self._rows.writerow(
            [cell(clean_name(file, _LONGEST)), *empty, "", cell(clean_name(reason, _LONGEST))]
        )


class JsonLines:
    """A JSON object per line: file, class, probability, the probabilities by class, precision and error."""

    def __init__(self, stream: TextIO, classes: Sequence[str], precision: str) -> None:
        self._stream = stream
        self._classes = classes
        self._precision = precision

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        self._append({**_row(file, probabilities, self._classes), "precision": self._precision})

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""
        self._append({**_error_row(file, reason), "precision": None})

    def _append(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row, ensure_ascii=False) + "\n")


class RowList:
    """Keeps the rows for a JSON document."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._classes = classes

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        self.rows.append(_row(file, probabilities, self._classes))

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""
        self.rows.append(_error_row(file, reason))


def _row(file: str, probabilities: Sequence[float], classes: Sequence[str]) -> dict[str, Any]:
    """Return the row of a file, ready for JSON."""
    rounded = [float(f"{probability:.{_DIGITS}g}") for probability in probabilities]
    best = _best(probabilities)
    return {
        "file": clean_name(file, _LONGEST),
        "class": classes[best],
        "probability": rounded[best],
        "probabilities": dict(zip(classes, rounded, strict=True)),
        "error": None,
    }


def _error_row(file: str, reason: str) -> dict[str, Any]:
    return {
        "file": clean_name(file, _LONGEST),
        "class": None,
        "probability": None,
        "probabilities": None,
        "error": clean_name(reason, _LONGEST),
    }


def _best(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)


# Predicts files with a trained run: classes into a table, or masks into a folder
# -------------------------------------------------------------------------------

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class PredictionRun:
    """Predictions for files.

    Args:
        trained: The run.
        files: The files.
        mirror: Average the probabilities over `mirror_views`.
        on_progress: Called with (files done, all files).
        on_bad: Called once for each file that can't be read.
        note: Called with what a person should know.

    Attributes:
        done: Number of files with a prediction.
        problems: Files that could not be read.
        seconds: Duration from the first batch on.
    """

    trained: Trained
    files: InputFiles
    mirror: bool
    on_progress: OnProgress
    on_bad: Callable[[Problem], None]
    note: Callable[[str], None]
    done: int = 0
    problems: list[Problem] = field(default_factory=list)
    seconds: float = 0.0
    _reasons: dict[str, str] = field(default_factory=dict)

    @property
    def views(self) -> list[str]:
        """Names of the views that are averaged over."""
        return [view.name for view in mirror_views(self.trained)] if self.mirror else [AS_IT_IS.name]

    def classes(self, table: PredictionTable) -> None:
        """Write the class probabilities of all files to a table, in their order; or why one has none.

        Raises:
            DataError: No file can be read, or more can't than a person allows.
            MemoryExhaustedError: Not even one image fits into memory.
        """
        started = time.perf_counter()
        with loader_of(self.trained, self._samples(), self._leave_out) as loader:
            self.classes_from(loader, table)
        self.seconds = time.perf_counter() - started

    def classes_from(self, loader: Loader, table: PredictionTable) -> None:
        """Write the class probabilities of the samples of a loader; raises as `classes`."""
        predictor = Predictor(self.trained, mirror=self.mirror, note=self.note)
        for predicted in predictor(loader, probabilities):
            rows = predicted.result.tolist()
            for index, kept, row in zip(predicted.indices.tolist(), predicted.kept, rows, strict=True):
                if kept:
                    table.write(self.files.paths[index], row)
                else:
                    path = self.files.paths[index]
                    table.write_error(path, self._reasons.get(path, "can't be read"))
            self._count(predicted.kept.sum(), int(predicted.indices[-1]) + 1)

    def masks(self, folder: Path, output: OutputFiles, *, single: bool) -> Iterator[WrittenMask]:
        """Write the masks of all files; yield what is on disk, in the order of the files.

        Raises:
            ConfigError: A mask would replace a file of another origin: nothing is written.
            DataError: No file can be read, or more can't than a person allows.
            DiskError: A mask can't be written.
            MemoryExhaustedError: Not even one image fits into memory.
        """
        started = time.perf_counter()
        predictor = Predictor(self.trained, mirror=self.mirror, note=self.note)
        with (
            MaskMaker(self.files, as_stored=self.trained.preprocessing.stored is not None) as maker,
            MaskFiles(folder, self.files, self.trained.classes, output, single=single) as written,
            loader_of(self.trained, self._samples(), self._leave_out) as loader,
        ):
            for predicted in predictor(loader, maker):
                indices = predicted.indices
                found = zip(
                    indices.tolist(), predicted.kept, maker.taken(predicted.result, indices), strict=True
                )
                for index, kept, mask_HW in found:
                    if kept:
                        yield from written.write(index, mask_HW)
                self._count(predicted.kept.sum(), int(indices[-1]) + 1)
            yield from written.rest()
        self.seconds = time.perf_counter() - started

    def _samples(self) -> FileSplit:
        return self.files.split(self.trained.preprocessing.stored)

    def _count(self, kept: int, place: int) -> None:
        self.done += int(kept)
        self.on_progress(place, len(self.files.paths))

    def _leave_out(self, problem: Problem) -> None:
        self.problems.append(problem)
        self._reasons[problem.path] = problem.reason
        self.on_bad(problem)
