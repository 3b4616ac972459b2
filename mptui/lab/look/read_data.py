"""Opens a set as a run with the same settings would, and writes what is made of it."""

from pathlib import Path

from mptui.config.schema import DataConfig, RunConfig
from mptui.data.core.types import Dataset
from mptui.data.formats.open import open_dataset
from mptui.data.scan.scan import OnProgress
from mptui.errors import DiskError
from mptui.io.atomic import replace_file
from mptui.io.disk_hint import disk_hint
from mptui.registry.tasks import DEFAULT_TASK
from mptui.runs.planning.plan import Request, resolve_request
from mptui.text import clean_name

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
