"""Files in the user's cache folder, kept between runs: JSON and plain arrays, never pickle."""

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

from mptui.io.files import base_folder, open_regular, read_regular, replacing

_LARGEST = 256 << 20


def cache_folder() -> Path:
    """Return the folder for reproducible files: `$XDG_CACHE_HOME/mptui`, or `~/.cache/mptui`."""
    return base_folder("XDG_CACHE_HOME", ".cache") / "mptui"


def load_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Read a JSON file of the cache; None if it is missing or damaged."""
    try:
        return json.loads(read_regular(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return None


def save_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a JSON file of the cache atomically; errors are ignored."""
    _save(path, lambda file: file.write(json.dumps(value).encode()))


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of a cache file; empty if it is missing or damaged."""
    try:
        with os.fdopen(open_regular(path), "rb") as raw, np.load(raw, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays to a cache file, as `save_json` does."""
    _save(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically, also with concurrent writers.

    Raises:
        OSError: The disk is full or not writable.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh, open(fresh, "xb", opener=partial(os.open, mode=0o600)) as file:
        write(file)


def _save(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    with suppress(OSError):
        write_whole(path, write)
