"""Metrics of classes from three counts each: predicted right, true, predicted.

A class that is neither true nor predicted is absent, and left out of means. A ratio of another class whose
denominator is 0 is 0, as in scikit-learn (`zero_division=0`) and torchmetrics.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress

import torch

ByClass = list[float | None]
"""A value for each class; None: the class is absent."""


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Samples, or pixels, of each of K classes."""

    right: list[int]
    """Of the class, and predicted as it."""
    true: list[int]
    """Of the class."""
    predicted: list[int]
    """Predicted as the class."""

    @classmethod
    def of(cls, confusion_KK: torch.Tensor) -> "ClassCounts":
        """Count by a confusion matrix, whose rows are true classes and whose columns are predicted ones."""
        return cls(
            confusion_KK.diag().tolist(), confusion_KK.sum(dim=1).tolist(), confusion_KK.sum(dim=0).tolist()
        )

    def precision(self) -> ByClass:
        """Share of the predictions of a class that are right."""
        return self._ratios(self.right, self.predicted)

    def recall(self) -> ByClass:
        """Share of a class that is predicted right."""
        return self._ratios(self.right, self.true)

    def f1(self) -> ByClass:
        """Harmonic mean of precision and recall; of pixels, the Dice score."""
        return self._ratios((2 * right for right in self.right), map(sum, self._sizes()))

    def iou(self) -> ByClass:
        """Intersection over union, the Jaccard index."""
        both = map(sum, self._sizes())
        return self._ratios(self.right, (size - right for size, right in zip(both, self.right, strict=True)))

    def accuracy(self) -> float:
        """Share of all that is predicted right; NaN if there is none."""
        total = sum(self.true)
        return sum(self.right) / total if total else math.nan

    def balanced_accuracy(self) -> float:
        """Mean recall of the true classes (Brodersen et al. 2010); NaN if there is none."""
        return mean_of_present(compress(self.recall(), self.true))

    def _sizes(self) -> Iterator[tuple[int, int]]:
        return zip(self.true, self.predicted, strict=True)

    def _ratios(self, parts: Iterable[int], wholes: Iterable[int]) -> ByClass:
        return [
            None if not any(sizes) else part / whole if whole else 0.0
            for part, whole, sizes in zip(parts, wholes, self._sizes(), strict=True)
        ]


def mean_of_present(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are not None; NaN if all are."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else math.nan
