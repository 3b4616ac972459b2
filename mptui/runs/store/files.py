"""Updates the files of a run: journal, index, summary, bad samples, train.log, device.csv.

Events are written to the journal at once. The other files are derived from it and written at a fixed rate;
failed writes are repeated the next time.
"""

import contextlib
import csv
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from PIL import Image

from mptui.data.core.png_files import Pixels, grid, is_own_png, png_bytes
from mptui.data.core.predictions import ValidationPictures
from mptui.engine.checkpoint.disk_space import DiskWatch
from mptui.engine.evaluate import ValidationResult
from mptui.errors import MptuiError
from mptui.events import Event, Recovered, Warned
from mptui.io.atomic import Guard, replace_file
from mptui.io.marker import make_folder
from mptui.runs.pictures import picture_files
from mptui.runs.store import directory
from mptui.runs.store.bad_samples import BadSampleList
from mptui.runs.store.index import Index
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.store.journal import Journal
from mptui.runs.store.summary import Summary
from mptui.runs.view.line_files import DeviceCsv, TrainLog
from mptui.text import cell

CLASSES, CONFUSION = "best_classes.csv", "best_confusion.csv"
"""The best validation by class, and its confusion matrix."""
_GRID = re.compile(r"epoch-\d{4,}\.png")
IMAGES = "samples"
"""Folder of the images that a diffusion model makes."""
WRITTEN_EVERY_S = 30.0
"""Seconds between two updates of index and summary; limits how much of the journal a reader has to read."""


class Records:
    """The files of one run. Any thread may call `handle`, one thread `beat`.

    Args:
        run: The run directory, locked by this process.
        guard: Context around each change of a name in it.
        is_owner: Whether this process still owns the run.

    Attributes:
        trained_to: The last step of this process, once it has trained.

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
        self._disk = DiskWatch(run)
        self._log, self._samples = TrainLog(run), DeviceCsv(run)
        self._written = time.monotonic()
        self.summary = Summary(run.name, str(run))
        self.trained_to: int | None = None
        self.bad_samples = BadSampleList(run, guard)

    def handle(self, event: Event) -> None:
        """Write an event to journal and summary, in order; never waits for a full disk."""
        with self._lock:
            if not self._given_up:
                self._journal.write(event)
            self.summary.handle(event)
            self._log.handle(event)
            self._samples.handle(event)
            self._disk.handle(event)

    def untouched(self) -> bool:
        """Whether no other process has written to the run's journal."""
        return self._journal.untouched()

    def give_up(self) -> None:
        """Stop writing, as another process owns the run."""
        with self._lock:
            self._given_up = True
            self._journal.abandon()

    def beat(self, emit: Callable[[Event], None], step: int) -> None:
        """Write the files that are due, and look at the room on the disk; call it about once per second.

        Args:
            emit: Receives events about a full disk and its end.
            step: Current step of the run.
        """
        if self._given_up:
            return
        if time.monotonic() - self._written > WRITTEN_EVERY_S:
            self._written = time.monotonic()
            with contextlib.suppress(MptuiError):
                self.write_summary()
            self._index.renew()
            self._disk.check(emit, step)
        self.bad_samples.write()
        self._write_lines()
        self.look_after_journal(emit, step)

    def write_summary(self) -> None:
        """Write summary.json.

        Raises:
            DiskError: The disk is full or not writable.
            RunDirectoryError: Another process owns the run.
        """
        self.summary.measure(None)
        if self._given_up:
            return
        with self._lock:
            text = directory.json_text(self.summary.document)
        directory.write_text(self._run / directory.SUMMARY, text, self._guard)

    def write_best(self, result: ValidationResult) -> None:
        """Write the files of the best validation; a failed write is repeated with the next best one.

        The summary is written too: a run that is killed and resumed may have no better validation.
        """
        with contextlib.suppress(MptuiError):
            self.write_summary()
        for name, text in validation_texts(result).items():
            with contextlib.suppress(MptuiError):
                directory.write_text(self._run / name, text, self._guard)

    def write_images(self, epoch: int, pixels: Pixels, keep: int) -> str:
        """Write the images of an epoch, [N, H, W, C], as a grid, and remove grids but the newest `keep`.

        Returns:
            The file in the run directory; "" if it can't be written.
        """
        path = self._run / IMAGES / f"epoch-{epoch:04}.png"
        try:
            make_folder(path.parent)
            if os.path.lexists(path) and not is_own_png(path):
                return ""
            replace_file(path, png_bytes(Image.fromarray(grid(pixels))), self._guard)
            grids = [
                each for each in path.parent.iterdir() if _GRID.fullmatch(each.name) and is_own_png(each)
            ]
            for old in sorted(grids, key=_epoch_of)[:-keep]:
                old.unlink()
        except (OSError, MptuiError):
            return ""
        return f"{IMAGES}/{path.name}"

    def write_pictures(self, pictures: ValidationPictures) -> str:
        """Write the pictures of a validation; returns their file as `write_images`."""
        return picture_files.write(self._run, pictures, self._guard)

    def close(self) -> None:
        """Close the journal, and write an index for all of it."""
        self._journal.close()
        if not self._given_up:
            self._index.renew()
            self._write_lines()
        self._log.close()
        self._samples.close()

    def _write_lines(self) -> None:
        """Write train.log and device.csv; lines that can't be written wait for the next time."""
        for lines in (self._log, self._samples):
            with contextlib.suppress(MptuiError, OSError), self._guard():
                lines.write()

    def look_after_journal(self, emit: Callable[[Event], None], step: int) -> None:
        """Report once that the journal can't be written, that it can again, and what others changed in it."""
        if self._given_up:
            return
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
        if changed := self._journal.take_changed():
            self._index = Index(self._run, self._guard)  # its position in the file is no longer known
            message = f"{self._run / JOURNAL}: {changed}; the run continues it"
            emit(Warned(step=step, code="journal", message=message))


def _epoch_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def validation_texts(result: ValidationResult) -> dict[str, str]:
    """Return the files of a validation, by name: none for a task without classes.

    The metrics have a row for each class; the confusion matrix one for each cell that is not 0, the largest
    first, so that 1,000 classes have at most as many rows as samples.
    """
    texts = {}
    if result.per_class:
        names = list(next(iter(result.per_class.values())))
        columns = [[values[name] for name in names] for values in result.per_class.values()]
        header = ["class", *result.per_class]
        texts[CLASSES] = _text(header, zip(names, *columns, strict=True))
        if result.confusion is not None and len(names) == len(result.confusion):
            cells = result.confusion.nonzero().tolist()
            counted = [
                (names[true], names[other], int(result.confusion[true, other])) for true, other in cells
            ]
            counted.sort(key=lambda cell: -cell[2])
            texts[CONFUSION] = _text(["true", "predicted", "count"], counted)
    return texts


def _text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell(value) if isinstance(value, str) else value for value in row] for row in rows)
    return lines.getvalue()
