"""When a run is saved, and the thread that writes while training goes on.

A snapshot is a copy in host memory; writing, hashing and syncing it happen beside the training. Saving takes
at most a twentieth of the time: the end of an epoch and a new best wait for their turn when epochs are
short. A best that waits is kept in memory, and written at the latest when the run ends.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from mptui.config.schema import CheckpointConfig
from mptui.engine.checkpoint import Snapshot, keep_only, point, write_checkpoint
from mptui.events import CheckpointSaved, Event

_SHARE = 20
"""Training time between two saves that nobody asked for, in units of what the last one took."""


class Saver:
    """Writes the snapshots of one run.

    Args:
        folder: The run's `checkpoints` folder.
        config: When to save, how many to keep.
        emit: Told of each checkpoint, from the writing thread.
    """

    def __init__(self, folder: Path, config: CheckpointConfig, emit: Callable[[Event], None]) -> None:
        self._folder = folder
        self._config = config
        self._emit = emit
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mptui-save")
        self._writing: Future[None] | None = None
        self._last_end = time.monotonic()
        self._last_cost = 0.0
        self._last_step = 0
        self._waiting_best: Snapshot | None = None

    def reason_now(self, step: int) -> str | None:
        """Why a checkpoint is due between two steps: "steps", "time", or None."""
        every_steps, every_minutes = self._config.every_steps, self._config.every_minutes
        if every_steps is not None and step - self._last_step >= every_steps:
            return "steps"
        if every_minutes is not None and time.monotonic() - self._last_end >= every_minutes * 60:
            return "time"
        return None

    def may_save(self) -> bool:
        """Whether the end of an epoch may be saved: the last save has paid for itself."""
        idle = self._writing is None or self._writing.done()
        return idle and time.monotonic() - self._last_end >= _SHARE * self._last_cost

    def offer_best(self, snapshot: Snapshot) -> None:
        """A new best: written now if it may, else when it may or at the end."""
        self._waiting_best = snapshot
        self.write_waiting_best()

    def write_waiting_best(self, *, force: bool = False) -> None:
        """Write the best that waits, if there is one and it may be written."""
        if self._waiting_best is not None and (force or self.may_save()):
            best, self._waiting_best = self._waiting_best, None
            self.save(best, "best")

    def save(self, snapshot: Snapshot, reason: str, *, wait: bool = False) -> None:
        """Write `snapshot` in the thread; waits for the one before it, and with `wait` for this one.

        Raises:
            DiskError: This save (with `wait`), or the one before it, could not be written.
        """
        self.settle()
        self._last_step = snapshot.step
        self._last_end = time.monotonic()
        self._writing = self._thread.submit(self._write, snapshot, reason)
        if wait:
            self.settle()

    def settle(self) -> None:
        """Wait for the save under way, and raise what went wrong with it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Write what waits, and end the thread."""
        try:
            self.write_waiting_best(force=True)
            self.settle()
        finally:
            self._thread.shutdown()

    def _write(self, snapshot: Snapshot, reason: str) -> None:
        started = time.monotonic()
        path = write_checkpoint(self._folder, snapshot)
        point(self._folder, "best" if reason == "best" else "last", path)
        keep_only(self._folder, self._config.keep)
        self._last_end = time.monotonic()
        self._last_cost = self._last_end - started
        self._emit(
            CheckpointSaved(
                step=snapshot.step,
                path=str(path),
                reason=reason,
                seconds=self._last_cost,
                size_bytes=snapshot.size_bytes,
            )
        )
