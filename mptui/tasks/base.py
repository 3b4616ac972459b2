"""What the trainer asks of a task: a loss that adds up over a window, and metrics that stay on the device."""

from typing import Protocol

import torch

from mptui.data.core.batch import Batch


class Metrics(Protocol):
    """Sums over many batches, kept on the device; nothing syncs before `compute`."""

    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        """Add a batch, all of it or, where an error is raised, nothing of it. Never syncs.

        `outputs`, detached, are kept for a while and must not be written to.
        """

    def compute(self) -> dict[str, float]:
        """The metrics so far, as fractions of 1; syncs. NaN where nothing was added."""

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Metric -> class name -> value (None: absent); empty where a task has no such thing."""

    def reset(self) -> None:
        """Forget all batches."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The sums, for a checkpoint."""

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Go on from `state`."""


class Task(Protocol):
    """What is learnt."""

    primary: str
    """The metric that decides which epoch is best; larger is better."""
    chance: float
    """About the loss of a network that knows nothing."""

    def loss(self, outputs: torch.Tensor, batch: Batch, window_valid: int, window_size: int) -> torch.Tensor:
        """This micro-batch's share of the loss of its accumulation window.

        The shares of a window's micro-batches add up to the loss of the window taken as one batch.

        Args:
            outputs: What the network returned, in any floating dtype.
            batch: The micro-batch it was given.
            window_valid: Sum of `valid` over the window; at least 1.
            window_size: Sum of `size` over the window.

        Returns:
            A 0-dim float32 tensor on the device.
        """

    def loss_sums(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """What the loss is made of, so that it can be told of a set whose size is known only at its end.

        The loss of any number of batches is the sum of the first, by all of their `valid`, and the sum of the
        second, by all of their `size`: it does not depend on how the set is cut into them.

        Args:
            outputs: What the network returned, in any floating dtype.
            batch: The batch it was given.

        Returns:
            sums_2 on the device, float32: over the batch's valid items, and over its samples.
        """

    def made_up_batch(self, images_BCHW: torch.Tensor) -> Batch:
        """A batch of these images with made-up targets, to time a step or to count its memory with."""

    def metrics(self, device: torch.device, *, training: bool = False) -> Metrics:
        """Fresh sums on `device`.

        With `training`, a batch whose figures are not finite adds nothing: its step is refused, and must not
        cost the figures of the others. A validation shows that it is not finite.
        """
