"""Open what a configuration names: a folder, a set known by name, or the built-in shapes."""

import os
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from mptui.config.schema import DataConfig
from mptui.data.core.types import Dataset
from mptui.data.formats.assemble import assemble, assemble_prepared
from mptui.data.formats.image_folder import Found, find_classes, find_images, find_pairs
from mptui.data.formats.layout import detect_task
from mptui.data.formats.sharded import is_prepared, open_prepared
from mptui.data.formats.synthetic import DEFAULT_SAMPLES, Task, shapes
from mptui.data.formats.torchvision_sets import NAMED, fetched, open_arrays, open_files
from mptui.data.scan.scan import OnProgress, ShouldStop
from mptui.errors import ConfigError, DataError
from mptui.io.places import expanded
from mptui.io.user_cache import cache_folder
from mptui.text import clean_name

BUILT_IN = "shapes"


def task_of(data: DataConfig) -> str | None:
    """Tell the task that the data is for; None where it serves either.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The folder is missing, or has no layout that is known.
    """
    if data.name is None and data.path is not None:
        return detect_task(str(expanded(data.path)))
    tasks = _tasks_of(data.name or BUILT_IN)
    return tasks[0] if len(tasks) == 1 else None


def check_data(data: DataConfig, task: str) -> None:
    """Check that a set is one for `task`, without reading its files.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The folder is missing, has no layout that is known, or is for another task.
    """
    tasks: tuple[str, ...]
    if data.name is None and data.path is not None:
        what, tasks = data.path, (detect_task(str(expanded(data.path))),)
    else:
        what = data.name or BUILT_IN
        tasks = _tasks_of(what)
    if not _serves(tasks, task):
        raise _wrong_task(what, tasks, task)


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
        task: "classification", "segmentation", or "diffusion", which takes what is for classification too.
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
        dataset = _open_folder(data, data.path, task, side, seed, on_progress, should_stop)
    else:
        dataset = _open_named(data, data.name or BUILT_IN, task, side, seed, on_progress, should_stop)
    for warning in dataset.warnings:
        on_warning(warning)
    return replace(dataset, task=task)


def files_of(data: DataConfig, task: str | None, should_stop: ShouldStop) -> tuple[str, str, Found]:
    """List the files of a set that has one a sample: its name, its task and the files.

    Args:
        data: The set.
        task: What it is for, where it serves more than one task; None: the first of them.
        should_stop: Asked several times a second while files are fetched.

    Raises:
        ConfigError: The set is no set of files.
        DataError: It is missing, or not whole.
    """
    if data.name is None and data.path is not None:
        folder = os.path.abspath(expanded(data.path))  # noqa: PTH100 - links stay what they are
        detected = detect_task(folder)
        if task is not None and not _serves((detected,), task):
            raise _wrong_task(data.path, (detected,), task)
        title, found = _found(folder, task or detected)
        return title, task or detected, found
    name = data.name or BUILT_IN
    tasks = _tasks_of(name)
    if task is not None and not _serves(tasks, task):
        raise _wrong_task(name, tasks, task)
    chosen = _with_labels(task or tasks[0])
    if name == BUILT_IN or NAMED[name].files is None:
        raise ConfigError(
            f"{name} is no set of image files: there is nothing to prepare", hint=f"mptui run --data {name}"
        )
    root = cache_folder() / "data" if data.path is None else expanded(data.path)
    if data.download:
        fetched(name, root, should_stop)
    return name, chosen, open_files(name, root, chosen)


def _open_folder(
    data: DataConfig,
    path: str,
    task: str,
    side: int,
    seed: int,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> Dataset:
    folder = str(expanded(path))
    detected = detect_task(folder)
    if not _serves((detected,), task):
        raise _wrong_task(path, (detected,), task)
    if is_prepared(folder):
        return assemble_prepared(open_prepared(folder), data, side, seed)
    name, found = _found(folder, task)
    return assemble(name, found, data, seed, on_progress, should_stop)


def _found(folder: str, task: str) -> tuple[str, Found]:
    find = {"segmentation": find_pairs, "diffusion": find_images}.get(task, find_classes)
    return clean_name(Path(folder).resolve().name), find(folder)


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
    if not _serves(tasks, task):
        raise _wrong_task(name, tasks, task)
    task = _with_labels(task)
    if name == BUILT_IN:
        return shapes(cast(Task, task), data.samples or DEFAULT_SAMPLES, side, seed)
    root = cache_folder() / "data" if data.path is None else expanded(data.path)
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


def _serves(tasks: tuple[str, ...], task: str) -> bool:
    """Whether data for `tasks` can be had for `task`: of images in classes, diffusion takes the images."""
    return task in tasks or (task == "diffusion" and "classification" in tasks)


def _with_labels(task: str) -> str:
    """The task that a set is read for which has labels in any case."""
    return "classification" if task == "diffusion" else task


def _wrong_task(what: str, tasks: tuple[str, ...], task: str) -> DataError:
    if task == "diffusion":
        hint = "Choose --model unet, or give --data the folder of the images alone."
    else:
        hint = "Choose --model unet for masks, diffusion_unet for images alone, and any other for classes."
    return DataError(
        f"{clean_name(what)} is for {' and '.join(tasks)}, but the model is for {task}", hint=hint
    )
