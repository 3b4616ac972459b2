"""Batches for the tests of this package."""

import numpy as np
import torch

from mptui.data.batch import Batch
from mptui.data.types import IGNORE


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
