"""The files that the owner of a run keeps up to date: journal, index, summary, bad samples.

What happens is in the journal at once. The rest is derived from it, and written at a rate that no number of
steps a second changes; what the disk does not take is written the next time.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mptui.errors import MptuiError
from mptui.events import Event, Recovered, Warned
from mptui.io.atomic import Guard
from mptui.runs.store import directory
from mptui.runs.store.bad_samples import BadSampleList
from mptui.runs.store.index import Index
from mptui.runs.store.journal import Journal
from mptui.runs.store.summary import Summary

WRITTEN_EVERY_S = 30.0
"""How often index and summary are renewed: how much of the journal a reader may have to read."""


class Records:
    """The files of one run. Any thread may give it events; one beats.

    Args:
        run: Its directory, which this process has claimed.
        guard: Entered around each change of a name in it.
        is_owner: Whether this process still owns the run.

    Raises:
        DiskError: The journal can't be opened.
    """

    def __init__(
        self,
        run: Path,
        guard: Guard = contextlib.nullcontext,
        is_owner: Callable[[], bool] = lambda: True,
    ) -> None:
        self._run, self._guard = run, guard
        self._lock = threading.Lock()
        self._journal = Journal(run, is_owner)
        self._journal_waits = self._given_up = False
        self._index = Index(run, guard)
        self._written = time.monotonic()
        self.summary = Summary(run.name, str(run))
        self.bad_samples = BadSampleList(run, guard)

    def handle(self, event: Event) -> None:
        """Write an event to journal and summary, in the order of the calls; never waits for a full disk."""
        with self._lock:
            if not self._given_up:
                self._journal.write(event)
            self.summary.handle(event)

    def untouched(self) -> bool:
        """Whether nobody else has written to the run's journal."""
        return self._journal.untouched()

    def give_up(self) -> None:
        """Write nothing more: the run is another process's."""
        with self._lock:
            self._given_up = True
            self._journal.abandon()

    def beat(self, emit: Callable[[Event], None], step: int) -> None:
        """Do what is due; to be called about once a second.

        Args:
            emit: Where trouble with the disk, and its end, is told.
            step: The run's step.
        """
        if self._given_up:
            return
        if time.monotonic() - self._written > WRITTEN_EVERY_S:
            self._written = time.monotonic()
            with contextlib.suppress(MptuiError):
                self.write_summary()
            self._index.renew()
        self.bad_samples.write()
        self._look_after_journal(emit, step)

    def write_summary(self) -> None:
        """Write summary.json.

        Raises:
            DiskError: The disk does not take it.
            RunDirectoryError: The run is another process's.
        """
        self.summary.measure(None)
        if self._given_up:
            return
        with self._lock:
            text = directory.json_text(self.summary.document)
        directory.write_text(self._run / directory.SUMMARY, text, self._guard)

    def close(self) -> None:
        """Let go of the journal, and leave an index that stands for all of it."""
        self._journal.close()
        if not self._given_up:
            self._index.renew()

    def _look_after_journal(self, emit: Callable[[Event], None], step: int) -> None:
        """Say once that the journal can't be written, and once that it is."""
        trouble, waiting = self._journal.trouble, self._journal.waiting
        if trouble is not None and not self._journal.retry():
            if not self._journal_waits:
                self._journal_waits = True
                message = f"{trouble.message}; events are kept in memory: {trouble.hint}"
                emit(Warned(step=step, code="disk", message=message))
        elif self._journal_waits:
            self._journal_waits = False
            lost = f"; {self._journal.lost:,} older ones were dropped" if self._journal.lost else ""
            action = f"the journal is written again, with {waiting:,} delayed events{lost}"
            emit(Recovered(step=step, problem="disk", action=action))
