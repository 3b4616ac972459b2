"""Writes masks as PNG files of class numbers, and as overlays on their images for people.

OUT/masks/a.png      each pixel is the number of its class; a palette shows them as colours
OUT/overlays/a.png   the image with its mask in these colours, at most 1024 pixels wide and high
OUT/masks/classes.toml   the names of the numbers, as `mptui run --data` reads them beside masks
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import tomli_w
from PIL import Image

from mptui.data.core.class_colours import BACKGROUND, Palette, palette
from mptui.data.core.types import BadSampleError
from mptui.data.decode.image import read_rgb
from mptui.data.formats.masks.class_file import CLASS_FILE
from mptui.lab.use.prediction.inputs import InputFiles
from mptui.lab.use.prediction.output_file import output_file

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
        single: Write one mask to `folder` itself.
    """

    def __init__(self, folder: Path, files: InputFiles, classes: Sequence[str], *, single: bool) -> None:
        self._folder, self._files, self._classes, self._single = folder, files, classes, single
        self._palette = palette(classes)
        self._shared_stems = _shared(files)
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
        stem = self._stem(index)
        mask = self._folder if self._single else self._folder / MASKS / f"{stem}.png"
        _save(_picture(mask_HW, self._palette), mask)
        overlay = None if self._single else self._overlay(index, mask_HW, stem)
        counts = np.bincount(mask_HW.reshape(-1), minlength=len(self._classes)) / max(1, mask_HW.size)
        shares = {name: float(share) for name, share in zip(self._classes, counts, strict=True) if share}
        return WrittenMask(index, mask, overlay, shares)

    def _overlay(self, index: int, mask_HW: Mask, stem: str) -> Path | None:
        try:
            image_HW3 = read_rgb(self._files.paths[index], _OVERLAY_SIDE)
        except BadSampleError:  # of many bands: there is nothing to see
            return None
        path = self._folder / OVERLAYS / f"{stem}.png"
        _save(overlay(image_HW3, mask_HW, self._palette, shows_first=self._classes[0] != BACKGROUND), path)
        return path

    def _stem(self, index: int) -> str:
        """Return the name of a file without its extension, unless another file has the same."""
        name = self._files.relative(index)
        stem = name.removesuffix(Path(name).suffix)
        return name if stem in self._shared_stems else stem

    def _write_classes(self) -> None:
        path = self._folder / MASKS / CLASS_FILE
        numbers = {name: number for number, name in enumerate(self._classes)}
        with output_file(path) as fresh:
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


def _save(picture: Image.Image, path: Path) -> None:
    with output_file(path) as fresh:
        picture.save(fresh, "PNG", compress_level=_FAST)


def _shared(files: InputFiles) -> frozenset[str]:
    """Return the names without extension that several files have."""
    names = (files.relative(index) for index in range(len(files.paths)))
    stems = Counter(name.removesuffix(Path(name).suffix) for name in names)
    return frozenset(stem for stem, count in stems.items() if count > 1)
