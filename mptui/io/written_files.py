"""Writes results beside a person's files, and never over them; what to do where the disk refuses."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock

from mptui.errors import ConfigError, DiskError
from mptui.io.files import LineFile, open_regular, partial_path, read_regular

# Writes results beside a person's files, and never over them
# -----------------------------------------------------------
# A file that is there already is replaced only if this program has written it and nobody has changed it
# since, or with `force`; an input of the command never. What was written stands with its sha256 in
# `.mptui-files.jsonl` of its folder, a line a file.

LIST = ".mptui-files.jsonl"
"""Name of the list of the files that were written into a folder."""

_LARGEST_LIST = 256 << 20


class OutputFiles:
    """The files that one command writes; any thread may write one.

    Args:
        force: Replace files that others have written.
        inputs: Files that the command reads, which are never replaced.
        option: The option that names the place, for hints.
    """

    def __init__(self, *, force: bool = False, inputs: Sequence[str] = (), option: str = "--out") -> None:
        self._force = force
        self._paths = inputs
        self._option = option
        self._lock = Lock()
        self._lists: dict[Path, dict[str, set[str]]] = {}
        self._done: set[Path] = set()

    def check(self, path: Path) -> None:
        """Check that a file may be written: call it before long work.

        Raises:
            ConfigError: It would replace a file of another origin, or an input.
        """
        if not os.path.lexists(path):
            return
        if (place := _identity(str(path))) is not None and place in self._inputs:
            raise ConfigError(
                f"{path}: this command reads this file, and would replace it",
                hint=f"choose another place with {self._option}",
            )
        if not self._force and not self._is_own(path):
            raise ConfigError(
                f"{path}: there is such a file, which mptui has not written, or which was changed since",
                hint=f"choose another place with {self._option}, or replace it with --force",
            )

    @contextlib.contextmanager
    def write(self, path: Path) -> Iterator[Path]:
        """Yield a new file, which takes its name when it is complete; its folder is made if it is missing.

        Raises:
            ConfigError: As `check`; or this command has written a file of this name before.
            DiskError: It can't be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = partial_path(path)
            try:
                yield fresh
                self.put(fresh, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    fresh.unlink()
        except OSError as error:
            raise DiskError(
                f"{path}: cannot be written: {error.strerror or error}",
                hint=disk_hint(error, path, f"choose another place with {self._option}"),
            ) from error

    def put(self, fresh: Path, path: Path) -> None:
        """Rename a complete file to `path` and note it; raises as `write`.

        The note comes first: a process that is killed in between leaves a file that may be replaced.
        """
        digest = _digest(fresh)
        with self._lock:
            if path in self._done:
                raise ConfigError(
                    f"{path}: two results of this command would have this name",
                    hint="give the inputs one after the other, each with its own folder",
                )
            self.check(path)
            self._done.add(path)
            self._written(path.parent).setdefault(path.name, set()).add(digest)
            with contextlib.closing(LineFile(path.parent / LIST)) as lines:
                lines.append([json.dumps({"file": path.name, "sha256": digest})])
            fresh.replace(path)

    def _is_own(self, path: Path) -> bool:
        digests = self._written(path.parent).get(path.name, set())
        try:
            return bool(digests) and not path.is_symlink() and _digest(path) in digests
        except OSError:
            return False

    def _written(self, folder: Path) -> dict[str, set[str]]:
        if folder not in self._lists:
            self._lists[folder] = written_files(folder)
        return self._lists[folder]

    @cached_property
    def _inputs(self) -> frozenset[tuple[int, int] | None]:
        return frozenset(map(_identity, self._paths))


def written_files(folder: Path) -> dict[str, set[str]]:
    """Return the files that were written into a folder: the sha256 of what was in each, by its name."""
    written: dict[str, set[str]] = {}
    with contextlib.suppress(OSError):
        for line in read_regular(folder / LIST, _LARGEST_LIST, os.O_NOFOLLOW).splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                written.setdefault(str(entry["file"]), set()).add(str(entry["sha256"]))
    return written


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - for each of many inputs
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _digest(path: Path) -> str:
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Says what to do about a file that can't be written: by the cause, as a full disk is only one of them
# ----------------------------------------------------------------------------------------------------

_CAUSES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check the permissions"),
    errno.EROFS: "mount the disk writable",
    errno.ENOLCK: "start the lock service of this network disk",
    errno.ESTALE: "mount the disk again",
    errno.EIO: "check the disk and its connection",
    errno.ENOTCONN: "check the disk and its connection",
    errno.ETIMEDOUT: "check the connection of the disk",
    errno.EDQUOT: "free disk space within your quota",
}


def disk_hint(error: OSError, place: Path, otherwise: str = "") -> str:
    """Return the remedy of a failed write: that of its cause, or `otherwise`, as "choose another folder".

    What a run that has begun writes can be in no other place: it has no `otherwise`.
    """
    if error.errno == errno.ENOSPC:
        cause = "remove files: no inodes are free" if lacks_inodes(place) else "free disk space"
    else:
        cause = _CAUSES.get(error.errno or 0, "")
    return ", or ".join(filter(None, (cause, otherwise))) or "check the disk and the path"


def lacks_inodes(place: Path) -> bool:
    """Whether the disk of a file or folder has no room for another name; False where it can't be told."""
    for path in (place, place.parent):
        try:
            status = os.statvfs(path)
        except OSError:
            continue
        return bool(status.f_files) and not status.f_favail
    return False
