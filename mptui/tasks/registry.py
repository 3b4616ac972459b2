"""The tasks by name, and batches for them that are made up."""

from collections.abc import Sequence

import numpy as np
import torch

from mptui.config.schema import TrainingConfig
from mptui.data.core.batch import Batch
from mptui.errors import ConfigError
from mptui.tasks.base import Task
from mptui.tasks.classification import Classification
from mptui.tasks.diffusion import Diffusion
from mptui.tasks.segmentation import Segmentation


def build_task(name: str, classes: Sequence[str], training: TrainingConfig) -> Task:
    """Make the task that a dataset asks for.

    Args:
        name: `classification`, `segmentation` or `diffusion`.
        classes: The names of the dataset's classes; the index of each is its label.
        training: Where the label smoothing is read.

    Raises:
        ConfigError: There is no such task.
    """
    if name == Classification.name:
        return Classification(len(classes), training.label_smoothing)
    if name == Segmentation.name:
        return Segmentation(classes)
    if name == Diffusion.name:
        return Diffusion()
    raise ConfigError(
        f"there is no task called {name!r}",
        hint=f"Use data for {Classification.name}, {Segmentation.name} or {Diffusion.name}.",
    )


def made_up_batch(name: str, images_BCHW: torch.Tensor) -> Batch:
    """A batch of the task `name` to time or count a step with; what is to be learnt of the images is 0."""
    rows, sides, device = len(images_BCHW), images_BCHW.shape[2:], images_BCHW.device
    indices = np.arange(rows)
    if name == Diffusion.name:
        steps = torch.zeros(rows, dtype=torch.int64, device=device)
        return Batch(images_BCHW, torch.zeros_like(images_BCHW), rows, rows, indices, timesteps=steps)
    shape = (rows, *sides) if name == Segmentation.name else (rows,)
    targets = torch.zeros(shape, dtype=torch.int64, device=device)
    return Batch(images_BCHW, targets, rows, targets.numel(), indices)
