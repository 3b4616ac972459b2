"""The tasks by name."""

from collections.abc import Sequence

from mptui.config.schema import TrainingConfig
from mptui.errors import ConfigError
from mptui.tasks.base import Task
from mptui.tasks.classification import Classification
from mptui.tasks.segmentation import Segmentation


def build_task(name: str, classes: Sequence[str], training: TrainingConfig) -> Task:
    """Make the task that a dataset asks for.

    Args:
        name: `classification` or `segmentation`.
        classes: The names of the dataset's classes; the index of each is its label.
        training: Where the label smoothing is read.

    Raises:
        ConfigError: There is no such task.
    """
    if name == Classification.name:
        return Classification(len(classes), training.label_smoothing)
    if name == Segmentation.name:
        return Segmentation(classes)
    raise ConfigError(
        f"there is no task called {name!r}",
        hint=f"Use data for {Classification.name} or {Segmentation.name}.",
    )
