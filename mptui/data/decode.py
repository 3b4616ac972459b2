"""Reads an image file: as upright RGB, or as it is stored, whatever is wrong with it.

In place of torchvision's `ImageFolder` with its transforms, over whose photos at 224 px it takes half of the
processor time (2.1 times as fast, in two processes 2.4 times, `benchmarks.input`): a JPEG is decoded at the
size that is needed, and resampled by OpenCV.
"""

import logging
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, UnidentifiedImageError
from PIL.IcoImagePlugin import IcoFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from mptui.data.address import is_part, open_binary, read_part, status_of, title_of
from mptui.data.transforms import flipped
from mptui.data.types import DTYPES, BadSampleError, Decoded, PixelFormat, Pixels, reason_of

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffFrame, TiffPage, TiffPageSeries


# Reads an image file as it is stored: all its bands, each value with all its bits
# --------------------------------------------------------------------------------
# A TIFF is read by tifffile, a PNG of 16 bits by OpenCV, as Pillow reduces both to 8 bits or refuses them;
# all others by Pillow. OpenCV never reads a TIFF: of four bands of 16 bits it returns the first. Colours of
# a palette become RGB; transparency is a band like the others. As with `mptui.data.decode`, the
# format is detected from the content, the size is checked before any pixel is decoded, and the orientation
# is applied.
#
# The bands of a TIFF are the samples of its pixels or, if they have one sample each, its pages of equal
# size.

MAX_BYTES = 1 << 30
"""Largest decoded image in bytes."""

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
"""The first bytes of a TIFF and of a BigTIFF."""
_TIFF_ORIENTATION_TAG, _BITS_TAG, _BANDS_TAG, _EXTRA_TAG, _KIND_TAG = 0x0112, 258, 277, 338, 339
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
    tag = file.pages.first.tags.get(_TIFF_ORIENTATION_TAG)
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
    return StoredImage(turned_pixels(pixels_HWC, orientation), (width, height), orientation)


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
            return StoredImage(turned_pixels(_deep_png(path, image), orientation), image.size, orientation)
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


# Sizes of the images inside an icon (ICO), from their headers
# ------------------------------------------------------------
# Pillow decodes an icon as it opens it, at the size of an image inside that the icon's own header doesn't
# tell.

_PNG = b"\x89PNG\r\n\x1a\n"


def icon_sizes(file: IO[bytes]) -> list[tuple[int, int]]:
    """Return width and height of each image of an icon, in pixels.

    Raises:
        SyntaxError: It is no icon.
        struct.error: A header is cut off.
    """
    return [_size_at(file, entry.offset) for entry in IcoFile(file).entry]


def _size_at(file: IO[bytes], offset: int) -> tuple[int, int]:
    file.seek(offset)
    header = file.read(24)
    if header.startswith(_PNG):
        width, height = struct.unpack(">II", header[16:24])
        return width, height
    width, rows = struct.unpack("<ii", header[4:12])
    return abs(width), abs(rows) // 2  # the rows of its mask follow those of its colours


# Reads an image file as upright RGB, or reports a short reason why it can't be read
# ----------------------------------------------------------------------------------
# The format is detected from the content, never from the name, and only those in `FORMATS` are tried: an
# EPS named `.jpg` would start Ghostscript. The size is checked in the header, before any pixel is decoded,
# also of each image in an icon. The EXIF orientation is applied, transparency is composited over white,
# only the first frame of an animation is read, and grey of more than 8 bits is scaled, not clipped.

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")
EXTENSIONS = frozenset(
    "." + ending
    for ending in (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "bmp", "dib", "gif", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "jpx", "avif", "ico"),
    )
)
MAX_PIXELS = 50_000_000
MAX_SIDE = 16_384

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TRANSPARENT_MODES = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})

# Pillow warns about odd metadata and about sizes that are refused here; warnings would corrupt the screen.
warnings.filterwarnings("ignore", module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@contextmanager
def opened(path: str, *, whole: bool = False) -> Iterator[ImageFile]:
    """Open an image of a valid size; any exception in the context becomes a `BadSampleError`.

    Args:
        path: The address of the file.
        whole: All of it will be read; a part of a file is then read at once.

    Raises:
        BadSampleError: The file can't be read, is no image, is too large, or is damaged.
    """
    try:
        with _open(path, whole=whole) as image:
            check_size(path, *image.size)
            yield image
    except BadSampleError:
        raise
    except UnidentifiedImageError as error:
        raise BadSampleError(path, _unidentified(path)) from error
    except Exception as error:
        # A damaged file makes Pillow's parsers raise anything.
        raise BadSampleError(path, reason_for(error)) from error


def _open(path: str, *, whole: bool) -> ImageFile:
    """Open an image of a format that Pillow opens without decoding it, or an icon whose images are no larger.

    Raises:
        UnidentifiedImageError: It is neither.
        BadSampleError: An image of the icon is empty or too large.
    """
    try:
        image = Image.open(_source(path, whole=whole), formats=FORMATS)
        if image.format == "TIFF":
            image.filename = (
                ""  # Pillow maps the file with the sides of the turned image, which mixes its rows
            )
        return image
    except UnidentifiedImageError as unidentified:
        with open_binary(path) as file:
            try:
                sizes = icon_sizes(file)
            except (SyntaxError, struct.error):
                raise unidentified from None
        for size in sizes:
            check_size(path, *size)
        return Image.open(_source(path, whole=whole), formats=("ICO",))


def _source(path: str, *, whole: bool) -> str | IO[bytes]:
    if is_part(path):
        return BytesIO(read_part(path)) if whole else open_binary(path)
    check_file(path)
    return path


def load_upright(image: Image.Image) -> tuple[Image.Image, int]:
    """Decode an opened image and apply its EXIF orientation.

    Returns:
        The upright image, and the orientation (1 to 8) that it was stored with.
    """
    if image.format == "TIFF" and (orientation := orientation_of(image)) != 1:
        image.load()  # which turns it, and forgets the orientation
        return turned(image, orientation_of(image)), orientation
    image.load()  # an orientation behind the pixels of a PNG is known then
    orientation = orientation_of(image)
    return turned(image, orientation), orientation


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height of an opened image as it is stored; Pillow gives a TIFF's as it is shown."""
    if image.format == "TIFF" and orientation_of(image) >= 5:
        return image.height, image.width
    return image.size


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Turn an image stored with an EXIF `orientation` upright."""
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def read_rgb(path: str, side_hint: int | None = None) -> Pixels:
    """Decode an image file as upright RGB, uint8 [H, W, 3]; writable.

    Args:
        path: The file.
        side_hint: A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size while its shorter side stays at
            least this many pixels, which is much faster.

    Raises:
        BadSampleError: The file can't be read, is no image, is too large, or is damaged.
    """
    with opened(path, whole=True) as image:
        return upright_rgb(image, side_hint)[0]


def upright_rgb(image: Image.Image, side_hint: int | None) -> tuple[Pixels, int]:
    """Decode an opened image as upright RGB; see `read_rgb`.

    Returns:
        uint8 [H, W, 3], and the orientation (1 to 8) that the image was stored with.
    """
    pixels_HW3 = decoded(image, side_hint)
    if pixels_HW3 is not None:
        orientation = orientation_of(image)
        return turned_pixels(pixels_HW3, orientation), orientation
    if side_hint is not None:
        image.draft(None, (side_hint, side_hint))
    upright, orientation = load_upright(image)
    return to_rgb(upright), orientation


def to_rgb(image: Image.Image) -> Pixels:
    """Convert a decoded image of any mode to RGB, uint8 [H, W, 3].

    Transparency is composited over white. 16-bit grey is scaled by 1/257; 32-bit grey and float, whose range
    is unknown, by their smallest and largest finite value, with NaN as black.
    """
    if image.mode in _DEEP_MODES:
        return np.stack([_deep_grey(image)] * 3, axis=-1)
    if image.mode in _TRANSPARENT_MODES or "transparency" in image.info:
        return np.array(_over_white(image.convert("RGBA")))
    return np.array(image.convert("RGB"))


def is_finite(image: Image.Image) -> bool:
    """Whether all pixels of a decoded image are finite; only float images can hold NaN or infinity."""
    return image.mode != "F" or bool(np.isfinite(np.asarray(image)).all())


def _over_white(image: Image.Image) -> Image.Image:
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image).convert("RGB")


def _deep_grey(image: Image.Image) -> Pixels:
    values_HW = np.asarray(image)
    # Pillow scales a 16-bit PGM to 0..65535, but calls it 32-bit.
    if image.mode.startswith("I;16") or image.format == "PPM":
        grey_HW: Pixels = np.rint(values_HW / np.float32(257.0)).astype(np.uint8)
        return grey_HW
    return _by_own_range(values_HW.astype(np.float64))


def _by_own_range(values_HW: npt.NDArray[np.float64]) -> Pixels:
    finite = values_HW[np.isfinite(values_HW)]
    if finite.size == 0 or finite.min() == finite.max():
        return np.zeros(values_HW.shape, np.uint8)
    low, high = finite.min(), finite.max()
    known_HW = np.nan_to_num(values_HW, nan=low, posinf=high, neginf=low)
    grey_HW: Pixels = np.rint((known_HW - low) * (255.0 / (high - low))).astype(np.uint8)
    return grey_HW


def orientation_of(image: Image.Image) -> int:
    """Read the EXIF orientation; 1 if there is none, or the EXIF block is damaged."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - only the metadata is damaged, not the pixels
        return 1
    return orientation if orientation in _UPRIGHT else 1


def check_file(path: str) -> None:
    """Refuse pipes, sockets and devices, as a read from one may never end.

    Raises:
        BadSampleError: The path is one of them.
        OSError: The file is missing.
    """
    if is_part(path):  # its file is checked when it is opened
        return
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind not in {stat.S_IFREG, stat.S_IFDIR}:
        raise BadSampleError(path, "not a file")


def check_size(path: str, width: int, height: int) -> None:
    """Refuse an image that is empty or too large.

    Raises:
        BadSampleError: It is.
    """
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise BadSampleError(
            path,
            f"{width}x{height} pixels is too large: at most {MAX_PIXELS // 1_000_000} megapixels"
            f" and {MAX_SIDE} a side",
        )
    if min(width, height) < 1:
        raise BadSampleError(path, f"{width}x{height} pixels: empty image")


def _unidentified(path: str) -> str:
    try:
        size = status_of(path)[0]
    except OSError as error:  # it has just been removed
        return reason_for(error)
    return "empty (0 bytes)" if size == 0 else "not an image, or of an unsupported format"


def reason_for(error: Exception) -> str:
    """Return the short reason why a file can't be read."""
    if isinstance(error, Image.DecompressionBombError):
        return f"too large: at most {MAX_PIXELS // 1_000_000} megapixels"
    if isinstance(error, OSError) and error.strerror:
        return reason_of(error)
    if "truncated" in str(error).lower():
        return "truncated: the end of the file is missing"
    return f"damaged ({str(error) or type(error).__name__})"


# Decodes JPEG files with libjpeg-turbo directly into arrays
# ----------------------------------------------------------
# Pillow uses the same decoder, so the pixels are the same, without copies between images and arrays.
# Handles intact 8-bit RGB and grey files; Pillow decodes all others, and it alone decides which files can
# be read and which errors are reported.

_MODES = frozenset({"RGB", "L"})
_TURNS = {
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
"""EXIF orientation -> transpose, mirror left to right, mirror top to bottom."""


def decoded(image: Image.Image, side_hint: int | None) -> Pixels | None:
    """Decode an opened file as RGB, in its stored orientation.

    Args:
        image: The file, opened by Pillow, with its header read.
        side_hint: Decode at 1/2, 1/4 or 1/8 of the size while the shorter side stays at least this many
            pixels.

    Returns:
        uint8 [H, W, 3], or None if Pillow has to decode the file.
    """
    file = image.fp if isinstance(image, JpegImageFile) and image.mode in _MODES else None
    if file is None:
        return None
    file.seek(0)
    data = file.read()
    shrink = shrink_of(min(image.size), side_hint)
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if (width, height) != image.size:  # the file has two sizes, and Pillow has checked the other
            return None
        pixels_HW3: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", min_height=-(-height // shrink), min_width=-(-width // shrink)
        )
    except (ValueError, KeyError, RuntimeError):  # also raised for unusual but valid files
        return None
    return pixels_HW3


def turned_pixels(image_HWC: Pixels, orientation: int) -> Pixels:
    """Turn an image stored with an EXIF `orientation` upright."""
    if orientation not in _TURNS:
        return image_HWC
    transposed, mirrored_x, mirrored_y = _TURNS[orientation]
    return flipped(image_HWC, transposed=transposed, mirrored_x=mirrored_x, mirrored_y=mirrored_y)


def shrink_of(shorter: int, side_hint: int | None) -> int:
    """Return the factor (1, 2, 4 or 8) that Pillow's `draft` chooses; libjpeg-turbo is no faster at others.

    Args:
        shorter: The shorter side of the file in pixels.
        side_hint: Smallest shorter side to decode to, in pixels; None: the full size.
    """
    if side_hint is None:
        return 1
    return next(each for each in (8, 4, 2, 1) if shorter // side_hint >= each or each == 1)


# Requests that read a sample from an image file, or from an array of images
# --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRequest:
    """An image file and its class."""

    path: str
    label: int
    stored: PixelFormat | None = None
    """The format in which the file is read as it is stored; None: as 8-bit RGB."""

    @property
    def name(self) -> str:
        """The path of the file."""
        return title_of(self.path)

    def read(self, side_hint: int | None = None) -> Decoded:
        """Decode the file; see `SampleRequest.read`."""
        if self.stored is not None:
            return Decoded(read_stored(self.path, self.stored).pixels_HWC, label=self.label)
        return Decoded(read_rgb(self.path, side_hint), label=self.label)


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """Image `index` of a uint8 array in an `.npy` file, [N, H, W] or [N, H, W, 3], and its class."""

    path: str
    index: int
    label: int

    @property
    def name(self) -> str:
        """Path of the array, and the image's position in it."""
        return f"{self.path}[{self.index}]"

    def read(self, side_hint: int | None = None) -> Decoded:
        """Copy the image out of the file; see `SampleRequest.read`."""
        try:
            image = np.array(_mapped(self.path)[self.index])
        except (OSError, ValueError, IndexError) as error:
            raise BadSampleError(self.name, reason_for(error)) from error
        return Decoded(np.stack([image] * 3, axis=-1) if image.ndim == 2 else image, label=self.label)


@lru_cache(maxsize=8)
def _mapped(path: str) -> Pixels:
    """Map an array into memory, once in a process."""
    array: Pixels = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
