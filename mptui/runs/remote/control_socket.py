"""Creates and finds the control socket of a run, which only the owner can use.

It is `control.sock` in the run directory. Paths of sockets are limited to about 107 bytes, and some file
systems don't support sockets: then it is in a private folder under `$XDG_RUNTIME_DIR` or the temporary
folder, and `control.sock` is a link to it.
"""

import contextlib
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mptui.runs.store.lock import is_open_in

NAME = "control.sock"
LONGEST = 103
"""Longest path of a socket on all systems, in bytes: Linux 107, macOS 103."""

_PREFIX = "mptui-"
_YOUNG_S = 60.0
"""Age in seconds below which the process of a folder may not listen yet."""

_CREDENTIALS = struct.Struct("3i")


class ControlSocket:
    """A listening socket and its files."""

    def __init__(self, listener: socket.socket, path: Path, folder: Path | None, link: Path | None) -> None:
        self.listener, self.path = listener, path
        self._folder, self._link = folder, link

    def remove(self) -> None:
        """Close the socket and remove its files."""
        self.listener.close()
        for path in (self.path, self._link):
            with contextlib.suppress(OSError):
                if path is not None:
                    path.unlink()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.rmdir()


def listen(run: Path) -> ControlSocket:
    """Create the socket of `run`, which this process owns; replaces that of an earlier owner.

    Raises:
        OSError: No folder allows a socket.
    """
    link = run.resolve() / NAME
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    _remove_abandoned()
    with contextlib.suppress(OSError):
        return ControlSocket(_listener(link), link, None, None)
    folder = _private_folder()
    try:
        path = folder / NAME
        control = ControlSocket(_listener(path), path, folder, link)
    except OSError:
        folder.rmdir()
        raise
    try:
        link.symlink_to(path)
    except OSError:
        control.remove()
        raise
    return control


def connect(run: Path, timeout: float) -> socket.socket:
    """Connect to the socket of `run`, with a timeout in seconds for reads and writes.

    Raises:
        OSError: There is no socket, no process listens, or it belongs to another user.
    """
    path, is_link = run.resolve() / NAME, False
    with contextlib.suppress(OSError):  # no link
        path, is_link = path.readlink(), True
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(str(path))
        if not is_own(connection):
            raise PermissionError("the socket belongs to another user")
        if is_link and (pid := peer(connection)[0]) is not None and not is_open_in(run, pid):
            raise PermissionError("the link leads to the socket of another run")
    except OSError:
        connection.close()
        raise
    return connection


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to this user, or its user is unknown."""
    uid = peer_uid(connection)
    return uid is None or uid == os.geteuid()


def peer_uid(connection: socket.socket) -> int | None:
    """Return the user id of the process at the other end; None if the system can't tell it."""
    return peer(connection)[1]


def peer(connection: socket.socket) -> tuple[int | None, int | None]:
    """Return process id and user id of the other end; None if the system can't tell them."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None, None
    answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(answer)
    return int(pid), int(uid)


def _listener(path: Path) -> socket.socket:
    """Bind and listen. Access is limited to the owner before `listen` allows connections."""
    if len(os.fsencode(path)) > LONGEST:
        raise OSError(f"{path}: too long for a socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return listener


def _private_folder() -> Path:
    """Create a folder that only this user can access, independently of the umask."""
    failure = OSError("no folder for a socket")
    for base in _bases():
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError as error:
            failure = error
    raise failure


def _remove_abandoned() -> None:
    """Remove this user's private folders of killed processes, whose sockets refuse connections."""
    for base in _bases():
        for folder in Path(base).glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError):
                if _is_abandoned(folder):
                    (folder / NAME).unlink()
                    folder.rmdir()


def _is_abandoned(folder: Path) -> bool:
    """Whether a folder belongs to this user, isn't new, and has only a socket that refuses connections.

    Raises:
        OSError: It can't be read.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if time.time() - status.st_mtime < _YOUNG_S or [path.name for path in folder.iterdir()] != [NAME]:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        try:
            connection.connect(str(folder / NAME))
        except ConnectionRefusedError:
            return stat.S_ISSOCK((folder / NAME).lstat().st_mode)
    return False


def _bases() -> Iterator[str]:
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        yield base
    yield tempfile.gettempdir()
