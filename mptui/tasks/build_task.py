"""Builds the task of a run."""

from collections.abc import Sequence

import torch

from mptui.config.schema import TrainingConfig
from mptui.errors import ConfigError
from mptui.registry.tasks import TASKS, VAL_LOSS
from mptui.tasks.base import Task


def build_task(name: str, classes: Sequence[str], training: TrainingConfig) -> Task:
    """Build a task: its loss and its metrics.

    Args:
        name: A key of `mptui.registry.tasks.TASKS`.
        classes: The names of the dataset's classes; the index of each is its label.
        training: Holds the settings that the loss depends on.

    Raises:
        ConfigError: The data has no such primary metric, as AUROC without two classes.
    """
    spec = TASKS[name]
    task = spec.build(classes, **{key: getattr(training, key) for key in spec.settings})
    if training.primary_metric is not None:
        task.primary = training.primary_metric
        _check_primary(task)
    return task


def _check_primary(task: Task) -> None:
    names = [*task.metrics(torch.device("cpu")).compute(), VAL_LOSS]
    if task.primary not in names:
        raise ConfigError(
            f'training.primary_metric = "{task.primary}": this data has no such metric',
            hint=f"choose one of {', '.join(names)}",
        )
