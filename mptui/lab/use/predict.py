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
from mptui.io.written_files import OutputFiles
from mptui.lab.use.prediction.inputs import InputFiles

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
        self._folder, self._files, self._classes, self._single = folder, files, classes, single
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
