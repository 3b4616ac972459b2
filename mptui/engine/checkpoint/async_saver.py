"""When a run is saved, and the thread that writes while training goes on.

A snapshot is a copy in host memory; writing, hashing and syncing it happen beside the training. Saving takes
at most a twentieth of the time: the end of an epoch and a new best wait for their turn when epochs are
short. A best that waits is kept in memory, and written at the latest when the run ends.

A disk that is full, read-only or gone holds the run up and ends nothing: the snapshot stays in memory and is
tried again until it is written, or until the run is asked to stop.
"""

import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

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
from mptui.errors import DiskError
from mptui.events import CheckpointSaved, Event, Warned
from mptui.io.atomic import Guard

_SHARE = 20
"""Training time between two saves that nobody asked for, in units of what the last one took."""
RETRY_S = (0.5, 30.0)
"""Seconds between two tries on a disk that can't be written: the first, and the longest."""

LOOK_S = 0.1
"""Seconds between two checks, meanwhile, whether the run was asked to stop."""

Hold = Callable[[DiskError], contextlib.AbstractContextManager[None]]


@dataclass(slots=True)
class _Save:
    """A snapshot on its way to the disk, and what is done of it: a retry does the rest alone."""

    snapshot: Snapshot
    reason: str
    number: int
    path: Path | None = None


class Saver:
    """Writes the snapshots of one run.

    Args:
        folder: The run's `checkpoints` folder.
        config: When to save, how many to keep.
        emit: Called with an event for each checkpoint, from the writing thread.
        hold: The context in which a disk that can't be written is waited for, given why it can't.
        should_stop: Asked meanwhile; True: wait no longer. Without it there is no waiting at all.
        guard: Entered around each change of a name in `folder`; what it raises ends the run.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        emit: Callable[[Event], None],
        *,
        hold: Hold = lambda error: contextlib.nullcontext(),
        should_stop: Callable[[], bool] = lambda: True,
        guard: Guard = contextlib.nullcontext,
    ) -> None:
        self._folder = folder
        self._config = config
        self._emit = emit
        self._hold, self._should_stop, self._guard = hold, should_stop, guard
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mptui-save")
        self._writing: tuple[_Save, Future[None]] | None = None
        self._last_end = time.monotonic()
        self._last_cost = 0.0
        self._last_step = 0
        self._waiting_best: tuple[int, Snapshot] | None = None
        self._taken = self._newest_written = 0

    def go_on_from(self, step: int) -> None:
        """The run was saved at `step` already, by an earlier process."""
        self._last_step = step

    def went_back(self, step: int) -> None:
        """A switch was undone: the run stands at `step` again with the best of then, and undoes no more.

        Raises:
            DiskError: A save is under way that can't be written, and the run was asked to stop.
        """
        self.settle()
        self._last_step = step
        self._waiting_best = None
        if is_after(self._folder, "best", step):
            point_as(self._folder, "best", UNDO_BEST, self._guard)
        unpoint(self._folder, UNDO_BEST, self._guard)
        unpoint(self._folder, UNDO, self._guard)

    def reason_now(self, step: int) -> str | None:
        """Why a checkpoint is due between two steps: "steps", "time", or None."""
        every_steps, every_minutes = self._config.every_steps, self._config.every_minutes
        if every_steps is not None and step - self._last_step >= every_steps:
            return "steps"
        if every_minutes is not None and time.monotonic() - self._last_end >= every_minutes * 60:
            return "time"
        return None

    def has(self, step: int) -> bool:
        """Whether the run was last saved at `step`, or is being saved as it was there."""
        return self._last_step == step

    @property
    def idle(self) -> bool:
        """Whether no save is under way."""
        return self._writing is None or self._writing[1].done()

    def may_save(self) -> bool:
        """Whether the end of an epoch may be saved: the last save has paid for itself."""
        return self.idle and time.monotonic() - self._last_end >= _SHARE * self._last_cost

    def offer_best(self, snapshot: Snapshot) -> None:
        """A new best: written now if it may, else when it may or at the end."""
        self._taken += 1
        self._waiting_best = self._taken, snapshot
        self.write_waiting_best()

    def write_waiting_best(self, *, force: bool = False) -> None:
        """Write the best that waits, if there is one and it may be written."""
        if self._waiting_best is not None and (force or self.may_save()):
            (number, best), self._waiting_best = self._waiting_best, None
            self._begin(best, "best", number)

    def tend(self) -> bool:
        """Between two steps: hold the run if the last save failed, write the best that waits if it may.

        Returns:
            Whether the run was held up.

        Raises:
            DiskError: A save failed, and the run was asked to stop.
        """
        held = self._has_failed
        if held or self.idle:  # one that is written gives its memory back
            self.settle()
        self.write_waiting_best()
        return held

    @property
    def _has_failed(self) -> bool:
        return self._writing is not None and self.idle and self._writing[1].exception() is not None

    def save(self, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        """Write `snapshot` in the thread; waits for the one before it, and with `wait` for this one.

        Raises:
            DiskError: This save (with `wait`), or the one before it, could not be written.
        """
        self._taken += 1
        self._begin(snapshot, reason, self._taken)
        if wait:
            self.settle()

    def _begin(self, snapshot: Snapshot, reason: str, number: int) -> None:
        self.settle()
        self._last_step = snapshot.step
        self._last_end = time.monotonic()
        save = _Save(snapshot, reason, number)
        self._writing = save, self._thread.submit(self._write, save)

    def settle(self) -> None:
        """Wait for the save under way; where it failed, hold the run until it is written.

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

    def _write_at_last(self, save: _Save, error: DiskError) -> None:
        """Try again until it is written; once more, and no longer, when the run is to stop."""
        pause_s, longest_s = RETRY_S
        while True:
            until = time.monotonic() + pause_s
            while not (stopping := self._should_stop()) and time.monotonic() < until:
                time.sleep(LOOK_S)
            try:
                return self._write(save)
            except DiskError as again:
                error = again
            if stopping:
                raise error
            pause_s = min(2 * pause_s, longest_s)

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        # How the run ended is the news: a best that can't be written any more must not hide it.
        self._should_stop = lambda: True
        try:
            self.close()
        except DiskError as failed:
            self._emit(Warned(step=self._last_step, code="disk", message=failed.message))

    def close(self) -> None:
        """Write what waits, and end the thread.

        Raises:
            DiskError: It can't be written, and the run was asked to stop.
        """
        try:
            self.write_waiting_best(force=True)
            self.settle()
        finally:
            self._thread.shutdown()

    def _write(self, save: _Save) -> None:
        started = time.monotonic()
        if save.path is None or not os.path.isdir(save.path):  # noqa: PTH112 - pathlib raises
            save.path = write_checkpoint(self._folder, save.snapshot, self._guard)
        if save.reason == "best":
            point(self._folder, "best", save.path, self._guard)
        if save.reason == "switch":
            point(self._folder, UNDO, save.path, self._guard)
            point_as(self._folder, UNDO_BEST, "best", self._guard)
        if save.number > self._newest_written:  # a best may have waited for its turn
            point(self._folder, "last", save.path, self._guard)
            self._newest_written = save.number
        keep_only(self._folder, self._config.keep, self._guard)
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
