"""Reads an image file as it is stored: all its bands, each value with all its bits.

A TIFF is read by tifffile, a PNG of 16 bits by OpenCV, as Pillow reduces both to 8 bits or refuses them; all
others by Pillow. OpenCV never reads a TIFF: of four bands of 16 bits it returns the first. Colours of a
palette become RGB; transparency is a band like the others. As with `mptui.data.decode.image`, the format is
detected from the content, the size is checked before any pixel is decoded, and the orientation is applied.

The bands of a TIFF are the samples of its pixels or, if they have one sample each, its pages of equal size.
"""

import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from PIL import Image
from PIL.ImageFile import ImageFile

from mptui.data.core.parts import is_part, open_binary
from mptui.data.core.types import DTYPES, BadSampleError, PixelFormat, Pixels
from mptui.data.decode.image import check_file, check_size, load_upright, opened, orientation_of, reason_for
from mptui.data.decode.jpeg import turned

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffFrame, TiffPage, TiffPageSeries

MAX_BYTES = 1 << 30
"""Largest decoded image in bytes."""

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of a TIFF and of a BigTIFF."""
_ORIENTATION_TAG, _BITS_TAG, _BANDS_TAG, _EXTRA_TAG, _KIND_TAG = 0x0112, 258, 277, 338, 339
_KINDS = {2: "int", 3: "float"}
_PALETTE = 3
_SAVED_AS_16_BITS = ";16B"
_PNG_BANDS = {"I": [0], "RGB": [2, 1, 0], "LA": [0, 3], "RGBA": [2, 1, 0, 3]}
"""Colour type of a PNG, in Pillow's words -> its bands in OpenCV's BGRA."""
_PLAIN_MODES = frozenset({"L", "LA", "RGB", "RGBA", "CMYK", "F", "I;16"})


@dataclass(frozen=True, slots=True)
class StoredImage:
    """An image as it is stored, upright."""

    pixels_HWC: Pixels
    size: tuple[int, int]
    """Width and height before it was turned."""
    orientation: int = 1
    """The EXIF orientation that it was stored with, 1 to 8."""
    finite: bool = True
    """False: some values were NaN or infinite; they are 0 now."""

    @property
    def format(self) -> PixelFormat:
        """The number of bands, and the type of their values."""
        return PixelFormat(self.pixels_HWC.shape[2], self.pixels_HWC.dtype.name)


def read_stored(path: str, expected: PixelFormat | None = None) -> StoredImage:
    """Decode an image file as it is stored.

    Args:
        path: The file.
        expected: The format that it must have.

    Raises:
        BadSampleError: The file can't be read, is no image, is too large, is damaged, has another format than
            expected, or values of another type than `DTYPES`.
    """
    try:
        check_file(path)
        image = _read_tiff(path) if _is_tiff(path) else _read_other(path)
    except BadSampleError:
        raise
    except Exception as error:
        # A damaged file makes parsers raise anything.
        raise BadSampleError(path, reason_for(error)) from error
    if expected is not None and image.format != expected:
        raise BadSampleError(path, other_format(image.format, expected))
    return _without_gaps(image)


def other_format(found: PixelFormat, expected: PixelFormat) -> str:
    """Return the reason why a file of another format than the rest of its set is not used."""
    return f"{found}, but the other images have {expected}"


def lossy_as_rgb(image: ImageFile) -> PixelFormat | None:
    """Return the format of an opened PNG or TIFF of which 8-bit RGB is only a part; None: it is ordinary.

    Call it before the pixels are decoded. Extra samples of a TIFF that it does not call alpha are bands.
    """
    if image.format == "PNG":
        return PixelFormat(len(_png_bands(image)), "uint16") if _has_16_bits(image) else None
    if image.format != "TIFF":
        return None
    tags: Any = getattr(image, "tag_v2", {})
    bits, kind = max(tags.get(_BITS_TAG, (1,))), tags.get(_KIND_TAG, (1,))[0]
    if bits <= 8 and 0 not in tags.get(_EXTRA_TAG, ()):
        return None
    return PixelFormat(int(tags.get(_BANDS_TAG, 1)), f"{_KINDS.get(kind, 'uint')}{bits}")


def stored_tiff_format(path: str) -> PixelFormat | None:
    """Return the format of a TIFF, from its header; None: it can't be read, or is none."""
    try:
        check_file(path)
        if not _is_tiff(path):
            return None
        with _opened_tiff(path) as file:
            return _tiff_format(file)
    except Exception:  # noqa: BLE001 - a damaged file makes the parser raise anything
        return None


def upright_tiff_size(path: str) -> tuple[int, int] | None:
    """Return height and width of a TIFF as it is decoded, from its header; None: it is none or unreadable.

    A reader of single pages sees another size where the rows of an image are pages.
    """
    try:
        check_file(path)
        if not _is_tiff(path):
            return None
        with _opened_tiff(path) as file:
            height, width = _tiff_size(file)
            return (width, height) if _tiff_orientation(file) >= 5 else (height, width)
    except Exception:  # noqa: BLE001 - a damaged file makes the parser raise anything
        return None


def _is_tiff(path: str) -> bool:
    with open_binary(path) as file:
        return file.read(4) in _TIFF


def _opened_tiff(path: str) -> "TiffFile":
    import tifffile  # 0.3 s, which only sets of TIFFs should pay

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # its warnings would corrupt the screen
    return tifffile.TiffFile(open_binary(path) if is_part(path) else path)


def _tiff_format(file: "TiffFile") -> PixelFormat:
    series = file.series[0]
    bands = series.keyframe.samplesperpixel
    if bands == 1:
        bands = series.size // (series.keyframe.imagelength * series.keyframe.imagewidth)
        if _are_rows(series):
            bands = series.shape[2]
    return PixelFormat(bands, "" if series.dtype is None else series.dtype.name)


def _tiff_size(file: "TiffFile") -> tuple[int, int]:
    """Return height and width before the orientation is applied."""
    series, page = file.series[0], file.pages.first
    if _are_rows(series):
        return series.shape[0], series.shape[1]
    return page.imagelength, page.imagewidth


def _tiff_orientation(file: "TiffFile") -> int:
    tag = file.pages.first.tags.get(_ORIENTATION_TAG)
    return 1 if tag is None else int(tag.value)


def _read_tiff(path: str) -> StoredImage:
    from tifffile import COMPRESSION

    with _opened_tiff(path) as file:
        series, page = file.series[0], file.pages.first
        found, rows = _tiff_format(file), _are_rows(series)
        height, width = _tiff_size(file)
        check_size(path, width, height)
        if found.dtype not in DTYPES:
            raise BadSampleError(
                path, f"values of {found.dtype or 'no type'}: only {', '.join(DTYPES)} are read"
            )
        if width * height * found.nbytes > MAX_BYTES:
            raise BadSampleError(
                path, f"{width}x{height} pixels of {found} are more than {MAX_BYTES >> 30} GiB"
            )
        if page.photometric == _PALETTE:
            raise BadSampleError(path, "a TIFF with a palette: save it as grey or RGB")
        stacked = page.samplesperpixel == 1
        _check_whole(path, file, series.pages if stacked else [page])
        orientation = _tiff_orientation(file)
        try:
            values = (series if stacked else page).asarray(maxworkers=1)
        except ValueError as error:
            if "imagecodecs" in str(error):
                how = COMPRESSION(page.compression).name
                raise BadSampleError(
                    path, f"compressed by {how}: pip install 'mptui[tiff]' to read it"
                ) from error
            raise
        axes = "YXS" if rows else series.get_axes(squeeze=False) if stacked else page.axes
        shape = values.shape if rows or not stacked else series.get_shape(squeeze=False)
    values = np.moveaxis(values.reshape(shape), (axes.index("Y"), axes.index("X")), (0, 1))
    pixels_HWC = np.ascontiguousarray(values.reshape(height, width, -1), np.dtype(found.dtype))
    return StoredImage(turned(pixels_HWC, orientation), (width, height), orientation)


def _are_rows(series: "TiffPageSeries") -> bool:
    """Whether the pages are the rows of an image [H, W, C], as tifffile writes such an array by default."""
    shape = series.shape
    return series.kind == "shaped" and series.axes == "QYX" and shape[2] < min(shape[0], shape[1])


def _check_whole(path: str, file: "TiffFile", pages: "Sequence[TiffPage | TiffFrame | None]") -> None:
    """Refuse a file that ends before its pixels, which tifffile would read as zeros."""
    for page in pages:
        if page is None:
            continue
        ends = zip(page.dataoffsets, page.databytecounts, strict=True)
        if max((at + count for at, count in ends), default=0) > file.filehandle.size:
            raise BadSampleError(path, "truncated: the end of the file is missing")


def _read_other(path: str) -> StoredImage:
    with opened(path) as image:
        if image.format == "PNG" and _has_16_bits(image):
            # looking for it behind the pixels would decode them
            orientation = orientation_of(image) if "exif" in image.info else 1
            return StoredImage(turned(_deep_png(path, image), orientation), image.size, orientation)
        size = image.size
        upright, orientation = load_upright(image)
        pixels = np.array(_plain(upright))
        if pixels.dtype.name not in DTYPES:
            raise BadSampleError(path, f"values of {pixels.dtype.name}: save it as TIFF or PNG")
        return StoredImage(pixels.reshape(*pixels.shape[:2], -1), size, orientation)


def _plain(image: Image.Image) -> Image.Image:
    """Convert palettes, single bits and rare colour spaces; return other images unchanged."""
    if image.mode in _PLAIN_MODES or image.mode.startswith("I"):
        return image
    if image.mode == "1":
        return image.convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def _has_16_bits(image: ImageFile) -> bool:
    return any(str(tile.args).endswith(_SAVED_AS_16_BITS) for tile in image.tile)


def _png_bands(image: ImageFile) -> list[int]:
    return _PNG_BANDS[str(image.tile[0].args).partition(";")[0]]


def _deep_png(path: str, image: ImageFile) -> Pixels:
    """Decode an opened PNG of 16 bits."""
    assert image.fp is not None
    image.fp.seek(0)
    content = image.fp.read()
    _check_chunks(path, content)
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.dtype != np.uint16:
        raise BadSampleError(path, "damaged (its pixels can't be decoded)")
    bands = _png_bands(image)
    pixels_HWC: Pixels = np.ascontiguousarray(pixels.reshape(*pixels.shape[:2], -1)[..., bands])
    return pixels_HWC


def _check_chunks(path: str, content: bytes) -> None:
    """Refuse a PNG with a missing end or a wrong checksum, of which OpenCV may decode a part."""
    at = 8
    while content[at + 4 : at + 8] != b"IEND":
        length = int.from_bytes(content[at : at + 4], "big")
        end = at + 8 + length
        if end + 4 > len(content):
            raise BadSampleError(path, "truncated: the end of the file is missing")
        if zlib.crc32(content[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            raise BadSampleError(path, "damaged (wrong checksum)")
        at = end + 4


def _without_gaps(image: StoredImage) -> StoredImage:
    """Replace NaN and infinity by 0, as a single one would make the loss NaN."""
    if image.pixels_HWC.dtype.kind != "f" or np.isfinite(image.pixels_HWC).all():
        return image
    known_HWC = np.nan_to_num(image.pixels_HWC, nan=0.0, posinf=0.0, neginf=0.0)
    return replace(image, pixels_HWC=known_HWC, finite=False)
