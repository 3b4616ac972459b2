"""Metrics of classification: top-1 and top-5 accuracy; with a validation, those of each class.

Shapes: B samples, K classes, N samples so far.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mptui.data.core.batch import Batch
from mptui.tasks.class_counts import ClassCounts, mean_of_present

MOST_CONFUSED = 4096
"""Largest number of classes of which a confusion matrix is kept: 128 MiB."""

_TOP = 5
_MOST_WAITING = 32
_MOST_WAITING_NUMBERS = 1 << 20


def real_rows(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return the rows before the padding."""
    return tensor if tensor.shape[0] == size else tensor[:size]


class _Kept(NamedTuple):
    """What is counted of a batch."""

    logits_BK: torch.Tensor
    targets_B: torch.Tensor


def _kept_of(outputs: torch.Tensor, batch: Batch) -> _Kept:
    targets_B = batch.targets
    if batch.mixed_targets is not None and batch.lam < 0.5:
        targets_B = batch.mixed_targets
    return _Kept(real_rows(outputs, batch.size), real_rows(targets_B, batch.size))


class Accuracy:
    """Top-1 and top-5 accuracy, as `acc1` and `acc5`.

    With fewer than 5 classes `acc5` is 1. The class of a mixed sample is the one with the larger share.

    Args:
        num_classes: Number of classes, K.
        device: Device of the sums.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # number of samples whose target had the highest, second highest, … logit
        self._ranks = min(_TOP, num_classes)
        self._hits_at_rank = torch.zeros(self._ranks, dtype=torch.int64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        # several batches are ranked together: for small ones the calls cost more than the work
        self._waiting: list[_Kept] = []
        self._applied: list[torch.Tensor] = []  # whether each counts, where the host does not know
        self._numbers = 0  # of the logits that wait

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`; outputs are logits_BK."""
        self._wait([_kept_of(outputs, batch)], None)

    def _wait(self, kept: Sequence[_Kept], counts: torch.Tensor | None) -> None:
        if len(self._waiting) >= _MOST_WAITING or self._numbers >= _MOST_WAITING_NUMBERS:
            self._rank()  # may run out of memory: then they come again
        self._waiting += kept
        for each in kept:
            self._numbers += each.logits_BK.numel()
            if counts is not None:
                self._applied.append(counts)

    def _rank(self) -> None:
        """Rank the waiting batches and count their hits."""
        if self._waiting:
            logits, targets = zip(*self._waiting, strict=True)
            targets_B = torch.cat(targets)
            if self._applied:
                of_each = zip(self._applied, targets, strict=True)
                applied_B = torch.cat([applied.expand_as(labels_B) for applied, labels_B in of_each])
                targets_B = torch.where(applied_B, targets_B, -1)
            self._add(torch.cat(logits), targets_B)
        self._waiting, self._applied, self._numbers = [], [], 0

    def _add(self, logits_BK: torch.Tensor, targets_B: torch.Tensor) -> None:
        """Add samples to the sums; if an error is raised, none of them. Those of target -1 don't count."""
        ranked_BT = logits_BK.topk(self._ranks).indices
        hits_T, count = (ranked_BT == targets_B[:, None]).sum(dim=0), (targets_B >= 0).sum()
        self._hits_at_rank += hits_T
        self._count += count

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        self._rank()
        hits, count = self._hits_at_rank.tolist(), int(self._count)
        if not count:
            return {"acc1": math.nan, "acc5": math.nan}
        return {"acc1": hits[0] / count, "acc5": sum(hits) / count}

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Empty: accuracy is over all classes together."""
        return {}

    def confusion(self) -> torch.Tensor | None:
        """None: only hits are counted."""
        return None

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self._waiting, self._applied, self._numbers = [], [], 0
        self._hits_at_rank.zero_()
        self._count.zero_()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See `Metrics.state_dict`."""
        self._rank()
        return {"hits_at_rank": self._hits_at_rank.clone(), "count": self._count.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See `Metrics.load_state_dict`."""
        self.reset()
        self._hits_at_rank.copy_(state["hits_at_rank"])
        self._count.copy_(state["count"])


class TrainingAccuracy(Accuracy):
    """`Accuracy` of the steps that are applied."""

    def kept_of(self, outputs: torch.Tensor, batch: Batch) -> _Kept:
        """See `WindowMetrics.kept_of`."""
        return _kept_of(outputs, batch)

    def update_window(self, kept: Sequence[_Kept], counts: torch.Tensor) -> None:
        """See `WindowMetrics.update_window`."""
        self._wait(kept, counts)


class ClassMetrics(Accuracy):
    """`Accuracy`, and precision, recall and F1 of each class with their means, and `balanced_accuracy`.

    With two classes also `auroc`, the area under the ROC curve of the second one. It is exact, and so keeps
    the score and the target of every sample: 8 bytes each, 10 MB for 1.2 million. All else is of constant
    size.

    Args:
        classes: The names of the K classes.
        device: Device of the sums.
    """

    def __init__(self, classes: Sequence[str], device: torch.device) -> None:
        super().__init__(len(classes), device)
        self._classes = tuple(classes)
        count = len(classes)
        cells = count**2 if count <= MOST_CONFUSED else 0
        # right, true and predicted samples of each class, then the confusion matrix: one call adds to all, or
        # to none if memory is full
        self._counts = torch.zeros(3 * count + cells, dtype=torch.int64, device=device)
        self._scored: list[torch.Tensor] = []
        """[B, 2] each, with two classes: the logit of the second above that of the first, and the target."""

    def _add(self, logits_BK: torch.Tensor, targets_B: torch.Tensor) -> None:
        K = len(self._classes)
        ranked_BT = logits_BK.topk(self._ranks).indices
        predicted_B = ranked_BT[:, 0]
        hits_T = (ranked_BT == targets_B[:, None]).sum(dim=0)
        places = [targets_B, targets_B + K, predicted_B + 2 * K]
        if len(self._counts) > 3 * K:
            places.append(targets_B * K + predicted_B + 3 * K)
        amounts = torch.ones(len(places), len(targets_B), dtype=torch.int64, device=targets_B.device)
        amounts[0] = predicted_B == targets_B
        scored = []
        if K == 2:
            first_B, second_B = logits_BK.float().unbind(dim=1)
            scored.append(torch.stack((second_B - first_B, targets_B.float()), dim=1))
        # not bincount, nor a mask of the right ones: both would wait for the device
        self._counts.scatter_add_(0, torch.cat(places), amounts.flatten())
        self._hits_at_rank += hits_T
        self._count += len(targets_B)
        self._scored += scored

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        found = super().compute()
        counts = self._by_class()
        found["balanced_accuracy"] = counts.balanced_accuracy()
        found["macro_f1"] = mean_of_present(counts.f1())
        found["macro_precision"] = mean_of_present(counts.precision())
        found["macro_recall"] = mean_of_present(counts.recall())
        if len(self._classes) == 2:
            found["auroc"] = auroc(self._scores().cpu().numpy())
        return found

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """See `Metrics.per_class`."""
        counts = self._by_class()
        found = {"f1": counts.f1(), "precision": counts.precision(), "recall": counts.recall()}
        return {name: dict(zip(self._classes, values, strict=True)) for name, values in found.items()}

    def confusion(self) -> torch.Tensor | None:
        """See `Metrics.confusion`; None with more than `MOST_CONFUSED` classes."""
        self._rank()
        K = len(self._classes)
        return self._counts[3 * K :].view(K, K).cpu() if len(self._counts) > 3 * K else None

    def _by_class(self) -> ClassCounts:
        self._rank()
        return ClassCounts(*self._counts[: 3 * len(self._classes)].view(3, -1).tolist())

    def _scores(self) -> torch.Tensor:
        """The scores and the targets so far, [N, 2]."""
        return torch.cat([torch.empty(0, 2, device=self._counts.device), *self._scored])

    def reset(self) -> None:
        """See `Metrics.reset`."""
        super().reset()
        self._counts.zero_()
        self._scored = []

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See `Metrics.state_dict`."""
        state = super().state_dict()
        return {**state, "counts": self._counts.clone(), "scores": self._scores()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See `Metrics.load_state_dict`."""
        super().load_state_dict(state)
        self._counts.copy_(state["counts"])
        self._scored = [state["scores"].to(self._counts.device)]


def auroc(scores_N2: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    """Return the area under the ROC curve, by the Mann-Whitney U statistic; equal scores count half.

    Args:
        scores_N2: The score of each sample, and its target: 1 is to have the higher score than 0.

    Returns:
        The area; NaN if there are no targets of one kind, or a score is NaN.
    """
    scores_N, positive_N = scores_N2[:, 0], scores_N2[:, 1] == 1
    if np.isnan(scores_N).any() or positive_N.all() or not positive_N.any():
        return math.nan
    levels, place_N = np.unique(scores_N, return_inverse=True)
    positives = np.bincount(place_N[positive_N], minlength=len(levels)).astype(np.float64)
    negatives = np.bincount(place_N[~positive_N], minlength=len(levels)).astype(np.float64)
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))
