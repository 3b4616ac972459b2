"""Reads an image file as upright RGB, or reports a short reason why it can't be read.

The format is detected from the content, never from the name, and only those in `FORMATS` are tried: an EPS
named `.jpg` would start Ghostscript. The size is checked in the header, before any pixel is decoded, also
of each image in an icon. The EXIF orientation is applied, transparency is composited over white, only the
first frame of an animation is read, and grey of more than 8 bits is scaled, not clipped.
"""

import os
import stat
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from mptui.data.core.parts import is_part, open_binary, status_of
from mptui.data.core.read_errors import reason_of
from mptui.data.core.types import BadSampleError, Pixels
from mptui.data.decode import jpeg
from mptui.data.decode.icon import icon_sizes

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
def opened(path: str, content: bytes | None = None) -> Iterator[ImageFile]:
    """Open an image of a valid size; any exception in the context becomes a `BadSampleError`.

    Args:
        path: The address of the file, or its name in messages.
        content: The bytes of the file, if they were read already.

    Raises:
        BadSampleError: The file can't be read, is no image, is too large, or is damaged.
    """
    try:
        with _open(path, content) as image:
            check_size(path, *image.size)
            yield image
    except BadSampleError:
        raise
    except UnidentifiedImageError as error:
        raise BadSampleError(path, _unidentified(path, content)) from error
    except Exception as error:
        # A damaged file makes Pillow's parsers raise anything.
        raise BadSampleError(path, reason_for(error)) from error


def _open(path: str, content: bytes | None) -> ImageFile:
    """Open an image of a format that Pillow opens without decoding it, or an icon whose images are no larger.

    Raises:
        UnidentifiedImageError: It is neither.
        BadSampleError: An image of the icon is empty or too large.
    """
    try:
        image = Image.open(_source(path, content), formats=FORMATS)
        if image.format == "TIFF":
            image.filename = (
                ""  # Pillow maps the file with the sides of the turned image, which mixes its rows
            )
        return image
    except UnidentifiedImageError as unidentified:
        with BytesIO(content) if content is not None else open_binary(path) as file:
            try:
                sizes = icon_sizes(file)
            except (SyntaxError, struct.error):
                raise unidentified from None
        for size in sizes:
            check_size(path, *size)
        return Image.open(_source(path, content), formats=("ICO",))


def _source(path: str, content: bytes | None) -> str | IO[bytes]:
    if content is not None:
        return BytesIO(content)
    check_file(path)
    return open_binary(path) if is_part(path) else path


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


def read_rgb(path: str, side_hint: int | None = None, content: bytes | None = None) -> Pixels:
    """Decode an image file as upright RGB, uint8 [H, W, 3]; writable.

    Args:
        path: The file.
        side_hint: A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size while its shorter side stays at
            least this many pixels, which is much faster.
        content: The bytes of the file, if they were read already.

    Raises:
        BadSampleError: The file can't be read, is no image, is too large, or is damaged.
    """
    with opened(path, content) as image:
        return upright_rgb(image, side_hint)[0]


def upright_rgb(image: Image.Image, side_hint: int | None) -> tuple[Pixels, int]:
    """Decode an opened image as upright RGB; see `read_rgb`.

    Returns:
        uint8 [H, W, 3], and the orientation (1 to 8) that the image was stored with.
    """
    pixels_HW3 = jpeg.decoded(image, side_hint)
    if pixels_HW3 is not None:
        orientation = orientation_of(image)
        return jpeg.turned(pixels_HW3, orientation), orientation
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


def _unidentified(path: str, content: bytes | None) -> str:
    try:
        size = status_of(path)[0] if content is None else len(content)
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
