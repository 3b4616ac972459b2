"""Ownership of a run, which all threads of a session check before they write."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from mptui.errors import RunDirectoryError
from mptui.runs.store import directory


class Ownership:
    """This process's claim on one run, until it is released or another process has taken the run over.

    Args:
        run: The run's directory.
        on_loss: Called once when another process owns the run.

    Attributes:
        untouched: Returns whether no other process has written to the run's journal.

    Raises:
        RunDirectoryError: Another living process has the run.
        DiskError: The run's directory can't be written.
    """

    def __init__(self, run: Path, on_loss: Callable[[], None]) -> None:
        self.untouched: Callable[[], bool] = lambda: True
        self._claim = directory.claim(run)
        self._on_loss = on_loss
        self._lost: RunDirectoryError | None = None

    def lost(self) -> RunDirectoryError | None:
        """Return the error if another process owns the run; None while this one does."""
        if self._lost is None:
            try:
                self._claim.keep(self.untouched)
            except RunDirectoryError as error:
                self._lose(error)
        return self._lost

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Change a name in the run directory while no other process can take it over; see `Claim.change`.

        Raises:
            RunDirectoryError: Another process has taken the run over.
            OSError: The directory or its lock can't be read.
        """
        if (lost := self.lost()) is not None:
            raise lost
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._claim.change(self.untouched))
            except RunDirectoryError as error:
                self._lose(error)
                raise
            yield

    def release(self) -> None:
        """Release the run."""
        self._claim.release()

    def _lose(self, error: RunDirectoryError) -> None:
        self._lost = error
        self._on_loss()
