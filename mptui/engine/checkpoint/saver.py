"""When, and in a thread."""

import contextlib
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from typing_extensions import override

from mptui.config.schema import CheckpointConfig
from mptui.engine.checkpoint.files import (
    UNDO,
    UNDO_BEST,
    Snapshot,
    is_after,
    keep_only,
    point,
    point_as,
    unpoint,
    write_checkpoint,
)
from mptui.engine.checkpoint.pointers import lost_words, steps_lost, target_of
from mptui.errors import DiskError
from mptui.events import CheckpointSaved, Event, Warned
from mptui.io.files import Guard

# Decides when to save, and writes checkpoints in a thread while training continues
# ---------------------------------------------------------------------------------
# A snapshot is a copy in host memory, or on its way there from a GPU; it is written, hashed and synced in
# parallel with training. Saves at the end of an epoch and of a new best take at most a twentieth of the
# time: they are deferred if epochs are short. A deferred best is kept in host memory, and written at the
# latest when the run ends.
#
# A disk that is full, read-only, missing, or locked by another process holds the run but does not end it:
# the snapshot stays in memory, and the write is retried until it succeeds. A stop says which steps would be
# lost, and retries for `LAST_WAIT_S`.

_SHARE = 20
"""Minimum training time between two automatic saves, in units of the last save's duration."""
RETRY_S = (0.5, 30.0)
"""Seconds between two retries on a disk that can't be written: the first interval, and the longest."""

LOOK_S = 0.1
"""Seconds between two checks for a stop request while waiting to retry."""

LAST_WAIT_S = 20.0
"""Seconds for which a save is retried after a stop request: less than what batch systems leave a job."""

Hold = Callable[[DiskError], contextlib.AbstractContextManager[None]]


@dataclass(slots=True)
class _Save:
    """A save in progress; `path` is set once the checkpoint is written, so that a retry skips that part."""

    snapshot: Snapshot
    reason: str
    number: int
    path: Path | None = None


class Saver:
    """Writes the snapshots of one run.

    Invariants: at most one save is in progress, and `_writing` changes in the caller's thread alone. A save
    that failed is kept, with its snapshot, until it is written or given up with an error. A checkpoint has
    its name only once it is whole on disk; names change inside `guard` alone.

    Args:
        folder: The run's `checkpoints` folder.
        config: Returns when to save and how many to keep, by the settings in force.
        emit: Called with an event for each checkpoint, from the writing thread.
        hold: Returns a context, given the error, that is entered while waiting for the disk.
        should_stop: Polled while waiting; True ends the wait after `LAST_WAIT_S`.
        may_wait: Polled after that; False ends the wait at once. By default a save is retried only once.
        guard: Entered around each change of a name in `folder`; an exception from it ends the run.
    """

    def __init__(
        self,
        folder: Path,
        config: Callable[[], CheckpointConfig],
        emit: Callable[[Event], None],
        *,
        hold: Hold = lambda error: contextlib.nullcontext(),
        should_stop: Callable[[], bool] = lambda: True,
        may_wait: Callable[[], bool] = lambda: False,
        guard: Guard = contextlib.nullcontext,
    ) -> None:
        self._folder = folder
        self._config = config
        self._emit = emit
        self._hold = hold
        self._should_stop = should_stop
        self._guard = guard
        self._may_wait = may_wait
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mptui-save")
        # apart from that: a slow disk must not keep copies on a device
        self._arrivals = ThreadPoolExecutor(1, thread_name_prefix="mptui-arrive")
        self._writing: tuple[_Save, Future[None]] | None = None
        self._last_end = time.monotonic()
        self._last_cost = 0.0
        self._last_step = 0
        self._waiting_best: tuple[int, Snapshot] | None = None
        self._taken = self._newest_written = 0
        self._left: Path | None = None

    def go_on_from(self, step: int) -> None:
        """Record that an earlier process has saved the run at `step`."""
        self._last_step = step

    def went_back(self, step: int) -> None:
        """Restore the pointers after a switch was undone: `best` of that time, and an undo to what was left.

        Raises:
            DiskError: A save in progress can't be written, and the run was asked to stop.
        """
        self.wait_until_saved()
        self._last_step = step
        self._waiting_best = None
        left, self._left = self._left, None
        best_left = target_of(self._folder, "best")
        if is_after(self._folder, "best", step) or target_of(self._folder, UNDO_BEST) is not None:
            point_as(self._folder, "best", UNDO_BEST, self._guard)
        for name, path in ((UNDO, left), (UNDO_BEST, best_left if left else None)):
            if path is None:
                unpoint(self._folder, name, self._guard)
            else:
                point(self._folder, name, path, self._guard)

    def reason_now(self, step: int) -> str | None:
        """Return why a checkpoint is due between two steps: "steps", "time", or None."""
        config = self._config()
        every_steps, every_minutes = config.every_steps, config.every_minutes
        if every_steps is not None and step - self._last_step >= every_steps:
            return "steps"
        if every_minutes is not None and time.monotonic() - self._last_end >= every_minutes * 60:
            return "time"
        return None

    def has(self, step: int) -> bool:
        """Whether the last save, finished or in progress, is of `step`."""
        return self._last_step == step

    @property
    def idle(self) -> bool:
        """Whether no save is in progress."""
        return self._writing is None or self._writing[1].done()

    def may_save(self) -> bool:
        """Whether an automatic save is allowed: enough time has passed since the last one."""
        return self.idle and time.monotonic() - self._last_end >= _SHARE * self._last_cost

    def offer_best(self, snapshot: Snapshot) -> None:
        """Save a new best now if allowed, else later or at the end of the run."""
        self._take(snapshot)
        self._waiting_best = self._taken, snapshot
        self.write_waiting_best()

    def write_waiting_best(self, *, force: bool = False) -> None:
        """Write the deferred best, if there is one and a save is allowed."""
        if self._waiting_best is None:
            return
        if force or self.may_save():
            (number, best), self._waiting_best = self._waiting_best, None
            self._begin(best, "best", number)

    def tend(self) -> bool:
        """Hold the run if the last save failed, and write a deferred best; call it between two steps.

        Returns:
            Whether the run was held up.

        Raises:
            DiskError: A save failed, and the run was asked to stop.
        """
        held = self._has_failed
        if held or self.idle:  # releases the memory of a finished save
            self.wait_until_saved()
        self.write_waiting_best()
        return held

    @property
    def _has_failed(self) -> bool:
        return self._writing is not None and self.idle and self._writing[1].exception() is not None

    def save(self, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        """Write `snapshot` in the thread; waits for the previous save, and with `wait` for this one.

        Raises:
            DiskError: This save (with `wait`), or the previous one, could not be written.
        """
        self._take(snapshot)
        self._begin(snapshot, reason, self._taken)
        if wait:
            self.wait_until_saved()

    def _take(self, snapshot: Snapshot) -> None:
        self._taken += 1
        if snapshot.bring is not None:
            self._arrivals.submit(snapshot.arrive)

    def _begin(self, snapshot: Snapshot, reason: str, number: int) -> None:
        self.wait_until_saved()
        if number == self._taken:  # a deferred best is of an earlier step
            self._last_step = snapshot.step
        self._last_end = time.monotonic()
        save = _Save(snapshot, reason, number)
        self._writing = save, self._thread.submit(self._write, save)

    def wait_until_saved(self) -> None:
        """Wait for the save in progress; if it failed, hold the run until it is written.

        Raises:
            DiskError: It can't be written, and the run was asked to stop.
        """
        writing, self._writing = self._writing, None
        if writing is None:
            return
        save, future = writing
        try:
            future.result()
        except DiskError as error:
            with self._hold(error):
                self._write_at_last(save, error)

    def _must_end(self) -> bool:
        return not self._may_wait() and self._should_stop()

    def _write_at_last(self, save: _Save, error: DiskError) -> None:
        """Retry until the save is written; after a stop request only for `LAST_WAIT_S`."""
        pause_s, longest_s = RETRY_S
        ends_at = math.inf
        while True:
            until = time.monotonic() + pause_s
            while time.monotonic() < min(until, ends_at) and not self._must_end():
                if self._should_stop() and ends_at == math.inf:
                    ends_at, pause_s = time.monotonic() + LAST_WAIT_S, LAST_WAIT_S / 10
                    self._tell_losses(save.snapshot.step, error)
                    break
                time.sleep(LOOK_S)
            is_last = self._must_end() or (self._should_stop() and time.monotonic() >= ends_at)
            try:
                return self._write(save)
            except DiskError as again:
                error = again
            if is_last:
                raise error
            pause_s = min(2 * pause_s, longest_s)

    def _tell_losses(self, step: int, error: DiskError) -> None:
        """Say what a stop would lose while a save waits, and for what it waits."""
        lost = lost_words(steps_lost(self._folder, step)) or "nothing is lost"
        message = (
            f"asked to stop while a save waits ({error.message}): if it stays so for {LAST_WAIT_S:.0f} s, "
            f"{lost}; stop again to end at once"
        )
        self._emit(Warned(step=step, code="disk", message=message))

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        # a best that can't be written must not hide the error that ended the run
        self._should_stop = lambda: True
        try:
            self.close()
        except Exception as failed:  # noqa: BLE001 - told beside it
            code = "disk" if isinstance(failed, DiskError) else "not_saved"
            self._emit(Warned(step=self._last_step, code=code, message=str(failed)))

    def close(self) -> None:
        """Write a deferred best, finish the save in progress, and end the thread.

        Raises:
            DiskError: It can't be written, and the run was asked to stop.
        """
        try:
            self.write_waiting_best(force=True)
            self.wait_until_saved()
        finally:
            self._thread.shutdown()
            self._arrivals.shutdown()

    def _write(self, save: _Save) -> None:
        started = time.monotonic()
        save.snapshot.arrive()
        if save.path is None or not os.path.isdir(save.path):  # noqa: PTH112 - pathlib raises
            save.path = write_checkpoint(self._folder, save.snapshot, self._guard)
        if save.reason == "best":
            point(self._folder, "best", save.path, self._guard)
        if save.reason == "left":
            self._left = save.path
        if save.reason == "switch":
            point(self._folder, UNDO, save.path, self._guard)
            point_as(self._folder, UNDO_BEST, "best", self._guard)
        if save.number > self._newest_written:  # a deferred best may be older
            point(self._folder, "last", save.path, self._guard)
            self._newest_written = save.number
        keep_only(self._folder, self._config().keep, self._guard)
        self._last_end = time.monotonic()
        self._last_cost = self._last_end - started
        self._emit(
            CheckpointSaved(
                step=save.snapshot.step,
                path=str(save.path),
                reason=save.reason,
                seconds=self._last_cost,
                size_bytes=save.snapshot.size_bytes,
            )
        )


# The saver of a rank that is not the first: rank 0 alone writes checkpoints
# --------------------------------------------------------------------------


class NonPrimarySaver(Saver):
    """Writes nothing, and knows which step rank 0 has saved."""

    @override
    def went_back(self, step: int) -> None:
        self._last_step = step

    def _begin(self, snapshot: Snapshot, reason: str, number: int) -> None:
        self._last_step = snapshot.step
