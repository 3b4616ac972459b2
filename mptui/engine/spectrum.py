"""Computes from the counts of `tally`, on the host, what float16 loses under any loss scale.

float16 keeps 11 bits of values between 2^-14 and 65,504. Below that it has subnormals with ever fewer bits
down to 2^-24, and rounds to zero from 2^-25 down; from 65,520 up it rounds to infinity. Scaling by 2^k shifts
every value by k binades, a whole number of bins: all shares are exact, as if each value had been cast.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mptui.engine.numerics.tally import BINS

_BIAS = 127
_INFINITE = 4 * 255
_SIZES = np.exp2(np.arange(_INFINITE) // 4 - float(_BIAS))
_SIZES[0] = 0.0
LOWEST_SCALE, HIGHEST_SCALE = 2.0**0, 2.0**32
"""Range of candidates for the best loss scale."""
HEADROOM = 2
"""Doublings of headroom that the best scale leaves for larger gradients of other steps."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the non-zero values that float16 doesn't keep, of 1; NaN and infinity are overflow."""

    zeroed: float
    subnormal: float
    overflow: float

    @property
    def lost(self) -> float:
        """Share of values that lose some of their 11 bits."""
        return self.zeroed + self.subnormal + self.overflow


class Spectrum:
    """Histogram of the magnitudes of a tensor, or of one part of a layer.

    Args:
        row: Counts of `tally.add`, int64, shape (COLUMNS,).
        zeros_lost: Zeros are values that underflowed, as those of a softmax or a sigmoid.
    """

    def __init__(self, row: npt.NDArray[np.int64], *, zeros_lost: bool = False) -> None:
        counts = row[:BINS]
        self.values = int(counts.sum())
        self.zeros = int(counts[0])
        self.nonfinite = int(counts[_INFINITE])
        self.zeros_lost = self.zeros if zeros_lost else 0
        self.told = self.values - self.zeros + self.zeros_lost
        """Number of values that shares refer to: those that are not zero, or should not be."""
        bits = row[BINS : BINS + 2].astype(np.int32).view(np.float32)
        seen = self.values - self.zeros - self.nonfinite > 0
        self.smallest = float(bits[0]) if seen else 0.0
        self.largest = float(bits[1]) if seen else 0.0
        self._row, self._counts = row, counts
        # number of values below each bin, without zeros
        self.below = np.concatenate([[0, 0], np.cumsum(counts[1:])])

    def with_zeros_lost(self) -> "Spectrum":
        """Return the same counts, whose zeros are values that underflowed."""
        return Spectrum(self._row, zeros_lost=True)

    def shares(self, doublings: int = 0) -> Shares:
        """Return the shares after multiplying every value by 2^doublings."""
        if not self.told:
            return Shares(0.0, 0.0, 0.0)
        kept, whole, infinite = _edges(doublings)
        below = self.below
        zeroed = int(below[kept]) + self.zeros_lost
        subnormal = int(below[whole] - below[kept])
        overflow = int(below[-1] - below[infinite])
        return Shares(zeroed / self.told, subnormal / self.told, overflow / self.told)

    def weight_below(self, doublings: int = 0) -> float:
        """Return the share of the sum of magnitudes (to the binade) below float16's normal range.

        Where magnitudes differ by many orders, as between gradients of samples that are learned and that are
        not, most values can be lost with little effect on the sum. 1 if all were rounded to zero.
        """
        _, whole, _ = _edges(doublings)
        weights = self._counts[:_INFINITE] * _SIZES
        total = float(weights.sum())
        if not total:
            return 1.0 if self.zeros_lost else 0.0
        return float(weights[:whole].sum()) / total

    def bars(self) -> tuple[int, list[int]]:
        """Return the histogram of exponents: the lowest exponent, and the shares from it on.

        Shares are per mille of the finite non-zero values, at least 1 for an exponent that occurs. A value of
        exponent e lies in [2^e, 2^(e+1)); all below 2^-126 count as -127.
        """
        by_exponent = self._counts[:_INFINITE].reshape(-1, 4).sum(axis=1)
        by_exponent[0] -= self._counts[0]
        (there,) = np.nonzero(by_exponent)
        if not len(there):
            return 0, []
        part = by_exponent[there[0] : there[-1] + 1]
        return int(there[0]) - _BIAS, [int(share) for share in np.ceil(1000 * part / part.sum())]


@dataclass(frozen=True, slots=True)
class BestScale:
    """A loss scale, and the share of gradients that is lost with it, averaged over layers; None: unknown."""

    scale: float
    lost: float | None


def _edges(doublings: int) -> tuple[int, int, int]:
    """Return the first bins that float16 doesn't round to zero, keeps in full, and rounds to infinity."""
    kept, whole, infinite = (
        min(max(4 * (exponent + _BIAS - doublings) + place, 1), _INFINITE)
        for exponent, place in ((-25, 1), (-15, 2), (15, 3))
    )
    return kept, whole, infinite


class LayerGradients:
    """Gradients of all layers under one loss scale."""

    def __init__(self, spectra: Iterable[Spectrum]) -> None:
        told = [spectrum for spectrum in spectra if spectrum.told]
        self.layers = len(told)
        self._below = np.stack([s.below for s in told]) if told else np.zeros((0, BINS + 1))
        self._zeros = np.array([s.zeros_lost for s in told], dtype=np.int64)
        self._told = np.array([s.told for s in told], dtype=np.int64)

    def lost(self, doublings: int = 0) -> float:
        """Return the mean share lost over layers; 1 if any value overflows, which skips the step."""
        _, whole, infinite = _edges(doublings)
        if not self.layers:
            return 0.0
        if (self._below[:, -1] > self._below[:, infinite]).any():
            return 1.0
        return float(((self._below[:, whole] + self._zeros) / self._told).mean())


def best_scale(spectra: Sequence[Spectrum], scale: float = 1.0, *, rounded: bool = False) -> BestScale | None:
    """Find the loss scale that loses least of the gradients, among `scale` times powers of two.

    Leaves `HEADROOM` doublings where possible; ties go to the smallest scale. Of gradients that float16 has
    rounded, nobody knows how many it has lost, or what would save them: the best scale is the largest that
    the others allow.

    Args:
        spectra: Histograms of gradients, one or two per layer, multiplied by `scale`.
        scale: The loss scale with which they were counted.
        rounded: The gradients were computed in float16.

    Returns:
        The best scale; None if there are no gradients, or some overflow even unscaled.
    """
    gradients = LayerGradients(spectra)
    if not gradients.layers:
        return None
    for headroom in range(HEADROOM, -1, -1):
        fitting = [
            k
            for k in range(-64, 65)
            if LOWEST_SCALE <= scale * 2.0**k <= HIGHEST_SCALE and gradients.lost(k + headroom) < 1.0
        ]
        if fitting and rounded:
            return BestScale(scale * 2.0 ** max(*fitting, 0), None)
        if fitting:
            lost, k = min((gradients.lost(k), k) for k in fitting)
            return BestScale(scale * 2.0**k, lost)
    return None
