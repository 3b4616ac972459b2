"""Files: replaced atomically, appended by lines, regular ones alone; the user's folders."""

import contextlib
import errno
import hashlib
import os
import re
import shlex
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

# Atomic file replacement: after a crash or on a full disk, the file is the old or the new one
# --------------------------------------------------------------------------------------------
# All calls go through `os`, one by one, so that tests can make any of them fail.

_WRITE_BLOCK = 1 << 22
_PARTIAL = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.partial")

Guard = Callable[[], contextlib.AbstractContextManager[None]]
"""Context around each rename that other processes see. It raises if this process no longer owns the run; its
body must be short. See `mptui.runs.store.lock.Claim.change`."""


def partial_path(path: Path) -> Path:
    """Return a temporary name next to `path`, unique among processes and machines."""
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")


def is_partial(name: str) -> bool:
    """Whether a file's name is one that `partial_path` gives."""
    return _PARTIAL.fullmatch(name) is not None


def write_synced(path: Path, blocks: Iterable[bytes | memoryview], mode: int = 0o600) -> str:
    """Write a file, and wait until it is on the disk.

    Args:
        path: The file.
        blocks: Its content.
        mode: Permissions of a new file, less the umask; by default its owner's alone.

    Returns:
        The sha256 of the content in hex, computed from memory, so that a reader detects a disk that stored
        other bytes.

    Raises:
        OSError: The disk is full, gone or not writable; the file may be incomplete.
    """
    digest = hashlib.sha256()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        for block in blocks:
            digest.update(block)
            left = memoryview(block).cast("B")
            while left:
                left = left[os.write(file, left[:_WRITE_BLOCK]) :]
        os.fsync(file)
    finally:
        os.close(file)
    return digest.hexdigest()


@contextlib.contextmanager
def replacing(path: Path, guard: Guard = contextlib.nullcontext, fresh: Path | None = None) -> Iterator[Path]:
    """A name to write a file under, which takes the place of `path` by one rename when the block ends.

    What was written is removed where the block, the guard or the rename fails.

    Args:
        path: The file.
        guard: Entered for the rename alone.
        fresh: The name; by default one that no other process has.
    """
    fresh = fresh or partial_path(path)
    try:
        yield fresh
        with guard():
            os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def replace_file(
    path: Path, content: bytes | memoryview, guard: Guard = contextlib.nullcontext, mode: int = 0o600
) -> str:
    """Replace a file by one rename, once its content is on the disk; returns the content's sha256.

    Args:
        path: The file.
        content: What will be in it.
        guard: As in `replacing`.
        mode: As in `write_synced`.

    Raises:
        OSError: The disk is full, gone or not writable; the old file is unchanged.
        MptuiError: Raised by the guard; the old file is unchanged.
    """
    with replacing(path, guard) as fresh:
        return write_synced(fresh, [content], mode)


def replace_unsynced(path: Path, content: bytes) -> None:
    """Replace a file of its owner alone by one rename, without waiting for the disk.

    For what a key keeps, as a theme: a busy disk takes seconds, and a power cut may leave the file empty.

    Raises:
        OSError: The disk is full, gone or not writable; the old file is unchanged.
    """
    with replacing(path) as fresh, open(fresh, "xb", opener=partial(os.open, mode=0o600)) as file:
        file.write(content)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk.

    Raises:
        OSError: The disk is gone.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Text files that grow by whole lines, for readers such as grep and spreadsheets
# ------------------------------------------------------------------------------

_READ_BLOCK = 65536


class LineFile:
    """A file that lines are appended to; a torn last line of an earlier process is removed.

    Args:
        path: The file, created for its owner alone. Links are refused.
        header: First line of a new file.

    Raises:
        OSError: It can't be opened or repaired.
    """

    def __init__(self, path: Path, header: str = "") -> None:
        self._file = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        try:
            self._end = cut_torn_line(self._file)
            if not self._end and header:
                self.append([header])
        except OSError:
            os.close(self._file)
            raise

    def append(self, lines: list[str]) -> None:
        """Append all lines, or none.

        Raises:
            OSError: The disk is full or gone.
        """
        left = "".join(f"{line}\n" for line in lines).encode()
        end = self._end + len(left)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end = end

    def first_line(self) -> str:
        """Return the first line, without its line break."""
        return os.pread(self._file, _READ_BLOCK, 0).partition(b"\n")[0].decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def cut_torn_line(file: int) -> int:
    """Remove the part after the last line break, reading only the file's end; return the remaining size.

    Raises:
        OSError: The disk is gone.
    """
    size = os.lseek(file, 0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(0, end - _READ_BLOCK)
        block = os.pread(file, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)
    return end


# Expands `~` and the XDG variables
# ---------------------------------
# `pathlib` raises for an unknown user and for a user without a home, as in some containers. Here `~nobody`
# stays unexpanded and then is a missing folder; without a home, nothing can be saved.


def expanded(path: str) -> Path:
    """Expand a leading `~` or `~user`."""
    return Path(os.path.expanduser(path))


def absolute(path: str) -> str:
    """Return the absolute path, without resolving links."""
    return os.path.abspath(expanded(path))


def base_folder(variable: str, default: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that an XDG variable names, else `default` in the home folder."""
    if named := environ.get(variable):
        return Path(named)
    home = expanded("~")
    return (home if home.is_absolute() else Path(os.devnull)) / default


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for state other than settings, which may not exist."""
    return base_folder("XDG_STATE_HOME", ".local/state", environ) / "mptui"


# Reads a path that a person typed, pasted or dropped on the terminal, as it is meant
# -----------------------------------------------------------------------------------

_FILE = "file://"


def meant_path(text: str) -> str:
    """Return the path or name that is meant; one that exists as it stands is that.

    A file manager drops a path with quotes or backslashes, as for a shell, or as a `file://` address. A name
    with accents has two forms in Unicode: files from macOS often have the one (NFD), keyboards give the other
    (NFC). The one on the disk is returned, unless several are there and none is as typed.
    """
    if _exists(text):
        return text
    return _as_on_disk(_from_address(_unquoted(text.strip())))


def _exists(path: str) -> bool:
    return os.path.lexists(expanded(path))


def _unquoted(text: str) -> str:
    if not set("'\"\\") & set(text):
        return text
    try:
        words = shlex.split(text)
    except ValueError:  # an open quote
        return text
    return words[0] if len(words) == 1 else text


def _from_address(text: str) -> str:
    host, slash, path = text.removeprefix(_FILE).partition("/")
    is_address = text.startswith(_FILE) and slash
    if not is_address or host not in {"", "localhost", os.uname().nodename}:
        return text
    from urllib.parse import unquote

    return unquote(f"/{path}", errors="surrogateescape")


def _as_on_disk(path: str) -> str:
    if path.isascii() or _exists(path):
        return path
    place = expanded(path)
    found = place.anchor
    for name in place.parts[bool(found) :]:
        names = [name] if _exists(os.path.join(found, name)) else _alike(found, name)
        if len(names) != 1:
            return path
        found = os.path.join(found, names[0])
    return found


def _alike(folder: str, name: str) -> list[str]:
    """Return the names in a folder that differ from `name` by their Unicode form alone."""
    try:
        names = os.listdir(folder or os.curdir)
    except (OSError, ValueError):
        return []
    return [each for each in names if _composed(each) == _composed(name)]


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


# Opens regular files only, for directories that may hold FIFOs, devices or links
# -------------------------------------------------------------------------------
# Opening a FIFO waits for its other end, reading `/dev/zero` never ends, and a link can point out of its
# directory.

_REGULAR_BLOCK = 1 << 20


class OddFileError(OSError):
    """Not a regular file, or larger than its size limit."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file as `os.open` does, and return its descriptor; never waits for other kinds.

    Args:
        path: The file.
        flags: Flags of `os.open`. With `O_NOFOLLOW` a link is refused.
        mode: Permissions of a file that is created.

    Raises:
        OddFileError: It is not a regular file.
        OSError: It can't be opened.
    """
    try:
        file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
    except OSError as error:
        refused = {errno.ENXIO} | ({errno.ELOOP} if flags & os.O_NOFOLLOW else set())
        if error.errno in refused:  # a socket, a FIFO without a reader, a link
            raise _odd(path, "not a regular file") from error
        raise
    kind = os.fstat(file).st_mode
    if stat.S_ISREG(kind):
        return file
    os.close(file)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise _odd(path, "not a regular file")


def read_regular(path: str | os.PathLike[str], limit: int, flags: int = 0) -> bytes:
    """Read the whole of a regular file.

    Args:
        path: The file.
        limit: Largest size in bytes.
        flags: Additional flags of `os.open`.

    Raises:
        OddFileError: It is not a regular file, or larger than `limit`.
        OSError: It can't be read.
    """
    file = open_regular(path, os.O_RDONLY | flags)
    try:
        content = bytearray()
        while block := os.read(file, min(_REGULAR_BLOCK, limit + 1 - len(content))):
            content += block
    finally:
        os.close(file)
    if len(content) > limit:
        raise _odd(path, f"larger than {limit:,} bytes")
    return bytes(content)


def _odd(path: str | os.PathLike[str], why: str) -> OddFileError:
    return OddFileError(errno.EINVAL, why, os.fspath(path))
