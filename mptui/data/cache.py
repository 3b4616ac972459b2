"""What is worth keeping between two runs, in the user's cache folder: JSON and plain arrays, never pickle."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """The folder for what can be made again: `$XDG_CACHE_HOME/mptui`, or `~/.cache/mptui`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "mptui"


def fingerprint(paths: Iterable[str]) -> str:
    """A digest of the paths, sizes and modification times of files; it changes when any of them does."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - a Path for each of a million files is slow
            facts = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            facts = "missing"
        digest.update(os.fsencode(path) + b"\0" + facts.encode() + b"\0")
    return digest.hexdigest()


def load_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Read a JSON file of the cache; None where there is none, or a damaged one."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def save_json(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write a JSON file of the cache, whole or not at all; a cache that can't be written is done without."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(json.dumps(value).encode())
                file.close()
                Path(file.name).replace(path)
            finally:
                Path(file.name).unlink(missing_ok=True)
