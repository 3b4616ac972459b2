"""Resizes and encodes samples in the child processes of `mptui prepare`.

Imports no torch. A sample is returned in the form of the prepared set: an image file and a mask file.
"""

import json
import sys
from base64 import b64decode, b64encode
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from mptui.data.core.parts import open_binary
from mptui.data.core.read_errors import reason_of, tried_again
from mptui.data.core.types import IGNORE, BadSampleError, Decoded, Mask
from mptui.data.decode.image import opened
from mptui.data.decode.mask import MaskCoding, MaskedFileRequest
from mptui.data.decode.request import FileRequest
from mptui.data.formats.sharded import ignored_value
from mptui.data.scan.check_sample import Sample
from mptui.data.scan.process_pool import Work
from mptui.data.transforms.resize import resized

_KEPT_FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "PPM": "ppm"}
_KEPT_OVERHEAD = 1 << 16
"""Bytes by which an original file may exceed its pixels to be stored unchanged."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the conversion of samples."""

    side: int
    """The shorter side in pixels that images are resized to."""
    quality: int
    """JPEG quality, 1 to 100; 0: PNG, lossless."""
    coding: MaskCoding | None
    """Coding of the masks, if there are masks."""

    def to_json(self) -> list[Any]:
        """Return the fields in order, ready for JSON."""
        coding = self.coding
        parts = None if coding is None else [coding.classes, coding.codes, coding.indices, coding.by_colour]
        if parts is not None and coding is not None and coding.upright is not None:
            parts.append(coding.upright)  # without it, sets begun by an earlier version go on
        return [self.side, self.quality, parts]

    @staticmethod
    def from_json(values: list[Any]) -> "Settings":
        """Create settings from the result of `to_json`."""
        side, quality, parts = values
        if parts is None:
            return Settings(side, quality, None)
        classes, codes, indices, *more = parts
        return Settings(side, quality, MaskCoding(tuple(classes), tuple(codes), tuple(indices), *more))


@dataclass(frozen=True, slots=True)
class Small:
    """A sample encoded for a prepared set; with a `reason`, an unusable one."""

    path: str = ""
    reason: str = ""
    kind: str = ""
    """File extension of the image's format."""
    image: bytes = b""
    mask: bytes = b""
    shorter: int = 0
    longer: int = 0
    pixels: tuple[int, ...] = ()
    """With masks: pixels of each class, and last the ignored ones."""

    def to_json(self) -> list[Any]:
        """Return the fields in order, ready for JSON."""
        image, mask = (b64encode(content).decode() for content in (self.image, self.mask))
        return [self.path, self.reason, self.kind, image, mask, self.shorter, self.longer, self.pixels]

    @staticmethod
    def from_json(values: list[Any]) -> "Small":
        """Create a sample from the result of `to_json`."""
        path, reason, kind, image, mask, shorter, longer, pixels = values
        return Small(path, reason, kind, b64decode(image), b64decode(mask), shorter, longer, tuple(pixels))


def shrinking(settings: Settings) -> Work[Small]:
    """Return the work of resizing and encoding samples."""
    return Work("mptui.data.convert.shrink", settings.to_json(), Small.from_json, Small)


def shrink(sample: Sample, settings: Settings) -> Small:
    """Decode, resize and encode a sample."""
    try:
        return tried_again(lambda: _shrunk(sample, settings))
    except BadSampleError as error:
        return Small(path=error.name, reason=error.reason)


def _shrunk(sample: Sample, settings: Settings) -> Small:
    path, mask_path = sample
    if mask_path is None:
        decoded = FileRequest(path, 0).read(settings.side)
    else:
        assert settings.coding is not None
        decoded = MaskedFileRequest(path, mask_path, settings.coding).read(settings.side)
    small = resized(decoded, settings.side)
    kind, image = _as_it_was(path, decoded) if small is decoded else ("", b"")
    if not image:
        kind, image = _encoded(small, settings.quality)
    height, width = small.image_HWC.shape[:2]
    mask, pixels = b"", tuple[int, ...]()
    if small.mask_HW is not None and settings.coding is not None:
        mask, pixels = _encoded_mask(small.mask_HW, len(settings.coding.classes))
    return Small("", "", kind, image, mask, min(height, width), max(height, width), pixels)


def main() -> None:
    """Answer each line of stdin, a JSON list [settings, samples], with a line of converted samples."""
    for line in sys.stdin:
        told, samples = json.loads(line)
        settings = Settings.from_json(told)
        answers = [shrink((path, mask), settings).to_json() for path, mask in samples]
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


def _as_it_was(path: str, decoded: Decoded) -> tuple[str, bytes]:
    """Return extension and bytes of the file if it can be stored unchanged, else empty ones.

    It must have been decoded at full size and be no larger than its pixels.
    """
    with opened(path) as image:
        kind, size = _KEPT_FORMATS.get(image.format or "", ""), image.size
    if not kind or size[0] * size[1] != decoded.image_HWC.shape[0] * decoded.image_HWC.shape[1]:
        return "", b""
    try:
        with open_binary(path) as file:
            content = file.read(decoded.image_HWC.nbytes + _KEPT_OVERHEAD + 1)
    except OSError as error:
        raise BadSampleError(path, reason_of(error)) from error
    return (kind, content) if len(content) <= decoded.image_HWC.nbytes + _KEPT_OVERHEAD else ("", b"")


def _encoded(sample: Decoded, quality: int) -> tuple[str, bytes]:
    content = BytesIO()
    image = Image.fromarray(sample.image_HWC)
    if quality == 0:
        image.save(content, "PNG", compress_level=3)
        return "png", content.getvalue()
    image.save(content, "JPEG", quality=quality)
    return "jpg", content.getvalue()


def _encoded_mask(mask_HW: Mask, classes: int) -> tuple[bytes, tuple[int, ...]]:
    """Return a mask as PNG with the class index of each pixel, and the number of pixels of each class."""
    ignored = ignored_value(classes)
    values_HW = np.where(mask_HW == IGNORE, ignored, mask_HW).astype(
        np.uint8 if ignored == 255 else np.uint16
    )
    counts = np.bincount(np.where(mask_HW == IGNORE, classes, mask_HW).ravel(), minlength=classes + 1)
    content = BytesIO()
    Image.fromarray(values_HW).save(content, "PNG")
    return content.getvalue(), tuple(counts.tolist())
