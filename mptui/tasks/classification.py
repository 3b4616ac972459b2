"""Classification of images: cross-entropy.

Shapes: B samples, K classes.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from mptui.data.core.batch import Batch, Window
from mptui.tasks.accuracy import Accuracy, ClassMetrics, TrainingAccuracy, real_rows
from mptui.tasks.class_weights import ItemWeights


class Classification:
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
        self._weights, self._is_weighted = ItemWeights(class_weights), class_weights is not None
        self.classes = tuple(classes)
        self.chance = math.log(max(2, len(classes)))
        self.label_smoothing = label_smoothing
        smoothing = [f"label smoothing {label_smoothing:g}"] if label_smoothing else []
        self.loss_terms = (*smoothing, *self._weights.terms)

    def window_weight(self, window: Window) -> torch.Tensor | float:
        """See `Task.window_weight`; mixing shifts the labels of a batch, which keeps their total."""
        return self._weights.total(window)

    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """See `Task.loss`; outputs are logits_BK."""
        logits_BK = real_rows(outputs, batch.size).float()
        loss = self._cross_entropy(logits_BK, batch.targets)
        if batch.mixed_targets is not None:
            mixed = self._cross_entropy(logits_BK, batch.mixed_targets)
            loss = batch.lam * loss + (1 - batch.lam) * mixed
        if self._is_weighted:
            return loss / window_weight
        # the usual batch is its whole window: a division and its backward pass are saved
        return loss if batch.size == window_weight else loss * (batch.size / window_weight)

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Task.loss_sums`; outputs are logits_BK."""
        over_items = self.loss(outputs, batch, 1.0, batch.size)
        return torch.stack((over_items, torch.zeros_like(over_items)))

    def made_up_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """See `Task.made_up_batch`; all labels are 0."""
        rows = len(images_BCHW)
        targets_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        return Batch(images_BCHW, targets_B, rows, rows, np.arange(rows))

    def metrics(self, device: torch.device, *, training: bool = False) -> Accuracy:
        """See `Task.metrics`; with `training` the accuracy alone, which costs least."""
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
