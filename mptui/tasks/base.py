"""`Task`, `Metrics`."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from typing_extensions import override

from mptui.data.batch import Batch, Window

# Interface of a task: a loss that adds up over an accumulation window, and metrics kept on the device
# ----------------------------------------------------------------------------------------------------


class Metrics(Protocol):
    """Metrics accumulated over many batches on the device; only `compute` and `per_class` sync."""

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add a batch; if an error is raised, nothing of it is added. Never syncs.

        `outputs` are detached. They may be kept until `compute`, so the caller must not write to them.
        """

    def compute(self) -> dict[str, float]:
        """The metrics of all batches so far, as fractions of 1; NaN if there were none. Syncs."""

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Metric -> class name -> value (None: absent); empty if the task has no metrics by class. Syncs."""
        return {}

    def confusion(self) -> torch.Tensor | None:
        """The confusion matrix of samples, or of pixels: int64 [K, K] on the host. Syncs.

        Rows are true classes, columns predicted ones. None if the task has no classes, or keeps no matrix.
        """
        return None

    def reset(self) -> None:
        """Start again without batches."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The accumulated sums, for a checkpoint.

        Those of several processes add up, where a missing one counts as 0; `scores` concatenate.
        """

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the sums from `state`."""


@runtime_checkable
class WindowMetrics(Metrics, Protocol):
    """Metrics that take a window as a whole, before the host knows whether it counts."""

    def kept_of(self, outputs: torch.Tensor, batch: Batch) -> Any:  # noqa: ANN401 - only they read it
        """Return what is counted of a batch; computes nothing."""

    def update_window(self, kept: Sequence[Any], counts: torch.Tensor) -> None:
        """Add what `kept_of` returned of the batches of a window; if an error is raised, none of them.

        Args:
            kept: Of each batch.
            counts: Whether the window counts, 0-dim bool on the device.
        """


class Task(Protocol):
    """A task: its loss and its metrics."""

    primary: str
    """The metric that decides which epoch is best: larger is better; or `val_loss`."""
    chance: float
    """Approximate loss of an untrained network."""

    def window_weight(self, window: Window) -> torch.Tensor | float:
        """The total weight of a window's valid items in the loss: `window.valid`, or by class weights.

        With weights it is a 0-dim tensor on the device; never syncs.
        """

    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        """This micro-batch's share of the loss of its accumulation window.

        The shares of a window's micro-batches add up to the loss of the window taken as one batch.

        Args:
            outputs: What the network returned, in any floating dtype.
            batch: The micro-batch it was given.
            window_weight: Total weight of the window's valid items, from `window_weight`; above 0.
            window_size: Sum of `size` over the window.

        Returns:
            A 0-dim float32 tensor on the device.
        """

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The sums that the loss is made of, for a set whose size is known only at its end.

        The loss of any number of batches is the total of the first sum divided by the total weight of the
        items (`window_weight`), plus the total of the second divided by the total of `size`. It does not
        depend on how the set is batched.

        Args:
            outputs: What the network returned, in any floating dtype.
            batch: The batch it was given.

        Returns:
            sums_2 on the device, float32: over the batch's valid items, and over its samples.
        """

    def dummy_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """Return a batch of these images with made-up targets, to time a step or to estimate its memory."""

    def metrics(self, device: torch.device, *, training: bool = False) -> Metrics:
        """Create metrics on `device`.

        With `training`, a batch whose metrics are not finite adds nothing: its step is skipped, and the
        metrics of the other steps stay valid. In a validation the result is not finite then.
        """


# The base of tasks whose loss is a mean over samples
# ---------------------------------------------------


class MeanTask(Task):
    """A task whose loss is the mean over all samples, each of which counts alike."""

    def mean(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the mean over the samples of a batch, a 0-dim float32 tensor; of none of them valid, 0."""
        raise NotImplementedError

    @override
    def window_weight(self, window: Window) -> float:
        return window.valid

    @override
    def loss(
        self, outputs: torch.Tensor, batch: Batch, window_weight: torch.Tensor | float, window_size: int
    ) -> torch.Tensor:
        mean = self.mean(outputs, batch)
        return mean if batch.size == window_size else mean * (batch.size / window_size)

    @override
    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        over_samples = batch.size * self.mean(outputs, batch)
        return torch.stack((torch.zeros_like(over_samples), over_samples))


# The base of metrics of images that follow from two sums over all batches
# ------------------------------------------------------------------------


class SumMetrics(Metrics):
    """Two sums on the device, of samples without classes.

    Args:
        device: Device of the sums.
        finite_only: Leave out batches whose sums are not finite.
    """

    def __init__(self, device: torch.device, *, finite_only: bool = False) -> None:
        self._sums = torch.zeros(2, device=device)
        self._finite_only = finite_only

    def add(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Add the sums of a batch. Never syncs."""
        sums = torch.stack([first, second])
        if self._finite_only:
            sums = torch.where(torch.isfinite(sums).all(), sums, 0.0)
        self._sums += sums

    def totals(self) -> tuple[float, float]:
        """Return both sums over all batches. Syncs."""
        first, second = self._sums.tolist()
        return first, second

    @override
    def reset(self) -> None:
        self._sums.zero_()

    @override
    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"sums": self._sums.clone()}

    @override
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._sums.copy_(state["sums"])
