"""What is worth keeping between two runs, in the user's cache folder: JSON and plain arrays, never pickle."""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mptui.io.atomic import replacing
from mptui.io.places import base_folder
from mptui.regular import open_regular, read_regular

_LARGEST = 256 << 20


def cache_folder() -> Path:
    """The folder for what can be made again: `$XDG_CACHE_HOME/mptui`, or `~/.cache/mptui`."""
    return base_folder("XDG_CACHE_HOME", ".cache") / "mptui"


def load_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Read a JSON file of the cache; None where there is none, or a damaged one."""
    try:
        return json.loads(read_regular(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return None


def save_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a JSON file of the cache, whole or not at all; a cache that can't be written is done without."""
    _save(path, lambda file: file.write(json.dumps(value).encode()))


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a file of the cache; none where there is no file, or a damaged one."""
    try:
        with os.fdopen(open_regular(path), "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as a file of the cache, as `save_json` does."""
    _save(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file, whole or not at all, whoever else writes it at the same time.

    Raises:
        OSError: There is no room, or no permission.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh, open(fresh, "xb", opener=partial(os.open, mode=0o600)) as file:
        write(file)


def _save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    with suppress(OSError):
        write_whole(path, write)
