"""Writes the files of predictions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mptui.errors import DiskError
from mptui.io.atomic import replacing


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Yield a new file, which takes its name when it is complete; its folder is made if it is missing.

    Raises:
        DiskError: It can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as fresh:
            yield fresh
    except OSError as error:
        raise DiskError(
            f"{path}: cannot be written: {error.strerror or error}",
            hint="free disk space, or choose another place with --out",
        ) from error
