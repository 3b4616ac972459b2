"""Whether a run that should be alive gives signs: one limit for screens, lists and documents."""

import contextlib
import io
import json
import os
import time
from pathlib import Path

from mptui.io.files import open_regular
from mptui.processes.waiting import AwakeClock
from mptui.runs.store.lock import NAME as LOCK

# Signs of life: the process of a run reports its device once a second, whatever its training thread does
# --------------------------------------------------------------------------------------------------------
# They stop if the process is suspended (SIGSTOP), if its disk hangs, or if the disk that a reader sees is
# gone. The clock of a run may be that of another machine, and each may be set: how old a sign was when it was
# first seen is taken from clocks only where they agree; from then on the reader's own clock counts.

SILENT_S = 12.0
"""Seconds without a sign after which a run is called silent: more than between two touches of its lock."""

_LONGEST_S = 5.0
"""Seconds between two looks beyond which the reader was away itself."""

_AGREE_S = 5.0
"""Largest difference of two clocks that agree."""

_JOURNAL = "events.jsonl"
_TAIL = 1 << 16
"""Last bytes of a journal, in which a run that gives signs has one."""
_SIGN, _PHASE, _END = (f'{{"event":"{kind}",'.encode() for kind in ("device", "phase", "run_finished"))


class Heartbeat:
    """Counts the seconds since the last sign of a run, by the clock of who looks.

    Args:
        clock: It stands still while the reader is away.
    """

    def __init__(self, clock: AwakeClock | None = None) -> None:
        self._clock = clock or AwakeClock(_LONGEST_S)
        self._sign: object = None
        self._since = self._clock()
        self._has_waited = False

    def seconds(self, sign: object, age_s: float) -> float:
        """Return the seconds since the last sign; call it again and again.

        Args:
            sign: A value that changes with each sign.
            age_s: How old it is, as far as that is known. It counts until one look has found no other:
                before, what is new to the reader may be old.
        """
        now = self._clock()
        if sign == self._sign:
            self._has_waited = True
        else:
            self._sign = sign
            self._since = now if self._has_waited else now - max(0.0, age_s)
        return now - self._since


def age_of(time_s: float, clock_s: float) -> float:
    """Return how long ago something was, by both clocks; 0 where they disagree.

    They do so for a run on another machine, and after the clock was set.

    Args:
        time_s: Seconds since the epoch.
        clock_s: Seconds of the monotonic clock, which all processes of a machine share.
    """
    by_wall, by_clock = time.time() - time_s, time.monotonic() - clock_s
    return max(0.0, by_clock) if abs(by_wall - by_clock) < _AGREE_S else 0.0


def silence_of(run: Path, heartbeat: Heartbeat) -> float | None:
    """Return the seconds without a sign of a run that a process trains; None while it is not silent.

    A run that begins, or begins again, is not expected to give signs yet.
    """
    try:
        files = [run / name for name in (_JOURNAL, LOCK)]
        sign = max(os.stat(path).st_mtime for path in files)  # noqa: PTH116 - as the files' writers do
    except OSError:
        return None
    seconds = heartbeat.seconds(sign, time.time() - sign)
    return seconds if seconds >= SILENT_S and _gives_signs(run) else None


def _gives_signs(run: Path) -> bool:
    """Whether the process that wrote the end of the journal had begun to give signs."""
    with contextlib.suppress(OSError), io.FileIO(open_regular(run / _JOURNAL)) as file:
        size = file.seek(0, io.SEEK_END)
        lines = os.pread(file.fileno(), _TAIL, max(0, size - _TAIL)).split(b"\n")[:-1]
        for line in reversed(lines):
            if line.startswith(_SIGN):
                return True
            if line.startswith(_END) or (line.startswith(_PHASE) and _begins(line)):
                return False
    return False


def _begins(line: bytes) -> bool:
    try:
        return json.loads(line).get("phase") in {"starting", "restarting"}
    except (ValueError, AttributeError, RecursionError):
        return False
