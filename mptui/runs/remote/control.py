"""The control socket of a run: passes commands of clients to the session, and wakes clients."""

import contextlib
import json
import os
import re
import selectors
import socket
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mptui.config.profiles import profile_names
from mptui.errors import ConfigError, MptuiError
from mptui.events import CommandAnswered, Event, Warned, json_line
from mptui.registry.commands import COMMANDS, command_of
from mptui.runs.store.lock import is_open_in
from mptui.text import clean

# The control socket of a run: passes commands of clients to the session, and wakes clients
# -----------------------------------------------------------------------------------------
# The protocol is lines of JSON. A client first receives
#
#     {"protocol": 2, "run": "…", "profile": "fast", "presets": ["fast", …], "given": ["training.lr", …]}
#
# What happens in the run is in its journal, and nowhere else. A line that is no answer, mostly `{}`, says
# that there is more of it; a client that is slow to receive has one such line waiting, not more. A full disk
# keeps from the journal why the run waits for it: `{"disk": "…: No space left on device", "written": false}`.
#
# A client can send `{"command": "pause", "id": "7"}` or `{"command": "preset", "argument": "fast"}`, a screen
# with `"by": "key"`. A command with an id is answered with `{"answer": "7", "state": "asked"}` once the run
# has it, and the events that say what became of it have the id; invalid and refused lines are answered with
# `{"error": "…", "answer": "7"}`.
#
# Protocol 1 began with `{"hello": 1, …}` and sent each event as `{"at": …, "event": {…}}`: to a client of
# today, these are lines that are no answer. A client of protocol 1 finds no hello, and follows the file.

VERSION = 2
LINE_LIMIT = 4096
"""Largest line from a client, in bytes."""

BEHIND_LIMIT = 1 << 16
"""Unsent bytes of answers at which a client is disconnected."""

CLIENTS_LIMIT = 128
COMMANDS_A_SECOND = 20
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
FAULTS_LIMIT = 20
"""Invalid lines in a second at which a client is disconnected; a held key repeats a valid one."""

ACCEPT_PAUSE_S = 1.0
"""Seconds without accepting clients after an error."""

ENDING_S = 1.0
"""Seconds that the end of a run waits for clients to receive the last answers."""

PRESETS = 9
"""Number of profiles with a digit."""


def preset_names(environ: Mapping[str, str]) -> list[str]:
    """Return the profiles of a run, in the order of their digits."""
    return profile_names(environ)[:PRESETS]


class _Client:
    """One connection, with received and unsent data."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = bytearray()
        self.waiting = bytearray()
        self.faults = self._second = 0

    def note_fault(self, second: int) -> None:
        """Count an invalid line."""
        if second != self._second:
            self._second = second
            self.faults = 0
        self.faults += 1


class ControlServer:
    """Serves the control socket of one run in a separate thread.

    Args:
        run: The run directory, locked by this process.
        presets: Names of the profiles for the command `preset`.
        profile: Returns the current profile.
        given: Returns the settings that a person has given to this very run, which no profile changes.
        on_command: Accepts a command, its argument, its id, and who asks; may raise an MptuiError.
        clock: Clock in seconds, for the limit of commands per second over all clients.
    """

    def __init__(
        self,
        run: Path,
        *,
        presets: Sequence[str],
        profile: Callable[[], str],
        given: Callable[[], Sequence[str]] = tuple,
        on_command: Callable[[str, str | None, str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._presets = list(presets)
        self._profile = profile
        self._given = given
        self._on_command = on_command
        self._clock = clock
        self._second = self._commands = 0
        self._under_way: set[str] = set()
        self._lock = threading.Lock()
        self._news: dict[str, object] | None = None
        self._clients: list[_Client] = []
        self._socket: ControlSocket | None = None
        self._paused_until = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="mptui-control", daemon=True)

    def open(self) -> None:
        """Create the socket and start serving it.

        Raises:
            OSError: It can't be created.
        """
        self._socket = listen(self._run)
        self._listener = self._socket.listener
        self._selector = selectors.DefaultSelector()
        self._wakeup_read, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup_read, self._wakeup_write):
            end.setblocking(False)
        self._selector.register(self._wakeup_read, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()

    def handle(self, event: Event, *, written: bool = True) -> None:
        """Wake the clients: an event was given to the journal, and `written` or not. Never blocks."""
        if isinstance(event, CommandAnswered) and event.state == "taken":
            self._under_way.discard(event.command)
        news: dict[str, object] = {}
        if isinstance(event, Warned) and event.code == "disk":
            news = {"disk": event.message, "written": written}
        with self._lock:
            if not self._clients:
                return
            rings, self._news = self._news is not None, news or self._news or {}
        if not rings:
            self._ring()

    def close(self, *, remove: bool = True) -> None:
        """Send remaining data, and remove the socket unless another process owns it now."""
        if self._socket is None:
            return
        self._closing.set()
        self._ring()
        self._thread.join(2 * ENDING_S)
        if remove:
            self._socket.remove()
        else:
            self._listener.close()
        self._socket = None

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it rings already
            self._wakeup_write.send(b"\0")

    # -- the thread

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, ready in self._selector.select(ACCEPT_PAUSE_S if self._paused_until else None):
                if key.fileobj is self._wakeup_read:
                    self._drain_wakeups()
                elif key.data is None:
                    self._accept()
                else:
                    self._handle_client(key.data, ready)
            self._resume_accepting()
            self._deliver()
        self._disconnect()

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wakeup_read.recv(4096):
                pass

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no more files can be opened: a waiting client must not keep this thread busy
            self._selector.unregister(self._listener)
            self._paused_until = time.monotonic() + ACCEPT_PAUSE_S
            return
        connection.setblocking(False)
        if len(self._clients) >= CLIENTS_LIMIT or not is_own(connection):
            connection.close()
            return
        client = _Client(connection)
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        hello = {"protocol": VERSION, "run": self._run.name, "profile": self._profile()}
        hello |= {"presets": self._presets, "given": list(self._given())}
        self._send(client, json_line(hello))
        self._flush(client)

    def _resume_accepting(self) -> None:
        """Accept clients again after `ACCEPT_PAUSE_S`."""
        if self._paused_until and time.monotonic() >= self._paused_until:
            self._paused_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _handle_client(self, client: _Client, ready: int) -> None:
        if ready & selectors.EVENT_READ:
            self._receive(client)
        if client in self._clients:
            self._flush(client)

    def _receive(self, client: _Client) -> None:
        try:
            data = client.connection.recv(LINE_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        client.received += data
        *lines, rest = client.received.split(b"\n")
        client.received = rest
        for line in lines:
            if client.faults < FAULTS_LIMIT:
                self._handle_line(client, bytes(line))
        if len(rest) > LINE_LIMIT:
            client.faults = FAULTS_LIMIT
        if client.faults >= FAULTS_LIMIT:
            self._drop(client)

    def _handle_line(self, client: _Client, line: bytes) -> None:
        document = _document(line)
        id = document.get("id")
        answer = {"answer": id} if isinstance(id, str) and _ID.fullmatch(id) else {}
        try:
            command, argument = command_of(document.get("command"), document.get("argument"), self._presets)
        except ValueError as error:
            client.note_fault(int(self._clock()))
            self._send(client, json_line({"error": clean(str(error), 200), **answer}))
            return
        try:
            is_save = COMMANDS[command].is_save
            if not self._may_command() and not is_save:
                raise ConfigError("too many commands at once", hint="wait a second")
            if self._commands <= COMMANDS_A_SECOND or command not in self._under_way:
                self._under_way |= {command} if is_save else set()
                by = "key" if document.get("by") == "key" else "script"
                self._on_command(command, argument, answer.get("answer", ""), by)
        except MptuiError as error:
            self._send(client, json_line({"error": clean(str(error), 200), **answer}))
        else:
            if answer:
                self._send(client, json_line({**answer, "state": "asked"}))

    def _may_command(self) -> bool:
        """Count a command; return whether it is within the limit per second."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._commands = 0
        self._commands += 1
        return self._commands <= COMMANDS_A_SECOND

    def _deliver(self) -> None:
        """Wake all clients if there is something new, and send what waits."""
        with self._lock:
            news, self._news = self._news, None
        for client in list(self._clients):
            if news or (news is not None and not client.waiting):  # else what waits wakes it
                self._send(client, json_line(news))
            self._flush(client)

    def _send(self, client: _Client, line: bytes) -> None:
        if len(client.waiting) + len(line) > BEHIND_LIMIT:
            self._flush(client)
        if len(client.waiting) + len(line) > BEHIND_LIMIT:
            self._drop(client)
        client.waiting += line

    def _flush(self, client: _Client) -> None:
        """Send as much as the client accepts now."""
        if client not in self._clients:
            return
        try:
            while client.waiting:
                del client.waiting[: client.connection.send(client.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            client.waiting.clear()  # it has left; its last command may still have to be read
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.waiting else 0)
        if self._selector.get_key(client.connection).events != wanted:
            self._selector.modify(client.connection, wanted, client)

    def _drop(self, client: _Client) -> None:
        if client not in self._clients:
            return
        self._clients.remove(client)
        self._selector.unregister(client.connection)
        client.connection.close()

    def _disconnect(self) -> None:
        """Send the last lines to all clients that accept them at once; then disconnect."""
        until = time.monotonic() + ENDING_S
        self._deliver()
        while any(client.waiting for client in self._clients) and time.monotonic() < until:
            for key, ready in self._selector.select(0.05):
                if key.data is not None and ready & selectors.EVENT_WRITE:
                    self._flush(key.data)
        for client in list(self._clients):
            self._drop(client)
        self._selector.close()
        for end in (self._wakeup_read, self._wakeup_write):
            end.close()


def _document(line: bytes) -> dict[str, Any]:
    """Return the document of a client's line; empty if it is none."""
    try:
        document = json.loads(line) if len(line) <= LINE_LIMIT else None
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


# Creates and finds the control socket of a run, which only the owner can use
# ---------------------------------------------------------------------------
# It is `control.sock` in the run directory. Paths of sockets are limited to about 107 bytes, and some file
# systems don't support sockets: then it is in a private folder under `$XDG_RUNTIME_DIR` or the temporary
# folder, and `control.sock` is a link to it.

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
        self.listener = listener
        self.path = path
        self._folder = folder
        self._link = link

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
        pid = peer(connection)[0] if is_link else None
        if pid is not None and not is_open_in(run, pid):
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
