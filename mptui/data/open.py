"""Open what a configuration names: a folder, a set known by name, or the built-in shapes."""

import os
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from mptui.config.schema import DataConfig
from mptui.data.assemble import assemble
from mptui.data.cache import cache_folder
from mptui.data.folders import find_classes, find_pairs
from mptui.data.layout import detect_task
from mptui.data.named import NAMED, fetched, open_arrays, open_files
from mptui.data.scan import OnProgress, ShouldStop
from mptui.data.shapes import DEFAULT_SAMPLES, Task, shapes
from mptui.data.types import Dataset
from mptui.errors import ConfigError, DataError
from mptui.text import clean_name

BUILT_IN = "shapes"


def task_of(data: DataConfig) -> str | None:
    """Tell the task that the data is for; None where it serves either.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The folder is missing, or has no layout that is known.
    """
    if data.name is None and data.path is not None:
        return detect_task(_expanded(data.path))
    tasks = _tasks_of(data.name or BUILT_IN)
    return tasks[0] if len(tasks) == 1 else None


def open_dataset(
    data: DataConfig,
    *,
    task: str,
    side: int,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
    on_warning: Callable[[str], None],
) -> Dataset:
    """Find, scan and split the data of a run.

    Args:
        data: What to open, and how.
        task: "classification" or "segmentation".
        side: Pixels of a side that built-in images are drawn with.
        seed: Chooses the validation half where the data has none, and draws built-in images.
        on_progress: Called with (files looked at, files in all).
        should_stop: Asked several times a second while files are looked at or fetched.
        on_warning: Called with each of the dataset's warnings.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing, empty, unreadable, or for another task.
        DiskError: A set has no room in the cache folder.
        ScanCancelledError: `should_stop` said so.
    """
    if data.name is None and data.path is not None:
        dataset = _open_folder(data, data.path, task, seed, on_progress, should_stop)
    else:
        dataset = _open_named(data, data.name or BUILT_IN, task, side, seed, on_progress, should_stop)
    for warning in dataset.warnings:
        on_warning(warning)
    return dataset


def _open_folder(
    data: DataConfig, path: str, task: str, seed: int, on_progress: OnProgress, should_stop: ShouldStop
) -> Dataset:
    folder = _expanded(path)
    detected = detect_task(folder)
    if detected != task:
        raise _wrong_task(path, (detected,), task)
    found = find_pairs(folder) if task == "segmentation" else find_classes(folder)
    name = clean_name(Path(folder).resolve().name)
    return assemble(name, found, data, seed, on_progress, should_stop)


def _open_named(
    data: DataConfig,
    name: str,
    task: str,
    side: int,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> Dataset:
    tasks = _tasks_of(name)
    if task not in tasks:
        raise _wrong_task(name, tasks, task)
    if name == BUILT_IN:
        return shapes(cast(Task, task), data.samples or DEFAULT_SAMPLES, side, seed)
    root = cache_folder() / "data" if data.path is None else Path(_expanded(data.path))
    if data.download:
        fetched(name, root, should_stop)
    if NAMED[name].files is None:
        return open_arrays(name, root)
    return assemble(name, open_files(name, root, task), data, seed, on_progress, should_stop)


def _tasks_of(name: str) -> tuple[str, ...]:
    if name == BUILT_IN:
        return ("classification", "segmentation")
    if name in NAMED:
        return NAMED[name].tasks
    names = [BUILT_IN, *NAMED]
    near = get_close_matches(name.lower(), names, n=1)
    raise ConfigError(
        f"data.name: there is no set called {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        hint=f"Choose one of {', '.join(names)}, or a folder with --data ./FOLDER.",
    )


def _wrong_task(what: str, tasks: tuple[str, ...], task: str) -> DataError:
    return DataError(
        f"{clean_name(what)} is for {' and '.join(tasks)}, but the model is for {task}",
        hint="Choose --model unet for images with masks, and any other model for classes.",
    )


def _expanded(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111 - pathlib raises for a user that is not there
