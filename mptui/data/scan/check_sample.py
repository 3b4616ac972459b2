"""Checks that samples can be read, in the child processes of the scan.

Decoders are C code: some write to the terminal past Python, and a hostile file may crash one. A child process
isolates both. Imports no torch: a child starts in a fraction of a second.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from PIL import Image

from mptui.data.core.parts import open_binary
from mptui.data.core.read_errors import tried_again
from mptui.data.core.types import BadSampleError, PixelFormat
from mptui.data.decode.image import is_finite, load_upright, opened, stored_size
from mptui.data.decode.mask import MaskSurvey, Size, opened_mask, surveyed
from mptui.data.decode.stored import lossy_as_rgb, read_stored, stored_tiff_format

Sample = tuple[str, str | None]
"""An image file and the file of its mask, if it has one."""

NOT_RGB = ', which data.bands = "rgb" can\'t read'
"""End of the reason of a file that only `data.bands = "all"` reads."""

_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
_END_BYTES = 64
_PAGE_TYPE, _NO_PAGE = 254, 0b101


@dataclass(frozen=True, slots=True)
class SampleCheck:
    """Result of the check of a sample: the unusable file and the reason, or its sides in pixels."""

    path: str = ""
    reason: str = ""
    side: int = 0
    """The shorter side in pixels; 0 if the sample can't be used."""
    longer: int = 0
    mask: MaskSurvey | None = None
    finite: bool = True
    """False: some pixels are NaN or infinite; the sample is still usable."""
    pixels: PixelFormat | None = None
    """The format of the image as it is stored; if it is read as 8-bit RGB, only where that loses some."""

    def to_json(self) -> list[Any]:
        """Return the fields in order, ready for JSON."""
        return list(astuple(self))

    @staticmethod
    def from_json(values: Sequence[Any]) -> "SampleCheck":
        """Create a check from the result of `to_json`."""
        path, reason, side, longer, mask, finite, pixels = values
        found = None if mask is None else survey_from_json(mask)
        form = None if pixels is None else PixelFormat(*pixels)
        return SampleCheck(path, reason, side, longer, found, bool(finite), form)


def survey_from_json(values: Sequence[Any]) -> MaskSurvey:
    """Create a survey from its fields in JSON."""
    kind, codes, counts, colours, lossy, even, between, fit, (regions, compact) = values
    columns = tuple(codes), tuple(counts), tuple(colours)
    return MaskSurvey(kind, *columns, bool(lossy), tuple(even), tuple(between), fit, (regions, compact))


class _StackError(BadSampleError):
    """A TIFF of several pages."""


def check(sample: Sample, whole: bool, stored: bool = False) -> SampleCheck:
    """Check whether a sample can be read.

    Args:
        sample: The image file, and its mask file.
        whole: Decode every pixel. Otherwise a JPEG or PNG file with a valid end counts as complete, and only
            its header is read.
        stored: The image is read as it is stored, always whole; otherwise as 8-bit RGB.
    """
    try:
        return tried_again(lambda: _looked_at(sample, whole, stored))
    except BadSampleError as error:
        return SampleCheck(path=error.name, reason=error.reason)


def _looked_at(sample: Sample, whole: bool, stored: bool) -> SampleCheck:
    path, mask_path = sample
    seen, size, orientation = _as_stored(path) if stored else _as_rgb(path, whole or mask_path is not None)
    if mask_path is None:
        return seen
    with opened_mask(mask_path) as file:
        _refuse_stack(mask_path, file)
        return replace(seen, mask=surveyed(mask_path, file, size, orientation))


def _as_stored(path: str) -> tuple[SampleCheck, Size, int]:
    image = read_stored(path)
    side, longer = sorted(image.size)
    seen = SampleCheck(side=side, longer=longer, finite=image.finite, pixels=image.format)
    return seen, image.size, image.orientation


def _as_rgb(path: str, whole: bool) -> tuple[SampleCheck, Size, int]:
    try:
        with opened(path) as image:
            _refuse_stack(path, image)
            size = stored_size(image)
            seen = SampleCheck(side=min(size), longer=max(size), pixels=lossy_as_rgb(image))
            if not whole and _ends_well(path, image):
                return seen, size, 1
            image.draft(None, (1, 1))
            upright, orientation = load_upright(image)
            return replace(seen, finite=is_finite(upright)), size, orientation
    except _StackError:
        raise
    except BadSampleError as error:
        if (found := stored_tiff_format(path)) is None:
            raise
        raise BadSampleError(path, f"{found}{NOT_RGB}") from error


def _refuse_stack(path: str, image: Image.Image) -> None:
    """Refuse a TIFF of several pages, of which the first alone would be read.

    Smaller copies and transparency masks (bits 0 and 2 of the type of a page) are no pages of their own.

    Raises:
        BadSampleError: It has several.
    """
    if image.format != "TIFF" or getattr(image, "n_frames", 1) == 1:
        return
    pages = 0
    for number in range(image.n_frames):  # type: ignore[attr-defined] # a TIFF has it
        image.seek(number)
        pages += not image.tag_v2.get(_PAGE_TYPE, 0) & _NO_PAGE  # type: ignore[attr-defined]
    image.seek(0)
    if pages > 1:
        raise _StackError(path, f"a stack of {pages} pages: save each as a file of its own")


def main() -> None:
    """Answer each line of stdin, a JSON list [[whole, stored], samples], until stdin ends."""
    for line in sys.stdin:
        (whole, stored), samples = json.loads(line)
        findings = [check((path, mask_path), whole, stored).to_json() for path, mask_path in samples]
        sys.stdout.write(json.dumps(findings) + "\n")
        sys.stdout.flush()


def _ends_well(path: str, image: Image.Image) -> bool:
    marker = _END_MARKERS.get(image.format or "")
    if marker is None:
        return False
    with open_binary(path) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _END_BYTES))
        return marker in file.read()
