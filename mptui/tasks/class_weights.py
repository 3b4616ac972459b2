"""Weights of classes in a loss.

As in `torch.nn.CrossEntropyLoss`, the weighted mean of a batch is divided by the sum of its items' weights.

Shapes: K classes; items are samples, or pixels of masks.
"""

from collections.abc import Sequence
from typing import Literal

import torch

from mptui.data.core.batch import Window
from mptui.errors import ConfigError


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
