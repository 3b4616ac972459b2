"""Statistics of the difference between two precisions: the noise between seeds and that of validation images.

A final metric varies with the seed, and with the images that happen to be in the validation set. All seeds
are validated on the same images, so that an image's difference is in part common to them.

Shapes: S seeds, N validation images.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, hypot, inf, sqrt
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mptui.lab.bench.stats import t_quantile

TOLERANCE = 0.1
"""Difference in percentage points within which two precisions count as equal."""
MOST_SEEDS = 100
"""Largest number of seeds of a comparison."""
_MOST_TIMES = 10_000
"""Largest multiple of the validation images that is looked for."""
_CONFIDENCE = 0.95
_Z = 1.959964
_ROUNDING = 1e-9

Verdict = Literal["agrees", "differs", "undecided"]


@dataclass(frozen=True, slots=True)
class ImageNoise:
    """How much the difference of a validation image varies; variances in points squared of one image.

    Attributes:
        images: Number of images, N.
        common: Variance between images of what all seeds have in common.
        alone: Variance of what an image has with one seed alone; 0 with one seed, where all is in `common`.
        largest: Largest difference of an image, points; of one that turns from wrong to right if none
            differs.
    """

    images: int
    common: float
    alone: float
    largest: float

    @classmethod
    def of(cls, differences_SN: npt.NDArray[np.float64]) -> "ImageNoise":
        """Return the noise of differences by seed and image, fractions of 1."""
        points_SN = 100 * differences_SN
        S, N = points_SN.shape
        alone = 0.0
        if min(S, N) > 1:
            rest_SN = points_SN - points_SN.mean(0) - points_SN.mean(1, keepdims=True) + points_SN.mean()
            alone = float((rest_SN**2).sum()) / ((S - 1) * (N - 1))
        common = float(points_SN.mean(0).var()) - alone / S
        largest = float(np.abs(points_SN).max(initial=0.0))
        return cls(N, max(0.0, common), alone, largest or 100.0)

    def half(self, seeds: int, images: int) -> float:
        """Return half the interval that so many images allow, however many seeds there are.

        It is a score interval: where few images or none differ, as many may as the sample could have missed.
        For the counts of McNemar's test it is that of a Poisson count.
        """
        variance = self.common + self.alone / seeds
        unseen = self.largest * _Z / 2
        return _Z * (unseen + sqrt(images * variance + unseen**2)) / images


@dataclass(frozen=True, slots=True)
class Difference:
    """A precision's final metric minus FP32's, in percentage points, over the seeds.

    Attributes:
        each: By seed.
        mean: Their mean.
        noise: That of the validation images; None if they can't be compared one by one.
    """

    each: tuple[float, ...]
    mean: float
    noise: ImageNoise | None

    @property
    def low(self) -> float | None:
        """The lower end of the mean's 95 % confidence interval; None with one seed or without `noise`."""
        return self._end(-1)

    @property
    def high(self) -> float | None:
        """The upper end of it."""
        return self._end(1)

    def _end(self, sign: int) -> float | None:
        if self.noise is None or len(self.each) == 1:
            return None
        return self.mean + sign * self._half(self.noise, len(self.each), self.noise.images)

    @property
    def verdict(self) -> Verdict:
        """Agrees if the whole interval is within `TOLERANCE`, differs if it is beyond it, else undecided."""
        if self.low is None or self.high is None:
            return "undecided"
        if self.low >= -TOLERANCE - _ROUNDING and self.high <= TOLERANCE + _ROUNDING:
            return "agrees"
        return "differs" if self.low > TOLERANCE or self.high < -TOLERANCE else "undecided"

    def _half(self, noise: ImageNoise, seeds: int, images: int) -> float:
        """Return half the interval with so many seeds and images; inf with one seed.

        Student's t over the seeds holds what varies with the seed, and with an image in one seed; to it comes
        what the images have in common over the seeds.
        """
        if len(self.each) == 1 or seeds == 1:
            return inf
        between = stdev(self.each) ** 2 - noise.alone / noise.images + noise.alone / images
        over_seeds = t_quantile(_CONFIDENCE, seeds - 1) * sqrt(max(0.0, between) / seeds)
        return max(noise.half(seeds, images), hypot(over_seeds, _Z * sqrt(noise.common / images)))

    def needed(self) -> list["Needed"]:
        """Return what would decide, if the difference and the noise stay as they are.

        Other numbers of seeds, of images, or if neither would alone, of both; empty if nothing would, or it
        is decided.
        """
        noise = self.noise
        if noise is None or len(self.each) == 1 or self.verdict != "undecided":
            return []
        seeds, images = len(self.each), noise.images
        wanted = abs(abs(self.mean) - TOLERANCE)

        def decides(more: Needed) -> bool:
            return self._half(noise, more.seeds, more.images) <= wanted

        more_seeds = _first(decides, [Needed(n, images) for n in range(seeds + 1, MOST_SEEDS + 1)])
        times = [1.1**n for n in range(1, 97) if 1.1**n <= _MOST_TIMES]
        more_images = _first(decides, [Needed(seeds, _rounded_up(images * by)) for by in times])
        alone = [each for each in (more_seeds, more_images) if each is not None]
        both = [Needed(min(MOST_SEEDS, round(seeds * by + 0.5)), _rounded_up(images * by)) for by in times]
        return alone or [each for each in [_first(decides, both)] if each is not None]

    @property
    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        needed = [each._asdict() for each in self.needed()]
        return {**asdict(self), "low": self.low, "high": self.high, "needed": needed}


class Needed(NamedTuple):
    """Numbers of seeds and validation images that would decide."""

    seeds: int
    images: int


def _first(holds: Callable[[Needed], bool], of: Sequence[Needed]) -> Needed | None:
    return next((each for each in of if holds(each)), None)


def _rounded_up(images: float) -> int:
    """Round to two figures, as an estimate deserves."""
    unit: int = 10 ** max(0, len(str(int(images))) - 2)
    return unit * ceil(images / unit)


def difference(
    ours: Sequence[float], theirs: Sequence[float], by_image_SN: npt.NDArray[np.float64] | None
) -> Difference:
    """Compare final metrics seed by seed.

    Args:
        ours: Metrics of the precision, fractions of 1.
        theirs: Metrics of FP32, by the same seeds.
        by_image_SN: The difference of each validation image, such that its mean is that of the metric; None
            if it is unknown.

    Raises:
        ValueError: There are no seeds, or the numbers differ.
    """
    each = tuple(100 * (a - b) for a, b in zip(ours, theirs, strict=True))
    if not each:
        raise ValueError("no seeds")
    return Difference(each, mean(each), None if by_image_SN is None else ImageNoise.of(by_image_SN))


def between_seeds(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a final metric over seeds, in points; None for one seed."""
    return 100 * stdev(values) if len(values) > 1 else None
