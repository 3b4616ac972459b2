"""Classification of images: cross-entropy, top-1 and top-5 accuracy.

Shapes: B samples, K classes.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from mptui.data.core.batch import Batch

_TOP = 5
_MOST_WAITING = 32
_MOST_WAITING_NUMBERS = 1 << 20


class Classification:
    """Learn the class of each image.

    The loss of a window is the mean cross-entropy of its samples. For two mixed images it is the mean of both
    labels' cross-entropies, weighted by their shares.

    Args:
        num_classes: Number of classes, K.
        label_smoothing: Share of each target that is spread over all classes.
    """

    primary = "acc1"

    def __init__(self, num_classes: int, label_smoothing: float) -> None:
        self.num_classes = num_classes
        self.chance = math.log(max(2, num_classes))
        self.label_smoothing = label_smoothing

    def loss(self, outputs: torch.Tensor, batch: Batch, window_valid: int, window_size: int) -> torch.Tensor:
        """See `Task.loss`; outputs are logits_BK."""
        logits_BK = _real_rows(outputs, batch.size).float()
        mean = self._cross_entropy(logits_BK, batch.targets)
        if batch.mixed_targets is not None:
            mixed = self._cross_entropy(logits_BK, batch.mixed_targets)
            mean = batch.lam * mean + (1 - batch.lam) * mixed
        return mean if batch.size == window_size else mean * (batch.size / window_size)

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Task.loss_sums`; outputs are logits_BK."""
        over_samples = batch.size * self.loss(outputs, batch, batch.valid, batch.size)
        return torch.stack((torch.zeros_like(over_samples), over_samples))

    def made_up_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """See `Task.made_up_batch`; all labels are 0."""
        rows = len(images_BCHW)
        targets_B = torch.zeros(rows, dtype=torch.int64, device=images_BCHW.device)
        return Batch(images_BCHW, targets_B, rows, rows, np.arange(rows))

    def metrics(self, device: torch.device, *, training: bool = False) -> "Accuracy":
        """See `Task.metrics`."""
        return Accuracy(self.num_classes, device)

    def _cross_entropy(self, logits_BK: torch.Tensor, targets_B: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            logits_BK, _real_rows(targets_B, logits_BK.shape[0]), label_smoothing=self.label_smoothing
        )


def _real_rows(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The rows before the padding."""
    return tensor if tensor.shape[0] == size else tensor[:size]


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
        self._count = 0
        # several batches are ranked together: for small ones the calls cost more than the work
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._waiting_numbers = 0

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """See `Metrics.update`; outputs are logits_BK."""
        targets_B = batch.targets
        if batch.mixed_targets is not None and batch.lam < 0.5:
            targets_B = batch.mixed_targets
        self._waiting.append((_real_rows(outputs, batch.size), _real_rows(targets_B, batch.size)))
        numbers = self._waiting_numbers + outputs.numel()
        self._waiting_numbers = numbers
        if len(self._waiting) >= _MOST_WAITING or numbers >= _MOST_WAITING_NUMBERS:
            try:
                self._rank()
            except Exception:  # out of memory: the batch comes again
                self._waiting.pop()
                self._waiting_numbers = numbers - outputs.numel()
                raise
        self._count += batch.size

    def _rank(self) -> None:
        """Rank the waiting batches and count their hits."""
        if self._waiting:
            outputs, targets = zip(*self._waiting, strict=True)
            ranked = torch.cat(outputs).topk(self._ranks).indices
            self._hits_at_rank += (ranked == torch.cat(targets)[:, None]).sum(dim=0)
        self._waiting, self._waiting_numbers = [], 0

    def compute(self) -> dict[str, float]:
        """See `Metrics.compute`."""
        self._rank()
        hits, count = self._hits_at_rank.tolist(), self._count
        if not count:
            return {"acc1": math.nan, "acc5": math.nan}
        return {"acc1": hits[0] / count, "acc5": sum(hits) / count}

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Empty: accuracy is over all classes together."""
        return {}

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self._waiting, self._waiting_numbers = [], 0
        self._hits_at_rank.zero_()
        self._count = 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See `Metrics.state_dict`; states of several processes add up."""
        self._rank()
        return {"hits_at_rank": self._hits_at_rank.clone(), "count": torch.tensor(self._count)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See `Metrics.load_state_dict`."""
        self.reset()
        self._hits_at_rank.copy_(state["hits_at_rank"])
        self._count = int(state["count"])
