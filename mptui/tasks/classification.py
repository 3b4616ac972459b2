"""Classes: loss, weights, accuracy."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from typing_extensions import override

from mptui.data.batch import Batch, Window
from mptui.errors import ConfigError
from mptui.tasks.base import Metrics, Task, WindowMetrics

# Metrics of classes from three counts each: predicted right, true, predicted
# ---------------------------------------------------------------------------
# A class that is neither true nor predicted is absent, and left out of means. A ratio of another class
# whose denominator is 0 is 0, as in scikit-learn (`zero_division=0`) and torchmetrics.

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


# Metrics of classification: top-1 and top-5 accuracy; with a validation, those of each class
# -------------------------------------------------------------------------------------------
# Shapes: B samples, K classes, N samples so far.

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


class Accuracy(Metrics):
    """Top-1 accuracy, as `acc1`, and with more than 5 classes top-5 accuracy, as `acc5`.

    The class of a mixed sample is the one with the larger share.

    Args:
        num_classes: Number of classes, K.
        device: Device of the sums.
    """

    def __init__(self, num_classes: int, device: torch.device) -> None:
        # number of samples whose target had the highest, second highest, … logit
        self._ranks = min(_TOP, num_classes)
        self._has_top = num_classes > _TOP
        self._hits_at_rank = torch.zeros(self._ranks, dtype=torch.int64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        # several batches are ranked together: for small ones the calls cost more than the work
        self._waiting: list[_Kept] = []
        self._applied: list[torch.Tensor] = []  # whether each counts, where the host does not know
        self._numbers = 0  # of the logits that wait

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Outputs are logits_BK."""
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
        self._waiting = []
        self._applied = []
        self._numbers = 0

    def _add(self, logits_BK: torch.Tensor, targets_B: torch.Tensor) -> None:
        """Add samples to the sums; if an error is raised, none of them. Those of target -1 don't count."""
        ranked_BT = logits_BK.topk(self._ranks).indices
        hits_T, count = (ranked_BT == targets_B[:, None]).sum(dim=0), (targets_B >= 0).sum()
        self._hits_at_rank += hits_T
        self._count += count

    @override
    def compute(self) -> dict[str, float]:
        self._rank()
        hits, count = self._hits_at_rank.tolist(), int(self._count)
        found = {"acc1": hits[0]} | ({"acc5": sum(hits)} if self._has_top else {})
        return {name: number / count if count else math.nan for name, number in found.items()}

    @override
    def reset(self) -> None:
        self._waiting = []
        self._applied = []
        self._numbers = 0
        self._hits_at_rank.zero_()
        self._count.zero_()

    @override
    def state_dict(self) -> dict[str, torch.Tensor]:
        self._rank()
        return {"hits_at_rank": self._hits_at_rank.clone(), "count": self._count.clone()}

    @override
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.reset()
        self._hits_at_rank.copy_(state["hits_at_rank"])
        self._count.copy_(state["count"])


class TrainingAccuracy(Accuracy, WindowMetrics):
    """`Accuracy` of the steps that are applied."""

    @override
    def kept_of(self, outputs: torch.Tensor, batch: Batch) -> _Kept:
        return _kept_of(outputs, batch)

    @override
    def update_window(self, kept: Sequence[_Kept], counts: torch.Tensor) -> None:
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

    @override
    def compute(self) -> dict[str, float]:
        found = super().compute()
        counts = self._by_class()
        found["balanced_accuracy"] = counts.balanced_accuracy()
        found["macro_f1"] = mean_of_present(counts.f1())
        found["macro_precision"] = mean_of_present(counts.precision())
        found["macro_recall"] = mean_of_present(counts.recall())
        if len(self._classes) == 2:
            found["auroc"] = auroc(self._scores().cpu().numpy())
        return found

    @override
    def per_class(self) -> dict[str, dict[str, float | None]]:
        counts = self._by_class()
        found = {"f1": counts.f1(), "precision": counts.precision(), "recall": counts.recall()}
        return {name: dict(zip(self._classes, values, strict=True)) for name, values in found.items()}

    @override
    def confusion(self) -> torch.Tensor | None:
        """None with more than `MOST_CONFUSED` classes."""
        self._rank()
        K = len(self._classes)
        return self._counts[3 * K :].view(K, K).cpu() if len(self._counts) > 3 * K else None

    def _by_class(self) -> ClassCounts:
        self._rank()
        return ClassCounts(*self._counts[: 3 * len(self._classes)].view(3, -1).tolist())

    def _scores(self) -> torch.Tensor:
        """The scores and the targets so far, [N, 2]."""
        return torch.cat([torch.empty(0, 2, device=self._counts.device), *self._scored])

    @override
    def reset(self) -> None:
        super().reset()
        self._counts.zero_()
        self._scored = []

    @override
    def state_dict(self) -> dict[str, torch.Tensor]:
        state = super().state_dict()
        return {**state, "counts": self._counts.clone(), "scores": self._scores()}

    @override
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
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
    are_of_one_kind = positive_N.all() or not positive_N.any()
    if are_of_one_kind or np.isnan(scores_N).any():
        return math.nan
    levels, place_N = np.unique(scores_N, return_inverse=True)
    positives = np.bincount(place_N[positive_N], minlength=len(levels)).astype(np.float64)
    negatives = np.bincount(place_N[~positive_N], minlength=len(levels)).astype(np.float64)
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))


# Classification of images: cross-entropy
# ---------------------------------------
# Shapes: B samples, K classes.


class Classification(Task):
    """Learn the class of each image.

    The loss of a window is the mean cross-entropy of its samples, weighted by their classes. For two mixed
    images it is the mean of both labels' cross-entropies, weighted by their shares.

    Args:
        classes: The names of the K classes.
        label_smoothing: Share of each target that is spread over all classes.
        class_weights: The weight of each class; None: all are equal.
    """

    primary = "acc1"

    def __init__(
        self, classes: Sequence[str], label_smoothing: float, class_weights: Sequence[float] | None = None
    ) -> None:
        self._weights = ItemWeights(class_weights)
        self._is_weighted = class_weights is not None
        self.classes = tuple(classes)
        self.chance = math.log(max(2, len(classes)))
        self.label_smoothing = label_smoothing
        smoothing = [f"label smoothing {label_smoothing:g}"] if label_smoothing else []
        self.loss_terms = (*smoothing, *self._weights.terms)

    @override
    def window_weight(self, window: Window) -> torch.Tensor | float:
        """Mixing shifts the labels of a batch, which keeps their total."""
        return self._weights.total(window)

    @override
    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """Outputs are logits_BK."""
        logits_BK = real_rows(outputs, batch.size).float()
        loss = self._cross_entropy(logits_BK, batch.targets)
        if batch.mixed_targets is not None:
            mixed = self._cross_entropy(logits_BK, batch.mixed_targets)
            loss = batch.lam * loss + (1 - batch.lam) * mixed
        if self._is_weighted:
            return loss / window_weight
        # the usual batch is its whole window: a division and its backward pass are saved
        return loss if batch.size == window_weight else loss * (batch.size / window_weight)

    @override
    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Outputs are logits_BK."""
        over_items = self.loss(outputs, batch, 1.0, batch.size)
        return torch.stack((over_items, torch.zeros_like(over_items)))

    @override
    def dummy_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """All labels are 0."""
        rows = len(images_BCHW)
        targets_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        return Batch(images_BCHW, targets_B, rows, rows, np.arange(rows))

    @override
    def metrics(self, device: torch.device, *, training: bool = False) -> Accuracy:
        """With `training` the accuracy alone, which costs least."""
        if training:
            return TrainingAccuracy(len(self.classes), device)
        return ClassMetrics(self.classes, device)

    def _cross_entropy(self, logits_BK: torch.Tensor, targets_B: torch.Tensor) -> torch.Tensor:
        """The mean over the samples; the weighted sum of it with weights."""
        return F.cross_entropy(
            logits_BK,
            real_rows(targets_B, logits_BK.shape[0]),
            weight=self._weights.on(logits_BK.device),
            label_smoothing=self.label_smoothing,
            reduction="sum" if self._is_weighted else "mean",
        )


# Weights of classes in a loss
# ----------------------------
# As in `torch.nn.CrossEntropyLoss`, the weighted mean of a batch is divided by the sum of its items'
# weights.
#
# Shapes: K classes; items are samples, or pixels of masks.


def class_weights(
    asked: Literal["balanced"] | Sequence[float] | None, classes: Sequence[str], counts: Sequence[int]
) -> list[float] | None:
    """Return the weight of each class; None: all are equal.

    Balanced weights are inverse to the counts, with a mean of 1 over the items (King and Zeng 2001, as
    `sklearn.utils.class_weight`). A class without a training item has the weight 0.

    Args:
        asked: The setting `training.class_weights`.
        classes: The names of the classes.
        counts: Training items of each class; empty: unknown.

    Raises:
        ConfigError: There are more or fewer weights than classes, or the counts are unknown.
    """
    if asked is None:
        return None
    if asked == "balanced":
        if not counts:
            raise ConfigError(
                'training.class_weights = "balanced": this data set does not count its classes',
                hint=f"give a list of {len(classes)} weights, in the order of the classes",
            )
        share = sum(counts) / sum(count > 0 for count in counts)
        return [share / count if count else 0.0 for count in counts]
    if len(asked) != len(classes):
        raise ConfigError(
            f"training.class_weights has {len(asked)} weights, but the data has {len(classes)} classes",
            hint='give one for each class, in their order, or "balanced"',
        )
    return [float(weight) for weight in asked]


class ItemWeights:
    """The weights of the items of a loss, by their classes.

    Args:
        by_class: The weight of each class; None: each item counts 1.

    Attributes:
        terms: What they add to a loss, in words.
    """

    def __init__(self, by_class: Sequence[float] | None) -> None:
        self.terms = () if by_class is None else ("class weights",)
        # the last one is that of ignored pixels, whose class is -1
        self._weights = None if by_class is None else torch.tensor([*by_class, 0.0])

    def on(self, device: torch.device) -> torch.Tensor | None:
        """Return weights_K on `device`, float32; None without weights. Copies once."""
        if self._weights is None:
            return None
        if self._weights.device != device:
            self._weights = self._weights.to(device)
        return self._weights[:-1]

    def total(self, window: Window) -> torch.Tensor | float:
        """Return the total weight of a window's items, without a sync; `window.valid` without weights."""
        if self._weights is None:
            return window.valid
        totals = [self._total(window.targets(number)) for number in range(window.batches)]
        if len(totals) == 1:
            return totals[0]
        return torch.stack(totals).sum() if totals else torch.zeros_like(self._weights[0])

    def _total(self, targets: torch.Tensor) -> torch.Tensor:
        assert self._weights is not None
        self.on(targets.device)
        return self._weights[targets.long()].sum()
