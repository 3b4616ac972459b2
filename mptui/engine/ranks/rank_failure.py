"""The failure of one rank, as the others raise it, and how it leaves them."""

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch.distributed as dist

from mptui import errors
from mptui.engine.guards.oom_errors import is_memory_full
from mptui.errors import MemoryExhaustedError, MptuiError, RankError
from mptui.registry.own_code import fault_of
from mptui.text import clean, clean_lines

_LOST = ("gloo", "Connection closed by peer", "Connection reset by peer", "NCCL", "ProcessGroup", "TCPStore")
"""Words of torch's errors about a group whose processes have ended."""

ABORT_S = 5.0
"""Seconds that a rank which leaves at once waits for operations that gloo can't give up."""


class RetryError(Exception):
    """The step failed on another rank, and is to be repeated by all."""


class PeerOutOfMemoryError(RetryError, MemoryError):
    """The step did not fit in the memory of another rank."""


@dataclass(frozen=True, slots=True)
class RankFailure:
    """An error that ended the work of a rank: the class of an `MptuiError`, and its words."""

    rank: int
    kind: str
    message: str
    hint: str

    @classmethod
    def of(cls, error: BaseException, rank: int) -> "RankFailure":
        """Describe `error`; that of a bug is a `RankError`."""
        known = error if isinstance(error, MptuiError) else fault_of(error)
        if known is not None:
            return cls(rank, type(known).__name__, known.message, known.hint)
        words = clean_lines(f"{type(error).__name__}: {error}", 500)
        if is_memory_full(error):
            return cls(rank, MemoryExhaustedError.__name__, words, "use a smaller --batch-size")
        return cls(rank, RankError.__name__, words, "see the traceback of that rank")

    def error(self) -> MptuiError:
        """Return the error for another rank to raise."""
        kind = getattr(errors, self.kind, RankError)
        raised: MptuiError = kind(f"rank {self.rank}: {self.message}", hint=self.hint)
        return raised


@contextlib.contextmanager
def lost() -> Iterator[None]:
    """Raise torch's error about a process that has ended as a `RankError`."""
    try:
        yield
    except RuntimeError as error:
        if (raised := as_lost(error)) is None:
            raise
        raise raised from error


def as_lost(error: BaseException) -> RankError | None:
    """Convert torch's error about a process that has ended; None for other errors."""
    if not isinstance(error, RuntimeError) or not any(word in str(error) for word in _LOST):
        return None
    words = re.sub(r"^\[[^\]]*\] ?", "", str(error).strip().splitlines()[0]).partition(". ")[0]
    return RankError(
        f"another process of the run has ended or can't be reached: {clean(words, 200)}",
        hint="read what the other processes say, then go on from the last save: mptui resume RUN",
    )


def leave_at_once() -> None:
    """Leave the group of this process, and give up operations that don't end in some seconds."""
    # in this thread, the last reference to the group would wait for its operations
    leaving = threading.Thread(target=_abort, daemon=True)
    leaving.start()
    leaving.join(ABORT_S)


def _abort() -> None:
    with contextlib.suppress(RuntimeError):
        if dist.group.WORLD is not None:
            dist.group.WORLD.abort()  # nccl gives up its operations, gloo has no such thing
        dist.destroy_process_group()  # gloo's threads can abort a process that ends with a group
