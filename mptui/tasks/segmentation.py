"""Segmentation of images: cross-entropy, focal and Dice loss, IoU, Dice score and pixel accuracy.

A class is foreground unless it is the first one and called `background`.

Shapes: B images, H and W pixels, K classes, F foreground classes.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from typing_extensions import override

from mptui.data.batch import Batch, Window
from mptui.data.pictures import BACKGROUND
from mptui.data.types import IGNORE
from mptui.tasks.base import Metrics, Task
from mptui.tasks.classification import ClassCounts, ItemWeights, mean_of_present

_FOCUS = 2
"""Exponent of the focal loss, gamma: the best one of Lin et al. (2017)."""
_SMOOTH = 1.0
"""Pixels added to both sides of a Dice ratio: a region of few pixels has no extreme gradient."""


class Segmentation(Task):
    """Learn the class of each pixel.

    The loss of a window is the sum of one or two means:

    - over its valid pixels, weighted by their classes: the cross-entropy, or the focal loss of Lin et al.
      (2017), (1 - p)^2 times the cross-entropy, where p is the probability of the right class;
    - over its images: the soft Dice loss of Milletari et al. (2016), whose own is the mean over the
      foreground classes in its mask. An image with none of them adds 0.

    Args:
        classes: The names of the K classes.
        loss: The means: a name of `LOSSES`.
        class_weights: The weight of each class; None: all are equal.
    """

    primary = "iou"

    def __init__(
        self,
        classes: Sequence[str],
        loss: str = "cross_entropy_dice",
        class_weights: Sequence[float] | None = None,
    ) -> None:
        self.classes = tuple(classes)
        self._focal = "focal" in loss
        self._dice = "dice" in loss
        self._over_pixels = loss != "dice"
        self._weights = ItemWeights(class_weights)
        self.loss_terms = self._weights.terms
        count = max(2, len(classes))
        of_pixels = math.log(count) * ((1 - 1 / count) ** _FOCUS if self._focal else 1)
        self.chance = of_pixels * self._over_pixels + self._dice  # no overlap at all

    @override
    def window_weight(self, window: Window) -> torch.Tensor | float:
        return self._weights.total(window)

    @override
    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """Outputs are logits_BKHW."""
        over_pixels, over_images = self._sums(outputs, batch)
        return over_pixels / window_weight + over_images / window_size

    @override
    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Outputs are logits_BKHW."""
        return torch.stack(self._sums(outputs, batch))

    def _sums(self, outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum of the cross-entropy or focal loss over valid pixels, and of Dice over images; both 0-dim."""
        # float32 before any sum: the pixels of one image overflow float16. Contiguous, since a CPU computes
        # the softmax of channels_last logits pixel by pixel, which takes a quarter longer.
        planes_BKHW = outputs[: batch.size].to(torch.float32, memory_format=torch.contiguous_format)
        log_p_BKHW = planes_BKHW.log_softmax(dim=1)
        targets_BHW = batch.targets[: batch.size]
        # converted once, and not in each product
        truth_BKHW = _one_hot(targets_BHW, num_classes=log_p_BKHW.shape[1]).float()
        over_pixels = over_images = log_p_BKHW.new_zeros(())
        if self._over_pixels:
            over_pixels = -self._pixel_gains(log_p_BKHW, truth_BKHW).sum()
        if self._dice:
            valid_B1HW = (targets_BHW != IGNORE).unsqueeze(1).float()
            first = _first_foreground(self.classes)
            over_images = _dice_losses(log_p_BKHW.exp(), truth_BKHW, valid_B1HW, first).sum()
        return over_pixels, over_images

    def _pixel_gains(self, log_p_BKHW: torch.Tensor, truth_BKHW: torch.Tensor) -> torch.Tensor:
        """Negative weighted losses of each pixel and class, 0 but for the true one."""
        weights_K = self._weights.on(log_p_BKHW.device)
        # not nll_loss, which is not deterministic for images on CUDA
        gains_BKHW = log_p_BKHW * truth_BKHW
        if self._focal:
            gains_BKHW = gains_BKHW * (1 - log_p_BKHW.exp()) ** _FOCUS
        return gains_BKHW if weights_K is None else gains_BKHW * weights_K[:, None, None]

    @override
    def dummy_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """All pixels are of class 0."""
        rows, _, height, width = images_BCHW.shape
        targets_BHW = torch.zeros(rows, height, width, dtype=torch.int64, device=images_BCHW.device)
        return Batch(images_BCHW, targets_BHW, rows, targets_BHW.numel(), np.arange(rows))

    @override
    def metrics(self, device: torch.device, *, training: bool = False) -> "Overlap":
        return Overlap(self.classes, device)


def _first_foreground(classes: Sequence[str]) -> int:
    return 1 if classes[0] == BACKGROUND else 0


def _one_hot(targets_BHW: torch.Tensor, num_classes: int) -> torch.Tensor:
    """One-hot targets as bool_BKHW; an ignored pixel has no class."""
    classes_K11 = torch.arange(num_classes, device=targets_BHW.device)[:, None, None]
    return targets_BHW.unsqueeze(1) == classes_K11


def _place_of_highest(logits_BKHW: torch.Tensor, places_K11: torch.Tensor) -> torch.Tensor:
    """The place of the class with the highest logit, as BHW of the places' dtype.

    `places_K11` falls from K to 1, so that the first of equal classes is taken; where a logit is NaN, the
    last. argmax would take four times as long on a CPU, since it computes pixel by pixel.
    """
    planes_BKHW = logits_BKHW.contiguous()
    is_highest_BKHW = planes_BKHW == planes_BKHW.amax(dim=1, keepdim=True)
    return (is_highest_BKHW * places_K11).amax(dim=1).clamp_(min=1)


def predicted_classes(logits_BKHW: torch.Tensor) -> torch.Tensor:
    """Return the class of each pixel as `Overlap` counts it, as BHW of the smallest integer. Never syncs."""
    K = logits_BKHW.shape[1]
    places_K11 = torch.arange(K, 0, -1, dtype=_smallest_integer(K), device=logits_BKHW.device)[:, None, None]
    return K - _place_of_highest(logits_BKHW, places_K11)


def _smallest_integer(highest: int) -> torch.dtype:
    """The integer of fewest bytes that holds 0 to `highest`."""
    return next(
        dtype for dtype in (torch.uint8, torch.int16, torch.int32) if highest <= torch.iinfo(dtype).max
    )


def _dice_losses(
    p_BKHW: torch.Tensor, truth_BKHW: torch.Tensor, valid_B1HW: torch.Tensor, first_foreground: int
) -> torch.Tensor:
    """Each image's mean of 1 - Dice over the foreground classes in its mask, as losses_B."""
    p_BFHW, truth_BFHW = p_BKHW[:, first_foreground:], truth_BKHW[:, first_foreground:]
    overlap_BF = (p_BFHW * truth_BFHW).sum(dim=(2, 3))
    predicted_BF = (p_BFHW * valid_B1HW).sum(dim=(2, 3))
    true_BF = truth_BFHW.sum(dim=(2, 3))
    dice_BF = (2 * overlap_BF + _SMOOTH) / (predicted_BF + true_BF + _SMOOTH)
    present_BF = true_BF > 0
    return ((1 - dice_BF) * present_BF).sum(dim=1) / present_BF.sum(dim=1).clamp(min=1)


class Overlap(Metrics):
    """`iou`, `dice`, `miou` and `pixel_acc` from one confusion matrix over all images.

    `iou` and `dice` are means over the foreground classes, `miou` over all classes, `pixel_acc` is the share
    of valid pixels with the right class. A class that is in no mask and no prediction is left out.

    Args:
        classes: The names of the K classes.
        device: Where the matrix is kept.
    """

    def __init__(self, classes: Sequence[str], device: torch.device) -> None:
        self._classes = tuple(classes)
        # Rows are true classes, after one for the ignored pixels; columns are predicted ones.
        self._counts = torch.zeros(len(classes) + 1, len(classes), dtype=torch.int64, device=device)
        self._one = torch.ones((), dtype=torch.int64, device=device)
        # The smallest integers that can tell all cells apart: moving them is what takes the time.
        dtype = _smallest_integer(self._counts.numel())
        self._places_K11 = torch.arange(len(classes), 0, -1, dtype=dtype, device=device)[:, None, None]

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Outputs are logits_BKHW."""
        places_BHW = _place_of_highest(outputs.detach()[: batch.size], self._places_K11)
        rows_BHW = batch.targets[: batch.size].to(places_BHW.dtype) - IGNORE
        cells = ((rows_BHW + 1) * len(self._classes)).sub_(places_BHW).flatten().long()
        # Not bincount, nor a mask of the valid pixels: both would wait for the device.
        self._counts.view(-1).scatter_add_(0, cells, self._one.expand_as(cells))

    @override
    def compute(self) -> dict[str, float]:
        counts, first = ClassCounts.of(self.confusion()), _first_foreground(self._classes)
        iou, dice = counts.iou(), counts.f1()
        return {
            "iou": mean_of_present(iou[first:]),
            "dice": mean_of_present(dice[first:]),
            "miou": mean_of_present(iou),
            "pixel_acc": counts.accuracy(),
        }

    @override
    def per_class(self) -> dict[str, dict[str, float | None]]:
        counts = ClassCounts.of(self.confusion())
        return {
            "iou": dict(zip(self._classes, counts.iou(), strict=True)),
            "dice": dict(zip(self._classes, counts.f1(), strict=True)),
        }

    @override
    def confusion(self) -> torch.Tensor:
        return self._counts[1:].cpu()

    @override
    def reset(self) -> None:
        self._counts.zero_()

    @override
    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"confusion": self._counts[1:].clone()}

    @override
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._counts[1:].copy_(state["confusion"])
