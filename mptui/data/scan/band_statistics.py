"""Measures mean and standard deviation of each band over images as they are stored, in child processes.

Sums of integers are exact; those of float32 are float64 sums of each image, added without rounding. So the
result does not depend on the number of processes or on the order of their answers. Imports no torch.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np

from mptui.data.core.read_errors import tried_again
from mptui.data.core.types import BadSampleError, PixelFormat
from mptui.data.decode.stored import read_stored
from mptui.data.scan.check_sample import Sample
from mptui.data.scan.process_pool import Work, check_all
from mptui.data.scan.scan import OnProgress, ShouldStop, processors
from mptui.data.transforms.normalization import Normalization

_CHUNK = 8
_MOST_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class BandSums:
    """Number of pixels of an image, and for each band the sums of its values and of their squares."""

    pixels: int = 0
    sums: Sequence[float] = ()
    squares: Sequence[float] = ()


def measure(
    paths: Sequence[str], form: PixelFormat, on_progress: OnProgress, should_stop: ShouldStop
) -> Normalization:
    """Measure images of one format; those that can't be read any more are left out.

    Args:
        paths: The training images.
        form: Their format.
        on_progress: Called with (done, total) of images.
        should_stop: Called several times per second.

    Returns:
        Mean and standard deviation of each band over all pixels: uint8 in 0..1, others as stored. A band of
        one value has a standard deviation of 1.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    starts = range(0, len(paths), _CHUNK)

    def chunks() -> Iterator[list[Sample]]:
        for start in starts:
            yield [(path, None) for path in paths[start : start + _CHUNK]]

    work = Work(__name__, [form.bands, form.dtype], lambda values: BandSums(*values), _unread)
    pixels = 0
    sums, squares = ([Fraction(0)] * form.bands for _ in range(2))
    done = 0
    for found in check_all(chunks(), work, min(processors(), _MOST_PROCESSES, len(starts)), should_stop):
        for image in found:
            pixels += image.pixels
            for band, (total, square) in enumerate(zip(image.sums, image.squares, strict=True)):
                sums[band] += Fraction(total)
                squares[band] += Fraction(square)
        done += len(found)
        on_progress(done, len(paths))
    unit = 255 if form.dtype == "uint8" else 1
    means = [total / max(pixels, 1) for total in sums]
    variances = [square / max(pixels, 1) - mean**2 for square, mean in zip(squares, means, strict=True)]
    stds = [sqrt(variance) / unit if variance > 0 else 1.0 for variance in variances]
    return Normalization(tuple(float(mean / unit) for mean in means), tuple(stds))


def band_sums(path: str, form: PixelFormat) -> BandSums:
    """Return the sums of an image; zeros if it can't be read."""
    try:
        pixels_HWC = tried_again(lambda: read_stored(path, form).pixels_HWC)
    except BadSampleError:
        return BandSums()
    values_CN = pixels_HWC.reshape(-1, form.bands).T
    wide: Callable[[Any], Any] = np.int64 if values_CN.dtype.kind in "iu" else np.float64
    sums, squares = [], []
    for band_N in values_CN:  # one by one: all of them would take eight times the image's memory
        values_N = wide(band_N)
        sums.append(values_N.sum().item())
        squares.append((values_N * values_N).sum().item())
    return BandSums(values_CN.shape[1], sums, squares)


def _unread(_path: str, _reason: str) -> BandSums:
    return BandSums()


def main() -> None:
    """Answer each line of stdin, a JSON list [format, samples], with a line of sums, until stdin ends."""
    for line in sys.stdin:
        (bands, dtype), samples = json.loads(line)
        form = PixelFormat(bands, dtype)
        sys.stdout.write(json.dumps([astuple(band_sums(path, form)) for path, _ in samples]) + "\n")
        sys.stdout.flush()
