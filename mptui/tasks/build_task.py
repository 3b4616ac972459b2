"""Builds the task of a run."""

from collections.abc import Sequence

import torch

from mptui.config.schema import TrainingConfig
from mptui.errors import ConfigError
from mptui.registry.own_code import is_own
from mptui.registry.tasks import TASKS, VAL_LOSS
from mptui.tasks.base import Task
from mptui.tasks.classification import class_weights
from mptui.tasks.own_loss import build_own_task


def build_task(
    name: str,
    classes: Sequence[str],
    training: TrainingConfig,
    learns: str | None = None,
    *,
    counts: Sequence[int] = (),
) -> Task:
    """Build a task: its loss and its metrics.

    Args:
        name: A key of `mptui.registry.tasks.TASKS`.
        classes: The names of the dataset's classes; the index of each is its label.
        training: Holds the settings that the loss depends on.
        learns: `model.task`: one of the person's own has the data of the task `name`, and a loss of its own.
        counts: Training samples, or pixels, of each class, for balanced weights; empty: unknown.

    Raises:
        ConfigError: The data has no such primary metric, as AUROC without two classes; the class weights
            don't fit its classes; or the person has no such task.
    """
    spec = TASKS[name]
    given = {key: getattr(training, key) for key in spec.settings}
    if "class_weights" in given:
        given["class_weights"] = class_weights(training.class_weights, classes, counts)
    task = spec.build(classes, **given)
    if is_own(learns):
        task = build_own_task(str(learns), task, len(classes))
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
