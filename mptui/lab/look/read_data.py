"""Opens a set as a run with the same settings would, and writes what is made of it."""

from collections.abc import Callable
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.core.types import Dataset
from mptui.data.formats.open import open_dataset
from mptui.errors import DiskError
from mptui.io.atomic import replace_file
from mptui.io.disk_hint import disk_hint
from mptui.registry.tasks import DEFAULT_TASK
from mptui.runs.planning.plan import Request, resolve_request
from mptui.text import clean_name

_SIDE = 64
"""Side of the built-in images in pixels."""


def read_data(request: Request, on_progress: Callable[[int, int], None]) -> tuple[Dataset, DataConfig]:
    """Open the set of a request, as the kind that it has if no network is named; return it and its settings.

    Raises:
        ConfigError: A setting is wrong, or the person's own code is not trusted.
        DataError: The data is missing, empty, unreadable, or can be read in several ways.
    """
    resolved = resolve_request(request)
    config = resolved.config
    dataset = open_dataset(
        config.data,
        kind=config.model.reads(resolved.task or DEFAULT_TASK),
        side=int(config.data.image_size or _SIDE),
        seed=config.split_seed,
        on_progress=on_progress,
        should_stop=lambda: False,
        on_warning=lambda _: None,  # they are in the dataset
    )
    return dataset, config.data


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
