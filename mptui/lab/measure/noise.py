"""The noise of a comparison of trained runs: over seeds, and image by image."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, hypot, inf, nan, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import Batch
from mptui.engine.evaluate import evaluate
from mptui.engine.micro_batches import rows_of
from mptui.lab.measure.core import t_quantile
from mptui.lab.use.evaluate import HalvingBatches, open_samples
from mptui.lab.use.trained import open_trained
from mptui.runs.planning.build import LoaderMaker
from mptui.runs.store.directory import LAST
from mptui.tasks.base import Task

# The primary metric of trained runs, image by image: what each validation image adds to it
# -----------------------------------------------------------------------------------------
# The last checkpoint of a run is validated once more. A metric that is no mean over images, such as the
# IoU, is taken apart by the jackknife: an image's value is that of which the metric without the image lacks
# 1/N (B. Efron, "The jackknife, the bootstrap and other resampling plans", SIAM 1982). Of the accuracy,
# these are 1 for an image that is right and 0 for others.
#
# Shapes: S seeds, N validation images.

UNITS = 1000
"""Largest number of units of a metric with many sums, such as a confusion matrix: images share them."""
_FEW_SUMS = 64

Note = Callable[[str], None]


def differences_by_image(
    pairs: Sequence[tuple[Path, Path]],
    metric: str,
    *,
    trust_code: bool,
    note: Note,
    check_stop: Callable[[], None],
) -> npt.NDArray[np.float64] | None:
    """Return by seed and image how much a precision's metric is above FP32's, differences_SN.

    Args:
        pairs: Run directories of the precision and of FP32, by seed; all were validated on the same images.
        metric: The primary metric.
        trust_code: Whether the person's own code may run.
        note: Called with what a person should know.
        check_stop: Called before each batch.

    Returns:
        The differences; None if the metric can't be computed image by image, or not of equally many images.
    """
    values = [
        [_values(run, metric, trust_code=trust_code, note=note, check_stop=check_stop) for run in pair]
        for pair in pairs
    ]
    if len({len(each) for pair in values for each in pair}) != 1 or not len(values[0][0]):
        return None
    return np.stack([ours - theirs for ours, theirs in values])


def _values(
    run: Path, metric: str, *, trust_code: bool, note: Note, check_stop: Callable[[], None]
) -> npt.NDArray[np.float64]:
    """Return the values of a run's validation images; empty if its metrics have no sums that add up."""
    trained = open_trained(run, LAST, note=note, trust_code=trust_code)
    data = open_samples(trained, {}, on_progress=lambda *_: None, note=note)
    sums = SumsByImage(trained.task, trained.device)
    maker = LoaderMaker(trained.plan, data.dataset, lambda _: None, lambda _: None, lambda: None)
    with maker.make(data.split, train=False) as loader:
        evaluate(
            trained.model,
            trained.task,
            loader,
            trained.precision,
            device=trained.device,
            on_progress=lambda _: None,
            check_stop=check_stop,
            in_pieces=HalvingBatches(trained.device, note),
            outputs_stay=True,
            watch=(sums.add,),
        )
    return sums.values(metric)


class SumsByImage:
    """The sums of a task's metrics, image by image.

    Args:
        task: The task.
        device: Where outputs are.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self._metrics = task.metrics(device, training=True)
        self._on_host = task.metrics(torch.device("cpu"), training=True)
        self._sums: list[dict[str, torch.Tensor]] = []
        self._images = 0

    def add(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add the images of a batch. Never syncs."""
        for row in range(batch.size):
            self._metrics.reset()
            self._metrics.update(outputs[row : row + 1], rows_of(batch, row, row + 1))
            self._add(self._metrics.state_dict())
        self._metrics.reset()

    def _add(self, sums: dict[str, torch.Tensor]) -> None:
        place = self._images % UNITS
        self._images += 1
        is_small = sum(tensor.numel() for tensor in sums.values()) <= _FEW_SUMS
        if is_small or self._images <= UNITS:
            self._sums.append(sums)
        else:
            for name, tensor in self._sums[place].items():
                tensor += sums[name]

    def values(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the value of each image, fractions of 1; empty if they are unknown. Waits for the device."""
        count = len(self._sums)
        if count < 2:
            return np.empty(0)
        stacked = {name: torch.stack([each[name] for each in self._sums]).cpu() for name in self._sums[0]}
        totals = {name: tensor.sum(0) for name, tensor in stacked.items()}
        whole = self._computed(totals, metric)
        without = [
            self._computed({name: totals[name] - stacked[name][n] for name in totals}, metric)
            for n in range(count)
        ]
        values = count * whole - (count - 1) * np.array(without)
        return values if np.isfinite(values).all() else np.empty(0)

    def _computed(self, sums: dict[str, torch.Tensor], metric: str) -> float:
        self._on_host.load_state_dict(sums)
        return self._on_host.compute().get(metric, nan)


# Statistics of the difference between two precisions: the noise between seeds and that of validation images
# ----------------------------------------------------------------------------------------------------------
# A final metric varies with the seed, and with the images that happen to be in the validation set. All
# seeds are validated on the same images, so that an image's difference is in part common to them.
#
# The interval adds the squares of its halves, Student's over the seeds and the normal one over the images
# (W. G. Howe, "Approximate confidence limits on the mean of X + Y where X and Y are two tabled independent
# random variables", JASA 69, 1974), and is no narrower than the images allow. That alone would hold the
# truth in 99 % where few seeds add little noise of their own: Student's quantile for them is up to 12.7,
# and where their spread is small by chance, the images' share takes its place. So seeds count once their
# noise shows, by a preliminary test at a level at which a missed one costs little (T. A. Bancroft,
# Biometrics 20, 1964). From 2 seeds on, the truth is held in 92 to 98 %, whatever the noise of seeds and
# images. Satterthwaite's degrees of freedom, in place of the sum of squares, would hold it in as few as 88
# % with 2 seeds. A difference is claimed only where it is one without that test, too: wrongly in 5 % at
# most.
#
# Shapes: S seeds, N validation images.

TOLERANCE = 0.1
"""Difference in percentage points within which two precisions count as equal."""
MOST_SEEDS = 100
"""Largest number of seeds of a comparison."""
_MOST_TIMES = 10_000
"""Largest multiple of the validation images that is looked for."""
_CONFIDENCE = 0.95
_Z = 1.959964
_Z_SEEDS = -0.18
"""Standard normal deviate of the test for noise between seeds: chance alone is below it in 43 % of cases."""
_OF_COMMON = 0.25
"""Share of the variance that images have in common below which noise between seeds doesn't matter. This share
and that level keep the truths held closest to 95 %, over all noises and numbers of seeds."""
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

        To the images that were seen to differ come `_Z` squared others, as in the adjusted interval for a
        count (A. Agresti and B. Coull, The American Statistician 52, 1998). As many may differ in all seeds
        and be unseen: the interval is no narrower than that.
        """
        variance, of_one = self.common + self.alone / seeds, self.common + self.alone
        unseen = (_Z * self.largest) ** 2
        seen = variance * (images + unseen / of_one) if of_one else 0.0
        return _Z * sqrt(max(seen, unseen)) / images


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
        if self.noise is None:
            return "undecided"
        return self._verdict(self.noise, Needed(len(self.each), self.noise.images))

    def _verdict(self, noise: ImageNoise, of: "Needed") -> Verdict:
        """Return the verdict, if the difference and the noise were the same with other seeds and images."""
        if abs(self.mean) + self._half(noise, *of) <= TOLERANCE + _ROUNDING:
            return "agrees"
        differs = abs(self.mean) - self._half(noise, *of, tested=False) > TOLERANCE
        return "differs" if differs else "undecided"

    def _half(self, noise: ImageNoise, seeds: int, images: int, *, tested: bool = True) -> float:
        """Return half the interval with so many seeds and images; inf with one seed.

        Student's t over the seeds holds what varies with the seed, and with an image in one seed; to it comes
        what the images have in common over the seeds. With `tested`, the seeds count once their noise shows.
        """
        if len(self.each) == 1 or seeds == 1:
            return inf
        by_images, by_chance = noise.half(seeds, images), noise.alone / images
        between = stdev(self.each) ** 2 - noise.alone / noise.images + by_chance
        little = by_chance + _OF_COMMON * seeds * noise.common / images
        if tested and between < _low_quotient(seeds - 1) * little:
            return by_images
        over_seeds = t_quantile(_CONFIDENCE, seeds - 1) * sqrt(max(0.0, between) / seeds)
        return max(by_images, hypot(over_seeds, _Z * sqrt(noise.common / images)))

    def needed(self) -> list["Needed"]:
        """Return what would decide, if the difference and the noise stay as they are.

        Other numbers of seeds, of images, or if neither would alone, of both; empty if nothing would, or it
        is decided.
        """
        noise = None if len(self.each) == 1 else self.noise
        if noise is None or self.verdict != "undecided":
            return []
        seeds, images = len(self.each), noise.images

        def decides(more: Needed) -> bool:
            return self._verdict(noise, more) != "undecided"

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


def _low_quotient(freedom: int) -> float:
    """Return the quotient of a sample's variance and the true one that passes for chance.

    A quantile of chi-squared by its degrees of freedom (E. B. Wilson and M. M. Hilferty, PNAS 17, 1931).
    """
    spread = 2 / (9 * freedom)
    quotient: float = (1 - spread + _Z_SEEDS * sqrt(spread)) ** 3
    return quotient


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
