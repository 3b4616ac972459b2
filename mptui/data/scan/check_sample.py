"""Checks that samples can be read, in the child processes of the scan.

Decoders are C code: some write to the terminal past Python, and a hostile file may crash one. A child process
isolates both. Imports no torch: a child starts in a fraction of a second.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from mptui.data.core.read_errors import tried_again
from mptui.data.core.types import BadSampleError
from mptui.data.decode.image import is_finite, load_upright, opened
from mptui.data.decode.mask import MaskSurvey, survey, upright_mask

Sample = tuple[str, str | None]
"""An image file and the file of its mask, if it has one."""

_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
_END_BYTES = 64


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

    def to_json(self) -> list[Any]:
        """Return the fields in order, ready for JSON."""
        return list(astuple(self))

    @staticmethod
    def from_json(values: Sequence[Any]) -> "SampleCheck":
        """Create a check from the result of `to_json`."""
        path, reason, side, longer, mask, finite = values
        found = None if mask is None else survey_from_json(mask)
        return SampleCheck(path, reason, side, longer, found, bool(finite))


def survey_from_json(values: Sequence[Any]) -> MaskSurvey:
    """Create a survey from its fields in JSON."""
    kind, codes, counts, colours, lossy = values
    return MaskSurvey(kind, tuple(codes), tuple(counts), tuple(colours), bool(lossy))


def check(sample: Sample, whole: bool) -> SampleCheck:
    """Check whether a sample can be read.

    Args:
        sample: The image file, and its mask file.
        whole: Decode every pixel. Otherwise a JPEG or PNG file with a valid end counts as complete, and only
            its header is read.
    """
    try:
        return tried_again(lambda: _looked_at(sample, whole))
    except BadSampleError as error:
        return SampleCheck(path=error.name, reason=error.reason)


def _looked_at(sample: Sample, whole: bool) -> SampleCheck:
    path, mask_path = sample
    with opened(path) as image:
        stored = image.size
        if not whole and _ends_well(path, image):
            return SampleCheck(side=min(stored), longer=max(stored))
        image.draft(None, (1, 1))
        upright, orientation = load_upright(image)
        seen = SampleCheck(side=min(stored), longer=max(stored), finite=is_finite(upright))
    if mask_path is None:
        return seen
    with opened(mask_path) as file:
        mask = upright_mask(mask_path, file, stored, orientation)
        return replace(seen, mask=survey(mask_path, mask))


def main() -> None:
    """Answer each line of stdin, a JSON list [whole, samples], with a line of results, until stdin ends."""
    for line in sys.stdin:
        whole, samples = json.loads(line)
        findings = [check((path, mask_path), whole).to_json() for path, mask_path in samples]
        sys.stdout.write(json.dumps(findings) + "\n")
        sys.stdout.flush()


def _ends_well(path: str, image: Image.Image) -> bool:
    marker = _END_MARKERS.get(image.format or "")
    if marker is None:
        return False
    with Path(path).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _END_BYTES))
        return marker in file.read()
