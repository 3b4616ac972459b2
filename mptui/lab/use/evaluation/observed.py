"""Measures each sample of an evaluation beside its metrics: its loss, and the classes that were confused.

Nothing waits for the device before the end.

Shapes: B samples, K classes, H and W pixels.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import Batch
from mptui.data.core.types import IGNORE
from mptui.engine.guards.microbatch import part
from mptui.tasks.base import Metrics, Task


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """Figures of the samples of a set, in their order.

    Attributes:
        indices: Index of each sample in the split; a sample may be there twice, in place of a broken one.
        losses: Its loss, as it would be of a set of this sample alone.
        truths: Its class; with masks, the class of the pixels that were most confused.
        predicted: The class predicted for these.
        confidence: The probability of the predicted class; with masks its sum over the pixels of this pair of
            classes, as a share of the valid pixels; 0 if no pixel is wrong.
    """

    indices: npt.NDArray[np.int64]
    losses: npt.NDArray[np.float64]
    truths: npt.NDArray[np.int64]
    predicted: npt.NDArray[np.int64]
    confidence: npt.NDArray[np.float64]


@dataclass(slots=True)
class _Figures:
    """Figures of one batch, on the device."""

    indices: npt.NDArray[np.int64]
    losses_B: torch.Tensor
    cells_B: torch.Tensor
    """True class x K + predicted class."""
    confidence_B: torch.Tensor


@dataclass(slots=True)
class ObservedMetrics:
    """The metrics of a task, and figures of each sample.

    Args:
        inner: The metrics.
        task: The task, whose loss is measured sample by sample.
        num_classes: Number of classes, K.
    """

    inner: Metrics
    task: Task
    num_classes: int
    _batches: list[_Figures] = field(default_factory=list)

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`."""
        figures = self._figures(outputs, batch)  # before the metrics: if memory is full, nothing was added
        self.inner.update(outputs, batch)
        self._batches.append(figures)

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        return self.inner.compute()

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """See `Metrics.per_class`."""
        return self.inner.per_class()

    def confusion(self) -> torch.Tensor | None:
        """See `Metrics.confusion`."""
        return self.inner.confusion()

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self.inner.reset()
        self._batches.clear()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See `Metrics.state_dict`; figures of samples are not saved."""
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See `Metrics.load_state_dict`."""
        self.inner.load_state_dict(state)

    def samples(self) -> SampleFigures:
        """Return the figures of all samples. Waits for the device."""
        cells = _on_host([each.cells_B for each in self._batches]).astype(np.int64)
        return SampleFigures(
            indices=np.concatenate([each.indices for each in self._batches]),
            losses=_on_host([each.losses_B for each in self._batches]),
            truths=cells // self.num_classes,
            predicted=cells % self.num_classes,
            confidence=_on_host([each.confidence_B for each in self._batches]),
        )

    def _figures(self, outputs: torch.Tensor, batch: Batch) -> _Figures:
        cells_B, confidence_B = _confused(
            outputs[: batch.size], batch.targets[: batch.size], self.num_classes
        )
        return _Figures(
            batch.sample_indices[: batch.size], _losses(self.task, outputs, batch), cells_B, confidence_B
        )


def _losses(task: Task, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the loss of each sample, as losses_B."""
    sums_B2 = torch.stack(
        [task.loss_sums(outputs[row : row + 1], part(batch, row, row + 1)) for row in range(batch.size)]
    )
    valid_B = (batch.targets[: batch.size].reshape(batch.size, -1) != IGNORE).sum(dim=1).clamp(min=1)
    return sums_B2[:, 0] / valid_B + sums_B2[:, 1]


def _confused(
    outputs: torch.Tensor, targets: torch.Tensor, num_classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most confused pair of classes of each sample as cells_B, and its confidence_B."""
    rows = len(targets)
    if targets.is_floating_point() or outputs.ndim < 2 or outputs.shape[1] != num_classes:
        return torch.zeros(rows, dtype=torch.int64, device=targets.device), torch.zeros(
            rows, device=targets.device
        )
    confidence, predicted = outputs.float().softmax(dim=1).max(dim=1)
    cells = targets.clamp(min=0) * num_classes + predicted
    if targets.ndim == 1:
        return cells, confidence
    wrong = confidence * ((targets != predicted) & (targets != IGNORE))
    pairs = [_heaviest(*each, num_classes) for each in zip(cells, wrong, targets, strict=True)]
    cells_B, shares_B = zip(*pairs, strict=True)
    return torch.stack(cells_B), torch.stack(shares_B)


def _heaviest(
    cells_HW: torch.Tensor, wrong_HW: torch.Tensor, targets_HW: torch.Tensor, num_classes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pair of classes whose wrong pixels have the largest sum, and the sum per valid pixel."""
    sums = torch.zeros(num_classes**2, device=wrong_HW.device)
    sums.scatter_add_(0, cells_HW.flatten(), wrong_HW.flatten())
    most, cell = sums.max(dim=0)
    return cell, most / (targets_HW != IGNORE).sum().clamp(min=1)


def _on_host(tensors: list[torch.Tensor]) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = torch.cat(tensors).cpu().double().numpy()
    return values
