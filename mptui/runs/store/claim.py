"""Claims a run for this process, and keeps it: what `lock` tells of others, this one writes.

A name in the run's directory is changed under a lock of the run's private file (`flock`), so that nobody
takes the run over in the middle of it.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mptui.errors import DiskError, RunDirectoryError
from mptui.io.atomic import replace_file
from mptui.io.disk_hint import disk_hint
from mptui.io.removal import remove_partial
from mptui.regular import OddFileError, open_regular, read_regular
from mptui.runs.store.lock import (
    LARGEST,
    LOST_AFTER_S,
    NAME,
    PRIVATE,
    VERSION,
    Holder,
    boot_id,
    holder_of,
    pid_namespace,
    start_time,
)

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
_Look = tuple[int, int, int]


class Claim:
    """This process's right to write to a run, until it releases or loses it.

    Args:
        run: The run's directory.

    Raises:
        RunDirectoryError: Another living process has the run.
        DiskError: The run's directory can't be written.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._path = run, run / NAME
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
        self._seen = _look(self._path.stat())
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
            seen = _look(self._path.stat())
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
                self._check(_look(self._path.stat()))
            except FileNotFoundError:
                self._take_again_alone(untouched)
            yield

    def _check(self, seen: _Look) -> None:
        try:
            content = read_regular(self._path, LARGEST)
        except OddFileError:
            raise self._lost() from None
        if content != self._content:
            raise self._lost()
        self._seen, self._read = seen, time.time()

    def _take_again(self, untouched: Callable[[], bool]) -> None:
        with contextlib.suppress(OSError), _alone_with(self._run):
            self._take_again_alone(untouched)

    def _take_again_alone(self, untouched: Callable[[], bool]) -> None:
        if not untouched():
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
            hint=f"this process writes nothing more; to see the run: mptui attach {self._run.name}",
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


def _look(status: os.stat_result) -> _Look:
    """Return the identity of a file, with its time, as inode numbers are reused."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _held(run: Path, holder: Holder) -> RunDirectoryError:
    if holder.host is None:
        return RunDirectoryError(
            f"{run}: process {holder.pid} is training this run",
            hint=f"watch it (mptui attach {run.name}), wait until it ends, or stop it",
        )
    left = max(1, round(LOST_AFTER_S - holder.age_s))
    return RunDirectoryError(
        f"{run}: process {holder.pid} on {holder.host} is training this run, as of {holder.age_s:.0f} s ago",
        hint=f"stop it there (mptui stop {run.name}); if that machine is gone, try again in {left} s, "
        f"or remove {run / NAME}",
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
