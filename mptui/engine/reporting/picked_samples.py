"""Picks samples of a validation on the device: the worst ones, and some that are the same at each validation.

Of each batch, only the images of picked samples are kept, made small. Nothing waits for the device before
the end.

Shapes: B samples, K classes, N picked samples, C channels, H and W pixels.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mptui.data.core.batch import Batch, to_device
from mptui.data.core.types import IGNORE
from mptui.tasks.segmentation import predicted_classes

SIDE = 96
"""Largest side of a picture in pixels."""

_MERGED = 8
"""Batches whose worst samples are kept before the worst of all are: a call costs more than its work."""

Figures = tuple[torch.Tensor, torch.Tensor | None]
"""figures_B4 (error, true class, predicted class, its probability), and with masks the predicted ones_BHW."""
Measure = Callable[[torch.Tensor, torch.Tensor], Figures]
"""Returns the figures of samples, given what the network returned for them and their targets."""


def of_classes(logits_BK: torch.Tensor, targets_B: torch.Tensor) -> Figures:
    """Measure images in classes: the error is the cross-entropy."""
    log_p_BK = logits_BK.float().log_softmax(dim=1)
    highest_B, predicted_B = log_p_BK.max(dim=1)
    errors_B = -log_p_BK.gather(1, targets_B[:, None]).squeeze(1)
    figures = (errors_B, targets_B.float(), predicted_B.float(), highest_B.exp())
    return torch.stack(figures, dim=1), None


def of_masks(logits_BKHW: torch.Tensor, targets_BHW: torch.Tensor) -> Figures:
    """Measure images with masks: the error is the share of valid pixels of a wrong class."""
    predicted_BHW = predicted_classes(logits_BKHW)
    valid_BHW = targets_BHW != IGNORE
    wrong_B = ((predicted_BHW != targets_BHW) & valid_BHW).sum(dim=(1, 2))
    errors_B = wrong_B / valid_BHW.sum(dim=(1, 2)).clamp(min=1)
    return F.pad(errors_B[:, None], (0, 3)), predicted_BHW


@dataclass(frozen=True, slots=True)
class _Rows:
    """Picked samples on the device: their positions among all seen ones, figures, small images and masks."""

    positions_N: torch.Tensor
    figures_N4: torch.Tensor
    images_NCHW: torch.Tensor
    masks_N2HW: torch.Tensor
    """The mask and the prediction, int16; of images in classes [N, 0]."""

    @property
    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.positions_N, self.figures_N4, self.images_NCHW, self.masks_N2HW

    def worst(self, count: int) -> "_Rows":
        """Return the rows of the highest error; NaN is the highest."""
        rows = self.figures_N4[:, 0].topk(min(count, len(self.figures_N4))).indices
        return _Rows(*(each.index_select(0, rows) for each in self._tensors))

    @classmethod
    def joined(cls, parts: Sequence["_Rows"]) -> "_Rows":
        """Return the rows of all `parts`."""
        return cls(*map(torch.cat, zip(*map(operator.attrgetter("_tensors"), parts), strict=True)))

    def on_host(self, indices: npt.NDArray[np.int64]) -> "PickedRows":
        """Return the rows in host memory, given the index of the sample at each position. Syncs."""
        arrays: list[npt.NDArray[Any]] = [each.cpu().numpy() for each in self._tensors]
        return PickedRows(indices[arrays[0]], *arrays[1:])


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Picked samples in host memory; a sample may be there twice, in place of a broken one.

    Attributes:
        indices_N: Index of each sample in the validation set.
        figures_N4: Error, true class, predicted class, its probability.
        images_NCHW: The images, as the network sees them, at most `SIDE` pixels wide and high; float32.
        masks_N2HW: The mask and the prediction; of images in classes [N, 0].
    """

    indices_N: npt.NDArray[np.int64]
    figures_N4: npt.NDArray[np.float32]
    images_NCHW: npt.NDArray[np.float32]
    masks_N2HW: npt.NDArray[np.int16]

    @property
    def ranked(self) -> list[tuple[float, int]]:
        """The error and the index of each sample; NaN is infinite."""
        errors = np.nan_to_num(self.figures_N4[:, 0], nan=np.inf, posinf=np.inf)
        return list(zip(errors.tolist(), self.indices_N.tolist(), strict=True))


class PickedSamples:
    """The picked samples of one validation.

    Args:
        measure: Measures the samples of a batch.
        worst: Number of samples of the highest error.
        chosen: Indices of the samples that are picked whatever their error.
    """

    def __init__(self, measure: Measure, worst: int, chosen: npt.NDArray[np.int64]) -> None:
        self._measure, self._count, self._chosen = measure, worst, chosen
        self._worst: list[_Rows] = []
        self._wanted: list[_Rows] = []
        self._indices: list[npt.NDArray[np.int64]] = []
        self._seen = 0

    def add(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Look at a batch. A batch that fails for lack of memory comes again. Never syncs."""
        size = batch.size
        outputs, targets = outputs.detach()[:size], batch.targets[:size]
        figures_B4, masks = self._measure(outputs, targets)

        def rows(rows_N: torch.Tensor) -> _Rows:
            images_NCHW = _small(batch.images_BCHW.index_select(0, rows_N))
            figures_N4 = figures_B4.index_select(0, rows_N)
            both = figures_N4.new_empty(len(rows_N), 0, dtype=torch.int16)
            if masks is not None:
                pair = (targets.index_select(0, rows_N), masks.index_select(0, rows_N))
                both = torch.stack([_nearest(each.short()) for each in pair], dim=1)
            return _Rows(rows_N + self._seen, figures_N4, images_NCHW, both)

        worst = rows(figures_B4[:, 0].topk(min(self._count, size)).indices)
        places = np.flatnonzero(np.isin(batch.sample_indices, self._chosen))
        if len(places):
            self._wanted.append(rows(to_device(places, figures_B4.device)))
        self._worst.append(worst)
        self._indices.append(batch.sample_indices.copy())
        self._seen += size
        if len(self._worst) >= _MERGED:
            self._worst = [_Rows.joined(self._worst).worst(self._count)]

    def take(self) -> tuple[PickedRows | None, PickedRows | None]:
        """Return the worst samples and the chosen ones; None where there are none. Syncs."""
        if not self._indices:
            return None, None
        indices = np.concatenate(self._indices)
        wanted = _Rows.joined(self._wanted).on_host(indices) if self._wanted else None
        return _Rows.joined(self._worst).worst(self._count).on_host(indices), wanted


def _small(images_NCHW: torch.Tensor) -> torch.Tensor:
    """Scale images down by a whole factor, to at most `SIDE` pixels."""
    factor = _factor(images_NCHW)
    return F.avg_pool2d(images_NCHW.float(), factor) if factor > 1 else images_NCHW.float()


def _nearest(masks_NHW: torch.Tensor) -> torch.Tensor:
    """Scale masks as `_small` scales their images; each pixel keeps a class that is there."""
    factor = _factor(masks_NHW)
    height, width = (length // factor * factor for length in masks_NHW.shape[1:])
    return masks_NHW[:, factor // 2 : height : factor, factor // 2 : width : factor]


def _factor(images: torch.Tensor) -> int:
    return -(-max(images.shape[-2:]) // SIDE)
