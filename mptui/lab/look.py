"""Opens a set as a run with the same settings would, and counts the classes that a network would have."""

from dataclasses import dataclass
from pathlib import Path

from mptui.config.schema import DataConfig, RunConfig
from mptui.data.open import files_of, open_dataset
from mptui.data.scan import OnProgress
from mptui.data.types import Dataset
from mptui.errors import ConfigError, DiskError, MptuiError
from mptui.io.files import replace_file
from mptui.io.written_files import disk_hint
from mptui.registry.names import SampleKind
from mptui.registry.tasks import ASSUMED_CLASSES, DEFAULT_TASK
from mptui.runs.planning.plan import NO_DATA, Plan, Request, resolve_request
from mptui.text import clean_name

# The number of classes that a network would have, before it is trained
# ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClassCount:
    """A number of classes.

    Attributes:
        number: The number; 0: the network tells none apart.
        assumed: Why it is assumed; "": it is that of the data.
    """

    number: int
    assumed: str = ""

    @property
    def words(self) -> str:
        """Describe it: `150 classes`."""
        if not self.number:
            return "no classes"
        return f"{self.number:,} classes" + (f" assumed, as {self.assumed}" if self.assumed else "")


def count_classes(plan: Plan, on_progress: OnProgress) -> ClassCount:
    """Count the classes of the data of a plan; those of masks take a scan of all masks.

    Data that can't be read doesn't keep a network from being counted.
    """
    if plan.config.model.reads(plan.task) is SampleKind.IMAGE:
        return ClassCount(0)
    if plan.resolved.sources.get("data.name") == NO_DATA:
        return ClassCount(ASSUMED_CLASSES, "no data is given (--data)")
    try:
        return ClassCount(_classes_of(plan.config, plan.task, on_progress))
    except MptuiError as error:
        first_line = error.message.partition("\n")[0]
        return ClassCount(ASSUMED_CLASSES, f"the data can't be read: {first_line}")


def _classes_of(config: RunConfig, task: str, on_progress: OnProgress) -> int:
    kind = config.model.reads(task)
    if kind is not SampleKind.MASK:
        try:
            return len(files_of(config.data, kind, on_progress, lambda: False)[2].classes)
        except ConfigError:  # the set has no files of its own
            pass
    return len(dataset_of(config, task, on_progress).classes)


# Opens a set as a run with the same settings would, and writes what is made of it
# --------------------------------------------------------------------------------

_SIDE = 64
"""Side of the built-in images in pixels."""


def read_data(request: Request, on_progress: OnProgress) -> tuple[Dataset, DataConfig]:
    """Open the set of a request, as the kind that it has if no network is named; return it and its settings.

    Raises:
        ConfigError: A setting is wrong, or the person's own code is not trusted.
        DataError: The data is missing, empty, unreadable, or can be read in several ways.
    """
    resolved = resolve_request(request)
    config = resolved.config
    return dataset_of(config, resolved.task or DEFAULT_TASK, on_progress), config.data


def dataset_of(config: RunConfig, task: str, on_progress: OnProgress) -> Dataset:
    """Open the set of a run.

    Raises:
        ConfigError, DataError: As `read_data`.
    """
    return open_dataset(
        config.data,
        kind=config.model.reads(task),
        side=int(config.data.image_size or _SIDE),
        seed=config.split_seed,
        on_progress=on_progress,
        should_stop=lambda: False,
        on_warning=lambda _: None,  # they are in the dataset
    )


def write_new(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        DiskError: It can't be written.
    """
    try:
        replace_file(path, content, mode=0o666)
    except OSError as error:
        raise DiskError(
            f"{clean_name(str(path))}: {(error.strerror or str(error)).lower()}",
            hint=disk_hint(error, path, "choose another folder"),
        ) from error
