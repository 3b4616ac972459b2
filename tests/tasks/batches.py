"""Batches for the tests of this package."""

import numpy as np
import torch

from mptui.data.core.batch import Batch
from mptui.data.core.types import IGNORE


def labelled(targets, **mixed):
    targets = torch.as_tensor(targets)
    return Batch(
        images_BCHW=torch.zeros(len(targets), 3, 1, 1),
        targets=targets,
        size=len(targets),
        valid=len(targets),
        sample_indices=np.arange(len(targets)),
        **mixed,
    )


def masked(targets):
    batch = labelled(targets)
    batch.valid = int((batch.targets != IGNORE).sum())
    return batch


def padded(batch, rows):
    """Append `rows` padding rows with targets of class 0."""
    batch.targets = torch.cat((batch.targets, torch.zeros_like(batch.targets[:1]).repeat_interleave(rows, 0)))
    if batch.mixed_targets is not None:
        batch.mixed_targets = torch.cat((batch.mixed_targets, batch.mixed_targets.new_zeros(rows)))
    return batch


def loss_and_gradient(task, logits, batches, sizes):
    """Return the loss of a window, computed by micro-batches, and the gradient of all logits."""
    window_valid = max(1, sum(batch.valid for batch in batches))
    window_size = sum(batch.size for batch in batches)
    leaves = [part.detach().clone().requires_grad_() for part in logits.split(sizes)]
    total = torch.zeros(())
    for leaf, batch in zip(leaves, batches, strict=True):
        share = task.loss(leaf, batch, window_valid, window_size)
        assert share.shape == ()
        assert share.dtype == torch.float32
        share.backward()
        total += share.detach()
    return total, torch.cat([leaf.grad for leaf in leaves])
