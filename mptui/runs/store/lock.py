"""lock.json: names the process that trains a run, the only one on all machines of a shared disk.

Processes of this machine are looked up by PID. A process of another machine, or of another container (PID
namespace), touches its lock regularly and counts as gone when it has not done so for minutes. It may only
have been suspended (a closed lid, a frozen machine): so each process checks its lock before it writes, and
locks the run's private file while it changes a name in it: `claim` does so.
"""

import contextlib
import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mptui.errors import DiskError
from mptui.regular import OddFileError, read_regular
from mptui.text import clean

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
