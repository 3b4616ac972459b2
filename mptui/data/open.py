"""Opens the data of a configuration: a path, a set of torchvision or the shapes by name, the person's own."""

import colorsys
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from mptui.config.schema import DataConfig
from mptui.data.assemble import assemble, assemble_prepared
from mptui.data.dataset import ArraySplit, PathTable
from mptui.data.decode import opened
from mptui.data.folder_format import Found
from mptui.data.kept_reading import KeptReading
from mptui.data.layouts.class_folders import count_images, first_images
from mptui.data.layouts.image_list import offering
from mptui.data.layouts.known import layout_of, recognize_kinds, serves
from mptui.data.layouts.pairs import count_pairs
from mptui.data.layouts.rivals import refuse_rivals, refused_by_kind
from mptui.data.layouts.split_lists import split_by_lists
from mptui.data.masks import MaskCoding
from mptui.data.own import kind_of_own, open_own
from mptui.data.prepared import LAYOUT, PreparedSet, count_of_prepared, small_side_of_prepared
from mptui.data.scan import OnProgress, ScanCancelledError, ShouldStop
from mptui.data.types import BadSampleError, Dataset, Decoded, Mask, Pixels
from mptui.errors import ConfigError, DataError, DiskError
from mptui.io.cache import cache_folder, load_json, save_json, write_whole
from mptui.io.files import expanded
from mptui.io.written_files import disk_hint
from mptui.processes.start import start
from mptui.registry.names import BUILT_IN, SampleKind
from mptui.registry.own_code import is_own
from mptui.text import clean, clean_name, shell_word

# Opens the data of a configuration: a path, a torchvision set, the person's own, or the built-in shapes
# ------------------------------------------------------------------------------------------------------


SMALL = 64
"""Images with a shorter side of up to so many pixels are small: they are whole objects, cut out already."""
_LOOKED_AT = (16, 2)
"""Class folders, and images in each, whose size is looked at before a scan."""


def kind_of(data: DataConfig) -> SampleKind | None:
    """Return the kind of a set's samples; None if it has several.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The path is missing, or has no known format.
    """
    kinds = _kinds(data)[1]
    return kinds[0] if len(kinds) == 1 else None


def check_data(data: DataConfig, kind: SampleKind) -> None:
    """Check that a set can serve samples of a kind, without reading its files.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The path is missing, has no known format, or has samples of another kind.
    """
    what, kinds = _kinds(data)
    with offering(str(expanded(what))):
        if not serves(kinds, kind):
            raise refused_by_kind(what, "" if data.path is None else str(expanded(data.path)), kinds, kind)


def small_side(data: DataConfig) -> int | None:
    """Return the shorter side in pixels of a set of small images with classes, by a look at few of them.

    Returns:
        The largest of those looked at; None: one is larger than `SMALL`, or can't be read before a scan.
    """
    if data.name is not None or data.path is None:
        return NAMED[data.name].side if data.name in NAMED else None
    folder = str(expanded(data.path))
    largest = 0
    try:
        layout = layout_of(recognize_kinds(folder)[0])
        if layout == LAYOUT:
            return small_side_of_prepared(folder)
        if layout != "class folders":
            return None
        for path in first_images(folder, *_LOOKED_AT):
            with opened(path) as image:
                largest = max(largest, min(image.size))
            if largest > SMALL:
                return None
    except (BadSampleError, DataError):  # that which opens the data tells
        return None
    return largest or None


_COUNTED = {"class folders": count_images, "images and masks": count_pairs}
"""Layouts whose training images are counted before a scan."""


def few_samples(data: DataConfig, most: int) -> int | None:
    """Return the number of training images of a set, by its name or by those of its files.

    Returns:
        None: there are more than `most`, they can't be counted before a scan, or they are the built-in ones,
        which are learnt in few steps (docs/recipes.md). Files that turn out to be unusable are counted, and a
        list of splits beside the folders is not read.
    """
    if data.name in NAMED:
        count = NAMED[data.name].train_samples
        return count if count <= most else None
    if data.name is not None or data.path is None:
        return None
    folder = str(expanded(data.path))
    try:
        layout = layout_of(recognize_kinds(folder)[0])
        if layout == LAYOUT:
            count, is_split = count_of_prepared(folder)
        elif layout in _COUNTED:
            count, is_split = _COUNTED[layout](folder, 1 + int(most / (1 - data.val_fraction)))
        else:
            return None
    except DataError:  # that which opens the data tells
        return None
    count = count if is_split else round(count * (1 - data.val_fraction))
    return count if 0 < count <= most else None


def open_dataset(
    data: DataConfig,
    *,
    kind: SampleKind,
    side: int,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
    on_warning: Callable[[str], None],
    kept: KeptReading | None = None,
) -> Dataset:
    """Find, scan and split the data of a run.

    Args:
        data: The data settings.
        kind: Required kind of samples; images with classes can also be opened as images alone.
        side: Side of built-in images in pixels.
        seed: Selects the validation half if the data has none, and seeds built-in images.
        on_progress: Called with (checked files, all files).
        should_stop: Called several times per second while files are checked or downloaded.
        on_warning: Called with each of the dataset's warnings.
        kept: How a run that goes on has read the data of a folder; None: as they are.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing, empty, unreadable, or of another kind.
        DiskError: A set does not fit in the cache folder.
        ScanCancelledError: `should_stop` returned True.
    """
    if data.name is None and data.path is not None:
        folder = str(expanded(data.path))
        found = _find(data, data.path, folder, kind, on_progress=on_progress, should_stop=should_stop)[1]
        if isinstance(found, PreparedSet) and data.bands == "all":
            raise ConfigError(
                f'data.bands = "all": {clean_name(data.path)} was prepared as 8-bit RGB',
                hint="give --data the folder of the original images",
            )
        if isinstance(found, PreparedSet):
            dataset = assemble_prepared(found, data, side, seed)
        elif kept is not None:
            listed = found if kept.held_out else split_by_lists(folder, found)
            files, settings = kept.applied(listed), kept.settings(data)
            dataset = assemble(
                _title(folder), files, settings, seed, on_progress=on_progress, should_stop=should_stop
            )
        else:
            found = split_by_lists(folder, found)
            refuse_rivals(folder, kind, found, data, should_stop=should_stop)
            dataset = assemble(
                _title(folder), found, data, seed, on_progress=on_progress, should_stop=should_stop
            )
    else:
        check_data(data, kind)
        dataset = _open_named(
            data,
            data.name or BUILT_IN,
            kind,
            side,
            seed=seed,
            on_progress=on_progress,
            should_stop=should_stop,
        )
    for warning in dataset.warnings:
        on_warning(warning)
    return replace(dataset, kind=kind)


def files_of(
    data: DataConfig, kind: SampleKind | None, on_progress: OnProgress, should_stop: ShouldStop
) -> tuple[str, SampleKind, Found]:
    """Return name, kind of the samples and files of a set with a file per sample.

    Args:
        data: The set.
        kind: Kind of the samples if the set has several; None: the first of them.
        on_progress: Called with (done, total) while packed files are listed.
        should_stop: Called several times per second meanwhile, and while files are downloaded.

    Raises:
        ConfigError: The set does not consist of files.
        DataError: It is missing or incomplete.
    """
    if data.name is None and data.path is not None:
        folder = os.path.abspath(expanded(data.path))
        chosen, found = _find(data, data.path, folder, kind, on_progress=on_progress, should_stop=should_stop)
        if isinstance(found, PreparedSet):
            raise ConfigError(
                f"{data.path} is a prepared set already",
                hint=f"train on it: mptui run --data {shell_word(data.path)}",
            )
        found = split_by_lists(folder, found)
        refuse_rivals(folder, chosen, found, data, should_stop=should_stop)
        return _title(folder), chosen, found
    if is_own(data.name):
        raise ConfigError(
            f"{data.name} can't be prepared",
            hint=f"train on it as it is: mptui run --data {data.name} --trust-code",
        )
    name, kinds = _kinds(data)
    if kind is not None and not serves(kinds, kind):
        raise refused_by_kind(name, "", kinds, kind)
    chosen = _as_labelled(kind or kinds[0])
    if name == BUILT_IN or NAMED[name].files is None:
        raise ConfigError(
            f"{name} has no image files to prepare", hint=f"train on it as it is: mptui run --data {name}"
        )
    root = cache_folder() / "data" if data.path is None else expanded(data.path)
    if data.download:
        fetched(name, root, should_stop)
    return name, chosen, open_files(name, root, chosen)


def _find(
    data: DataConfig,
    what: str,
    folder: str,
    kind: SampleKind | None,
    *,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> tuple[SampleKind, Found | PreparedSet]:
    """List the samples of a folder as `kind`; None: as the kind that is recognized."""
    known, kinds = recognize_kinds(folder)
    kind = kind or kinds[0]
    with offering(folder):
        if not serves(kinds, kind):
            raise refused_by_kind(what, folder, kinds, kind)
        found = known.find(folder, kind, on_progress, should_stop, data)
    if isinstance(found, Found) and not found.layout:
        found = replace(found, layout=layout_of(known))
    return kind, found


def _title(path: str) -> str:
    """Return the name of a dataset at a path: its folder or file."""
    return clean_name(Path(path).resolve().name)


def _open_named(
    data: DataConfig,
    name: str,
    kind: SampleKind,
    side: int,
    *,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> Dataset:
    if is_own(name):
        return open_own(name, data, kind, seed)
    kind = _as_labelled(kind)
    if name == BUILT_IN:
        return shapes(kind, data.samples or DEFAULT_SAMPLES, side, seed)
    root = cache_folder() / "data" if data.path is None else expanded(data.path)
    if data.download:
        fetched(name, root, should_stop)
    if NAMED[name].files is None:
        return open_arrays(name, root)
    found = open_files(name, root, kind)
    return assemble(name, found, data, seed, on_progress=on_progress, should_stop=should_stop)


def _kinds(data: DataConfig) -> tuple[str, tuple[SampleKind, ...]]:
    """Return the name of a set for messages, and the kinds of samples that it has."""
    if data.name is None and data.path is not None:
        return data.path, recognize_kinds(str(expanded(data.path)))[1]
    name = data.name or BUILT_IN
    if is_own(name):
        return name, (kind_of_own(name),)
    if name == BUILT_IN:
        return name, (SampleKind.CLASS, SampleKind.MASK)
    if name in NAMED:
        return name, NAMED[name].kinds
    names = [BUILT_IN, *NAMED]
    near = get_close_matches(name.lower(), names, n=1)
    raise ConfigError(
        f"data.name: no set called {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        hint=f"choose one of {', '.join(names)}, or a folder with --data ./FOLDER",
    )


def _as_labelled(kind: SampleKind) -> SampleKind:
    """Return the kind as which a named set is read: with labels even if only images are requested."""
    return SampleKind.CLASS if kind is SampleKind.IMAGE else kind


# The built-in dataset: coloured shapes on a noisy background, drawn when they are read
# -------------------------------------------------------------------------------------
# An image with a class has one shape; each class has its own outline and hue, so that a first run shows
# within a minute that learning works; shade, background, size, position and rotation are random. An image
# with a mask has several shapes, whose classes differ in the outline only. Every sample is a pure function
# of its request, in any process.

CLASSES = ("circle", "ring", "square", "triangle", "star", "cross", "crescent", "bar")
MASK_CLASSES = ("background", "circle", "square", "triangle")
DEFAULT_SAMPLES = 4096

Half = Literal["train", "val"]
Points = npt.NDArray[np.float64]
"""Corners [N, 2] of an outline in the unit circle; the outline of a hole follows that of its shape."""
Colour = npt.NDArray[np.floating]
Cover = npt.NDArray[np.float32]
Box = tuple[slice, slice]

_HALF_NUMBER: dict[Half, int] = {"train": 0, "val": 1}
_OVERSAMPLED = 2
_LEAST_CONTRAST = 70.0


@dataclass(frozen=True, slots=True)
class ShapesRequest:
    """Sample `index` of one half, `side` pixels square."""

    seed: int
    half: Half
    index: int
    side: int
    kind: SampleKind

    @property
    def name(self) -> str:
        """Name of the sample in messages."""
        return f"shapes/{self.half}/{self.index}"

    def read(self, side_hint: int | None = None) -> Decoded:
        """Draw the sample; see `SampleRequest.read`."""
        rng = np.random.default_rng([self.seed, _HALF_NUMBER[self.half], self.index])
        canvas = _Canvas(rng, self.side, grey=self.kind is SampleKind.CLASS)
        if self.kind is SampleKind.CLASS:
            label = self.index % len(CLASSES)
            canvas.draw(CLASSES[label], radius=rng.uniform(0.2, 0.42), hue=label / len(CLASSES))
            return Decoded(canvas.image(), label=label)
        mask_HW: Mask = np.zeros((self.side, self.side), np.int16)
        for index in rng.integers(1, len(MASK_CLASSES), size=rng.integers(1, 5)):
            box, cover_HW = canvas.draw(MASK_CLASSES[index], radius=rng.uniform(0.1, 0.28))
            mask_HW[box][cover_HW >= 0.5] = index
        return Decoded(canvas.image(), mask_HW=mask_HW)


@dataclass(frozen=True, slots=True)
class ShapesSplit:
    """One half of the set."""

    seed: int
    half: Half
    samples: int
    side: int
    kind: SampleKind

    def __len__(self) -> int:
        return self.samples

    def request(self, index: int) -> ShapesRequest:
        """Return the request for sample `index`."""
        return ShapesRequest(self.seed, self.half, index, self.side, self.kind)

    @property
    def sample_labels(self) -> npt.NDArray[np.int64]:
        """See `LabelledSplit`."""
        return np.arange(self.samples) % len(CLASSES)


def shapes(kind: SampleKind, samples: int, side: int, seed: int) -> Dataset:
    """Return the built-in dataset.

    Args:
        kind: Kind of the samples: with classes or with masks.
        samples: Number of training images; the validation set is half as large.
        side: Side of the images in pixels.
        seed: Seed of the images.
    """
    train = ShapesSplit(seed, "train", samples, side, kind)
    val = ShapesSplit(seed, "val", max(1, samples // 2), side, kind)
    if kind is SampleKind.MASK:
        return Dataset("shapes", kind, MASK_CLASSES, train, val, sides=(side, side, side))
    counts = [len(range(label, samples, len(CLASSES))) for label in range(len(CLASSES))]
    return Dataset("shapes", kind, CLASSES, train, val, class_counts=counts, sides=(side, side, side))


class _Canvas:
    """An image being drawn, as float32 RGB from 0 to 255."""

    def __init__(self, rng: np.random.Generator, side: int, *, grey: bool) -> None:
        self._rng = rng
        self._side = side
        ground = rng.uniform(20, 235, 1 if grey else 3)
        self._pixels_HW3 = self._texture(ground, side, strength=30.0)

    def draw(self, name: str, radius: float, hue: float | None = None) -> tuple[Box, Cover]:
        """Draw a shape at a random position.

        Args:
            name: Name of the shape.
            radius: Radius of its circumscribed circle, as a fraction of the side.
            hue: Approximate hue from 0 to 1; None: any colour with enough contrast.

        Returns:
            The square around the shape, and the shape's coverage of each of its pixels, 0 to 1.
        """
        angle = self._rng.uniform(0, 2 * np.pi)
        size = max(2, round(2 * radius * self._side))
        top, left = self._rng.integers(0, self._side - size, size=2, endpoint=True)
        box = (slice(top, top + size), slice(left, left + size))
        cover_HW = _cover(_OUTLINES[name](), angle, size)
        if hue is None:
            colour = self._colour_unlike(self._pixels_HW3[box].mean(axis=(0, 1)))
        else:
            colour = self._colour_of(hue)
        paint_HW3 = self._texture(colour, size, strength=15.0)
        self._pixels_HW3[box] += (paint_HW3 - self._pixels_HW3[box]) * cover_HW[..., None]
        return box, cover_HW

    def image(self) -> Pixels:
        """Return the image [H, W, 3] with sensor noise."""
        noise_HW3 = self._rng.integers(-14, 15, self._pixels_HW3.shape, np.int8)
        image_HW3: Pixels = np.clip(self._pixels_HW3 + noise_HW3, 0, 255).astype(np.uint8)
        return image_HW3

    def _texture(self, colour: Colour, size: int, strength: float) -> npt.NDArray[np.float32]:
        """Return a square texture of about one colour, with soft blotches."""
        blotches = self._rng.integers(0, 256, (6, 6, 3), np.uint8)
        soft = Image.fromarray(blotches).resize((size, size), Image.Resampling.BICUBIC)
        base = (colour - strength).astype(np.float32)
        texture_HW3: npt.NDArray[np.float32] = np.asarray(soft) * np.float32(strength / 127.5) + base
        return texture_HW3

    def _colour_of(self, hue: float) -> Colour:
        """Return a saturated colour, at most a third of the way to the hue of a neighbouring class."""
        turn = (hue + self._rng.uniform(-1, 1) / (3 * len(CLASSES))) % 1.0
        rgb = colorsys.hsv_to_rgb(turn, self._rng.uniform(0.7, 1.0), self._rng.uniform(0.7, 1.0))
        return np.array(rgb) * 255

    def _colour_unlike(self, other: Colour) -> Colour:
        """Return a random colour far from `other`; the colour cube always has one."""
        while True:
            colour = self._rng.uniform(0, 255, 3)
            if np.linalg.norm(colour - other) >= _LEAST_CONTRAST:
                return colour


def _cover(outlines: list[Points], angle: float, size: int) -> Cover:
    """Rasterise outlines, rotated by `angle`, to `size` x `size` pixels; the second one is a hole."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    fine = size * _OVERSAMPLED
    stencil = Image.new("L", (fine, fine))
    pen = ImageDraw.Draw(stencil)
    for outline, ink in zip(outlines, (255, 0), strict=False):
        pen.polygon([(float(x), float(y)) for x, y in (outline @ turn + 1) * (fine / 2)], fill=ink)
    cover = np.asarray(stencil.resize((size, size), Image.Resampling.BOX), np.float32)
    return cover / np.float32(255)


def _polygon(corners: int, radius: float = 1.0, inner: float | None = None) -> Points:
    """Return a regular polygon; with `inner`, a star whose every second corner has that radius."""
    count = corners if inner is None else 2 * corners
    angles = np.arange(count) * (2 * np.pi / count)
    radii = np.full(count, radius)
    if inner is not None:
        radii[1::2] = inner
    return np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)


def _box(width: float, height: float) -> Points:
    return np.array([[-width, -height], [width, -height], [width, height], [-width, height]])


def _cross() -> Points:
    a, b = 0.95, 0.3
    quarter = np.array([[b, b], [b, a], [-b, a]])
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.concatenate([quarter @ np.linalg.matrix_power(turn, k) for k in range(4)])


_OUTLINES: dict[str, Callable[[], list[Points]]] = {
    "circle": lambda: [_polygon(48, 0.9)],
    "ring": lambda: [_polygon(48), _polygon(48, 0.55)],
    "square": lambda: [_polygon(4)],
    "triangle": lambda: [_polygon(3)],
    "star": lambda: [_polygon(5, 1.0, 0.42)],
    "cross": lambda: [_cross()],
    "crescent": lambda: [_polygon(48), _polygon(48, 0.85) + np.array([0.5, 0.0])],
    "bar": lambda: [_box(0.97, 0.25)],
}


# Named datasets of torchvision, which downloads and unpacks them; mptui reads the files
# --------------------------------------------------------------------------------------
# Sets in one large array are stored as `.npy` files, which workers map into memory without torchvision.
# CIFAR consists of pickles, which torchvision opens only if their md5 sums match.

_LOOK_AROUND_S = 0.2
_TRIMAP = MaskCoding(("pet", "background", "border"), (1, 2, 3), (0, 1, 2))


@dataclass(frozen=True, slots=True)
class NamedSet:
    """A torchvision dataset: its class, the arguments of its halves, and access to its files."""

    factory: str
    train: Mapping[str, Any]
    val: Mapping[str, Any]
    train_samples: int
    """Number of training images, which is known without its files."""
    files: Callable[[Any], Sequence[tuple[Any, int]]] | None = None
    """Returns the image files with their classes; None: the set is one array."""
    masks: Callable[[Any], Sequence[Any]] | None = None
    coding: MaskCoding | None = None
    kinds: tuple[SampleKind, ...] = (SampleKind.CLASS,)
    side: int | None = None
    """Side of its images in pixels if they are small."""


NAMED: dict[str, NamedSet] = {
    "cifar10": NamedSet("CIFAR10", {"train": True}, {"train": False}, train_samples=50_000, side=32),
    "cifar100": NamedSet("CIFAR100", {"train": True}, {"train": False}, train_samples=50_000, side=32),
    "mnist": NamedSet("MNIST", {"train": True}, {"train": False}, train_samples=60_000, side=28),
    "fashionmnist": NamedSet(
        "FashionMNIST", {"train": True}, {"train": False}, train_samples=60_000, side=28
    ),
    "imagenette": NamedSet(
        "Imagenette",
        {"split": "train", "size": "160px"},
        {"split": "val", "size": "160px"},
        train_samples=9_469,
        files=lambda half: half._samples,
    ),
    "food101": NamedSet(
        "Food101",
        {"split": "train"},
        {"split": "test"},
        train_samples=75_750,
        files=lambda half: list(zip(half._image_files, half._labels, strict=True)),
    ),
    "oxford-pets": NamedSet(
        "OxfordIIITPet",
        {"split": "trainval"},
        {"split": "test"},
        train_samples=3_680,
        files=lambda half: list(zip(half._images, half._labels, strict=True)),
        masks=lambda half: half._segs,
        coding=_TRIMAP,
        kinds=(SampleKind.CLASS, SampleKind.MASK),
    ),
}


def fetch(name: str, root: str) -> None:
    """Download a set to `root` and unpack it, unless it is there already."""
    from torchvision import datasets

    known = NAMED[name]
    for half in (known.train, known.val):
        getattr(datasets, known.factory)(root, **half, download=True)


def main() -> None:
    """Download the set `argv[1]` to the folder `argv[2]`."""
    fetch(*sys.argv[1:])


def fetched(name: str, root: Path, should_stop: ShouldStop) -> None:
    """Run `fetch` in a separate process, as torchvision prints progress and can't be stopped otherwise.

    Raises:
        DataError: The set could not be downloaded.
        DiskError: Its folder can't be created.
        ScanCancelledError: `should_stop` returned True.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_room(root, error) from error
    with tempfile.TemporaryFile() as complaints:
        child = start(f"{__name__}:main", name, str(root), stderr=complaints)
        try:
            while child.poll() is None:
                if should_stop():
                    raise ScanCancelledError
                time.sleep(_LOOK_AROUND_S)
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            complaints.seek(0)
            last_line = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise DataError(
                f"{name} could not be downloaded: {clean(last_line)}",
                hint=f"check the network, or copy the set to {root}",
            )


def open_files(name: str, root: Path, kind: SampleKind) -> Found:
    """List the files of a set.

    Raises:
        DataError: The set is not in `root`, or incomplete.
    """
    known = NAMED[name]
    assert known.files is not None
    train, val = _splits(name, root)
    pairs = [*known.files(train), *known.files(val)]
    images = PathTable(str(path) for path, _ in pairs)
    train_rows = len(known.files(train))
    if kind is SampleKind.MASK:
        assert known.masks is not None
        masks = PathTable(str(path) for path in [*known.masks(train), *known.masks(val)])
        return Found(images, train_rows, masks=masks, coding=known.coding)
    labels = np.array([label for _, label in pairs], np.int64)
    return Found(images, train_rows, classes=_class_names(train), labels=labels)


def open_arrays(name: str, root: Path) -> Dataset:
    """Open a set in one array; the first time, write it to the cache folder, for mapping into memory.

    Raises:
        DataError: The set is not in `root`, or incomplete.
        DiskError: The cache folder can't be written.
    """
    key = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
    folder = cache_folder() / "arrays" / f"{name}-{key}"
    # The class names are written last: if they exist, the arrays are complete.
    arrays = (folder / f"{half}-{what}.npy" for half in ("train", "val") for what in ("images", "labels"))
    if load_json(folder / "classes.json") is None or not all(array.exists() for array in arrays):
        _write_arrays(folder, dict(zip(("train", "val"), _splits(name, root), strict=True)))
    train, val = (
        ArraySplit(str(folder / f"{half}-images.npy"), np.load(folder / f"{half}-labels.npy"))
        for half in ("train", "val")
    )
    classes = tuple(load_json(folder / "classes.json"))
    counts = np.bincount(train.labels, minlength=len(classes)).tolist()
    side = min(np.load(train.path, mmap_mode="r").shape[1:3])
    return Dataset(name, SampleKind.CLASS, classes, train, val, class_counts=counts, sides=(side, side, side))


def _splits(name: str, root: Path) -> tuple[Any, Any]:
    from torchvision import datasets

    known = NAMED[name]
    try:
        train, val = (getattr(datasets, known.factory)(root, **half) for half in (known.train, known.val))
    except (RuntimeError, OSError, ValueError, KeyError, EOFError, AssertionError) as error:
        raise DataError(
            f"{name} is not in {root}, or incomplete ({clean(str(error)) or type(error).__name__})",
            hint="add --download to download it, or give its folder with --set data.path=FOLDER",
        ) from error
    return train, val


def _write_arrays(folder: Path, halves: Mapping[str, Any]) -> None:
    try:
        # Each write is atomic, as another run may read or write the same files.
        for half, data in halves.items():
            images, labels = np.asarray(data.data, np.uint8), np.asarray(data.targets, np.int64)
            write_whole(folder / f"{half}-images.npy", partial(np.save, arr=images))
            write_whole(folder / f"{half}-labels.npy", partial(np.save, arr=labels))
    except OSError as error:
        raise _no_room(folder, error) from error
    save_json(folder / "classes.json", list(_class_names(halves["train"])))


def _no_room(folder: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{folder}: {error.strerror}",
        hint=disk_hint(error, folder, "set XDG_CACHE_HOME to a folder on another disk"),
    )


def _class_names(half: Any) -> tuple[str, ...]:  # noqa: ANN401 - a torchvision set of any kind
    """Return the names of the classes; if a class has several, the first."""
    return tuple(clean_name(name if isinstance(name, str) else name[0]) for name in half.classes)
