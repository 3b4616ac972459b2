"""Builds the task of a run."""

from collections.abc import Sequence

from mptui.config.schema import TrainingConfig
from mptui.registry.tasks import TASKS
from mptui.tasks.base import Task


def build_task(name: str, classes: Sequence[str], training: TrainingConfig) -> Task:
    """Build a task: its loss and its metrics.

    Args:
        name: A key of `mptui.registry.tasks.TASKS`.
        classes: The names of the dataset's classes; the index of each is its label.
        training: Holds the settings that the loss depends on.
    """
    spec = TASKS[name]
    return spec.build(classes, **{key: getattr(training, key) for key in spec.settings})
