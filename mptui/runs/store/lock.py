"""One owner on all machines."""

import contextlib
import errno
import fcntl
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mptui.errors import DiskError, RunDirectoryError
from mptui.io.files import OddFileError, open_regular, read_regular, replace_file
from mptui.io.own_files import remove_partial
from mptui.io.written_files import disk_hint
from mptui.text import clean, shell_word

# lock.json: names the process that trains a run, the only one on all machines of a shared disk
# ---------------------------------------------------------------------------------------------
# Processes of this machine are looked up by PID. A process of another machine, or of another container (PID
# namespace), touches its lock regularly and counts as gone when it has not done so for minutes. It may only
# have been suspended (a closed lid, a frozen machine): so each process checks its lock before it writes,
# and locks the run's private file while it changes a name in it: `claim` does so.

NAME = "lock.json"
VERSION = 2

LOST_AFTER_S = 300.0
"""Seconds without a touch after which an owner on another machine counts as gone; clocks may differ."""

PRIVATE = ".lock"
"""Name of the file that is locked, by `flock`, while a name in a run's directory changes.

Only its owner can open it, and the process that has the run keeps it open."""

LARGEST = 1 << 16
"""Largest size of a lock in bytes."""
_HAS_PROC = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that trains a run: of this machine, or of `host`, seen `age_s` seconds ago.

    `host` is also set for a process of another PID namespace of this machine.
    """

    pid: int
    host: str | None
    age_s: float

    @property
    def is_this_process(self) -> bool:
        """Whether it is the calling process."""
        return self.host is None and self.pid == os.getpid()


def owner_of(run: Path) -> int | None:
    """Return the PID of the living process of this machine that trains the run; None if there is none.

    Raises:
        DiskError: As `holder_of`.
    """
    holder = holder_of(run)
    return holder.pid if holder is not None and holder.host is None else None


def is_open_in(run: Path, pid: int) -> bool:
    """Whether a process of this machine can write to the private file or the journal of the run, as an owner.

    A lock file alone proves nothing: it can name any process. Nor does a reader, as `tail`. True where the
    system can't tell.
    """
    if not _HAS_PROC:
        return True
    own = {os.path.join(os.path.realpath(run), name) for name in (PRIVATE, "events.jsonl")}  # noqa: PTH118
    try:
        files = list(os.scandir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        return False
    except PermissionError:  # of another user, who alone can send it signals
        return True
    for file in files:
        with contextlib.suppress(OSError):
            if os.readlink(file.path) in own and _can_write(pid, file.name):  # noqa: PTH115 - no file
                return True
    return False


def _can_write(pid: int, descriptor: str) -> bool:
    """Whether a process has a file open for writing, by the octal flags that the system tells."""
    words = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().split()
    return int(words[words.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY


def is_held(run: Path) -> bool:
    """Whether a process trains the run, or may do so because its lock is unreadable."""
    try:
        return holder_of(run) is not None
    except DiskError:
        return True


def holder_of(run: Path) -> Holder | None:
    """Return the process that trains the run; None if there is none, or the lock is stale.

    Raises:
        DiskError: The lock can't be read.
    """
    path = run / NAME
    try:
        content, touched = read_regular(path, LARGEST), path.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError, OddFileError):
        return None
    except OSError as error:
        raise DiskError(
            f"{path}: can't be read, so another process may train this run: {error.strerror}",
            hint="try again when the disk responds and the file is readable",
        ) from error
    try:
        lock = json.loads(content)
        pid, started, boot = int(lock["pid"]), lock["started"], lock["boot"]
        namespace = lock.get("namespace", pid_namespace())  # missing in older locks
        host = lock.get("host", platform.node())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    age_s = max(0.0, time.time() - touched)
    is_here = host == platform.node()
    if is_here and boot == boot_id():
        if namespace == pid_namespace():
            return Holder(pid, None, age_s) if started == start_time(pid) else None
        host = f"{host} (another container)"
    elif is_here and touched < _boot_time():
        return None  # this machine before its last boot
    return Holder(pid, clean(str(host), 100), age_s) if age_s < LOST_AFTER_S else None


def start_time(pid: int) -> float | None:
    """Return the start time of `pid`, to distinguish a new process that reuses the PID of an owner.

    None if it has ended, even as a zombie. On Linux in ticks since boot, as wall-clock times change when the
    clock is set.
    """
    if _HAS_PROC:
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in {b"Z", b"X"} else float(fields[19])
    import psutil

    try:
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        return None if ended else round(float(process.create_time()), 2)
    except psutil.Error:
        return None


def boot_id() -> str:
    """Return what tells this boot of the machine from others; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the PID namespace, within which PIDs are unique; "" if the system has none."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no file
    except OSError:
        return ""


def _boot_time() -> float:
    import psutil

    return float(psutil.boot_time())


# Claims a run for this process, and keeps it: what `lock` tells of others, this one writes
# -----------------------------------------------------------------------------------------
# A name in the run's directory is changed under a lock of the run's private file (`flock`), so that nobody
# takes the run over in the middle of it.

BEAT_S = 10.0
"""Seconds between two touches of the lock by its owner."""

READ_S = 0.9
"""Seconds after which an apparently unchanged lock is read again, by wall-clock time, which continues while a
machine sleeps."""

DIRECTORY_WAIT_S = 10.0
"""Time limit in seconds for locking a run directory, which others lock only for one rename."""

_WITHOUT_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
"""Errors of a file system without locks: lock.json is all that is relied on."""
_POLL_S = 0.005
_Identity = tuple[int, int, int]


class Claim:
    """This process's right to write to a run, until it releases or loses it.

    Invariant: the process whose content lock.json has is the only one that writes to the run. lock.json is
    replaced and removed with the directory locked alone, so that of two that find it stale one takes it.

    Args:
        run: The run's directory.

    Raises:
        RunDirectoryError: Another living process has the run.
        DiskError: The run's directory can't be written.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._path = run / NAME
        mine = {"pid": os.getpid(), "started": start_time(os.getpid()), "boot": boot_id()}
        place = {"namespace": pid_namespace(), "host": platform.node()}
        self._content = json.dumps({"version": VERSION, **mine, **place}).encode()
        self._released = False
        self._open: int | None = None
        self._take()
        with contextlib.suppress(OSError):
            self._open = _open_private(run)  # tells others whose run it is; see `is_open_in`

    def _take(self) -> None:
        try:
            with _alone_with(self._run):
                self._take_alone()
        except TimeoutError as error:
            raise _busy(self._run) from error
        except OSError as error:
            raise _cant_lock(self._run, error) from error

    def _take_alone(self) -> None:
        holder = holder_of(self._run)
        if holder is not None and not holder.is_this_process:
            raise _held(self._run, holder)
        replace_file(self._path, self._content)
        for path in self._run.iterdir():
            remove_partial(path)  # of an owner that was killed
        self._seen = _identity(self._path.stat())
        self._read = time.time()
        self._touched = time.monotonic()

    def keep(self, untouched: Callable[[], bool]) -> None:
        """Check that this process still owns the run, and touch the lock for other machines.

        Call it before each write and about once per second; it is cheap.

        Args:
            untouched: Returns whether no other process has written to the run: then a removed lock is
            restored.

        Raises:
            RunDirectoryError: Another process has taken the run over while this one was suspended.
        """
        if self._released:
            return
        try:
            seen = _identity(self._path.stat())
            if seen != self._seen or not 0 <= time.time() - self._read < READ_S:
                self._check(seen)
            if time.monotonic() - self._touched > BEAT_S:
                self._touched = time.monotonic()
                os.utime(self._path)
        except FileNotFoundError:
            if self._run.is_dir():
                self._take_again(untouched)
        except OSError:  # disk error: an unreadable file can't be written either
            pass

    @contextlib.contextmanager
    def change(self, untouched: Callable[[], bool]) -> Iterator[None]:
        """Change a name in the run's directory, or append to a file in it, as its owner.

        No other process can take the run over during the body, even if this process is suspended in it: so
        the body is one rename, removal or write, and waits for nothing else. Don't nest it, and don't hold a
        lock that `untouched` acquires.

        Args:
            untouched: As in `keep`.

        Raises:
            RunDirectoryError: Another process has taken the run over.
            OSError: The run's directory or its lock can't be read.
        """
        with _alone_with(self._run):
            try:
                self._check(_identity(self._path.stat()))
            except FileNotFoundError:
                self._take_again_alone(untouched)
            yield

    def _check(self, seen: _Identity) -> None:
        try:
            content = read_regular(self._path, LARGEST)
        except OddFileError:
            raise self._lost() from None
        if content != self._content:
            raise self._lost()
        self._seen = seen
        self._read = time.time()

    def _take_again(self, untouched: Callable[[], bool]) -> None:
        with contextlib.suppress(OSError), _alone_with(self._run):
            self._take_again_alone(untouched)

    def _take_again_alone(self, untouched: Callable[[], bool]) -> None:
        if not untouched():
            if not self._run.is_dir():  # gone meanwhile, as from a disk that is not mounted: nobody has it
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._run))
            raise self._lost()
        try:
            self._take_alone()
        except RunDirectoryError:
            raise self._lost() from None
        except DiskError as error:
            raise OSError(errno.EIO, error.message) from error

    def _lost(self) -> RunDirectoryError:
        try:
            holder = holder_of(self._run)
        except DiskError:
            holder = None
        if holder is None:
            who = "another process has taken this run over, and has ended,"
        else:
            where = f" on {holder.host}" if holder.host is not None else ""
            who = f"process {holder.pid}{where} has taken this run over"
        return RunDirectoryError(
            f"{self._run}: {who} while this one was suspended",
            hint=f"this process writes nothing more; to see the run: mptui attach {shell_word(self._run)}",
        )

    def release(self) -> None:
        """Release the run. If the disk can't be written, the lock becomes stale when this process ends."""
        self._released = True
        if self._open is not None:
            os.close(self._open)
            self._open = None
        with contextlib.suppress(OSError), _alone_with(self._run):
            if read_regular(self._path, LARGEST) == self._content:
                self._path.unlink()


def _identity(status: os.stat_result) -> _Identity:
    """Return the identity of a file, with its time, as inode numbers are reused."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _held(run: Path, holder: Holder) -> RunDirectoryError:
    if holder.host is None:
        return RunDirectoryError(
            f"{run}: process {holder.pid} is training this run",
            hint=f"watch it (mptui attach {shell_word(run)}), wait until it ends, or stop it",
        )
    left = max(1, round(LOST_AFTER_S - holder.age_s))
    return RunDirectoryError(
        f"{run}: process {holder.pid} on {holder.host} is training this run, as of {holder.age_s:.0f} s ago",
        hint=f"stop it there (mptui stop {shell_word(run)}); if that machine is gone, try again in {left} s, "
        f"or remove {shell_word(run / NAME)}",
    )


def _cant_lock(run: Path, error: OSError) -> DiskError:
    hint = disk_hint(error, run, "choose another folder with --runs-dir")
    return DiskError(f"{run}: can't be locked: {error.strerror}", hint=hint)


def _busy(run: Path) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run}: another process has been writing to this directory for {DIRECTORY_WAIT_S:.0f} s",
        hint="it may be suspended or waiting for its disk: continue or end it, then try again",
    )


@contextlib.contextmanager
def _alone_with(run: Path) -> Iterator[None]:
    """Lock the run's private file for a change; the kernel releases it when the process ends.

    Raises:
        TimeoutError: Another process keeps it locked.
        OSError: It can't be opened or locked: then nothing may be changed.
    """
    until = time.monotonic() + DIRECTORY_WAIT_S
    while True:
        file = _open_private(run)
        try:
            _lock_file(file, until)
            if _is_in_place(file, run):  # else it was removed meanwhile: another one counts
                try:
                    yield
                finally:  # closing is not enough: a forked child has it open, too
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_UN)
                return
        finally:
            os.close(file)


def _open_private(run: Path) -> int:
    return open_regular(run / PRIVATE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)


def _is_in_place(file: int, run: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), (run / PRIVATE).lstat())
    except FileNotFoundError:
        return False


def _lock_file(file: int, until: float) -> None:
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(errno.ETIMEDOUT, "another process keeps the run locked") from None
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno in _WITHOUT_LOCKS:
                return None
            raise
