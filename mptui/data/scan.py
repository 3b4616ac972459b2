"""Checks every file of a dataset before the first epoch, so that none of them ends the run hours later.

Each file is decoded completely, in child processes. Above `DECODE_WHOLE` files that would take too long: then
only headers and file ends are read, which detects truncated files; damage in the middle of a file is detected
and counted during training. The result is cached until the file changes.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mptui.data.core.parts import title_of
from mptui.data.core.read_errors import machine_fault
from mptui.data.core.types import PixelFormat, Problem, Sides
from mptui.data.decode.mask import MaskSurvey
from mptui.data.scan.check_sample import Sample, SampleCheck
from mptui.data.scan.process_pool import Work, check_all, looking
from mptui.data.scan.scan_cache import Keys, file_keys, recall, remember
from mptui.io.user_cache import cache_folder

DECODE_WHOLE = 20_000

_CHUNK_WHOLE = 8
_CHUNK_HEADERS = 256
_MOST_PROCESSES = 16
_REMEMBER_EVERY = 100_000
"""Number of files after which the cache is written, as a scan may take hours."""

OnProgress = Callable[[int, int], None]
ShouldStop = Callable[[], bool]


@dataclass(slots=True)
class ScanReport:
    """Result of a scan, by sample."""

    sides: Sides
    """Sides in pixels; 0: the sample can't be used."""
    keys: Keys
    """A key for each sample, which changes when its files do."""
    surveys: dict[int, MaskSurvey] = field(default_factory=dict)
    """The survey of each usable mask, by sample."""
    problems: dict[int, Problem] = field(default_factory=dict)
    """The unusable samples."""
    not_finite: list[int] = field(default_factory=list)
    """Usable samples with NaN or infinite pixels."""
    formats: dict[int, PixelFormat] = field(default_factory=dict)
    """Formats of usable images as they are stored; if all are read as 8-bit RGB, of those that lose some."""

    def add(self, index: int, finding: SampleCheck) -> None:
        """Add the check of a sample.

        Raises:
            DataError: The sample can't be read because of the machine, not the file.
        """
        if (fault := machine_fault(finding.path, finding.reason)) is not None:
            raise fault
        self.sides[index] = finding.side, finding.longer
        if finding.reason:
            self.problems[index] = Problem(finding.path, finding.reason)
            return
        if not finding.finite:
            self.not_finite.append(index)
        if finding.pixels is not None:
            self.formats[index] = finding.pixels
        if finding.mask is not None:
            self.surveys[index] = finding.mask

    def leave_out(self, index: int, path: str, reason: str) -> None:
        """Make a sample unusable that can be read, but does not fit its set."""
        self.problems[index] = Problem(title_of(path), reason)
        self.sides[index] = 0, 0
        self.surveys.pop(index, None)


def scan(
    images: Sequence[str],
    masks: Sequence[str] | None,
    on_progress: OnProgress,
    should_stop: ShouldStop,
    *,
    stored: bool = False,
) -> ScanReport:
    """Check every sample that has changed since the last scan; read the others from the cache.

    Args:
        images: The image files.
        masks: The mask files, in the same order.
        on_progress: Called with (done, total) repeatedly, in this thread.
        should_stop: Called several times per second.
        stored: Whether images are read as they are stored.

    Raises:
        DataError: The machine has no open files or memory left.
        ScanCancelledError: `should_stop` returned True.
    """
    whole = masks is not None or len(images) <= DECODE_WHOLE
    kept = _place(images, masks, whole, stored)
    keys = file_keys(images, masks, should_stop)
    sides, surveys, formats = recall(kept, keys, masked=masks is not None)
    report = ScanReport(sides, keys, surveys, formats=formats)
    # Unusable files are never cached, so that a repaired file or a mounted disk is seen at once.
    todo = np.flatnonzero(report.sides[:, 0] == 0)
    for start in range(0, len(todo), _REMEMBER_EVERY):
        try:
            part = todo[start : start + _REMEMBER_EVERY]
            done = len(images) - len(todo) + start
            work = looking(whole=whole, stored=stored)
            _look(report, part, done, images, masks, whole, work, on_progress, should_stop)
        finally:
            known = report.sides.copy()
            known[report.not_finite] = 0  # checked again the next time, to be reported again
            remember(kept, keys, known, report.surveys, report.formats)
    on_progress(len(images), len(images))
    return report


def _look(
    report: ScanReport,
    todo: npt.NDArray[np.intp],
    done: int,
    images: Sequence[str],
    masks: Sequence[str] | None,
    whole: bool,
    work: Work[SampleCheck],
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> None:
    size = _CHUNK_WHOLE if whole else _CHUNK_HEADERS
    starts = range(0, len(todo), size)

    def chunks() -> Iterator[list[Sample]]:
        for start in starts:
            yield [(images[i], None if masks is None else masks[i]) for i in todo[start : start + size]]

    on_progress(done, len(images))
    processes = min(processors(), _MOST_PROCESSES, len(starts))
    for start, findings in zip(starts, check_all(chunks(), work, processes, should_stop), strict=True):
        for index, finding in zip(todo[start : start + size], findings, strict=True):
            report.add(int(index), finding)
        on_progress(done + start + len(findings), len(images))


def _place(images: Sequence[str], masks: Sequence[str] | None, whole: bool, stored: bool) -> Path:
    """Return the cache file for these files, by their common folder."""
    common = (
        os.path.commonpath([title_of(images[row]) for row in (0, len(images) - 1)]) if len(images) else ""
    )
    what = f"{common}\0{masks is not None}\0{whole}" + "\0stored" * stored
    digest = hashlib.sha256(os.fsencode(what)).hexdigest()
    return cache_folder() / "scans" / f"{digest[:32]}.npz"


def processors() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
