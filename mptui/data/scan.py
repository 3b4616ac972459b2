"""Look at every file of a set before the first epoch, so that none of them ends the run hours later.

Each file is decoded whole, in child processes. Above `DECODE_WHOLE` files that would take too long: then
the headers are read, and where a file is truncated is seen from its end; pixels damaged in its middle are
met in training, and counted there. What was found is kept until one of the files changes.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.data.cache import cache_folder, fingerprint, load_json, save_json
from mptui.data.check import Finding, Sample, survey_from_json
from mptui.data.checkers import check_all
from mptui.data.masks import MaskSurvey
from mptui.data.types import Problem

DECODE_WHOLE = 20_000

_CHUNK_WHOLE = 8
_CHUNK_HEADERS = 256
_MOST_PROCESSES = 16

OnProgress = Callable[[int, int], None]
ShouldStop = Callable[[], bool]


@dataclass(slots=True)
class Report:
    """What the scan found, sample by sample."""

    sides: npt.NDArray[np.int32]
    """The shorter side of each image in pixels; 0: the sample can't be used."""
    surveys: dict[int, MaskSurvey] = field(default_factory=dict)
    """What each usable mask holds, by sample."""
    problems: dict[int, Problem] = field(default_factory=dict)
    """The unusable samples."""

    def add(self, index: int, finding: Finding) -> None:
        """Note what was found of a sample."""
        self.sides[index] = finding.side
        if finding.reason:
            self.problems[index] = Problem(finding.path, finding.reason)
        elif finding.mask is not None:
            self.surveys[index] = finding.mask


def scan(
    images: Sequence[str], masks: Sequence[str] | None, on_progress: OnProgress, should_stop: ShouldStop
) -> Report:
    """Look at every sample, or take what an earlier scan of the same unchanged files found.

    Args:
        images: The image files.
        masks: The masks of those, in the same order.
        on_progress: Called with (done, total) now and then, in this thread.
        should_stop: Asked several times a second.

    Raises:
        ScanCancelledError: `should_stop` said so.
    """
    whole = masks is not None or len(images) <= DECODE_WHOLE
    kept = cache_folder() / "scans" / f"{_digest(images, masks, whole)}.json"
    report = _restored(load_json(kept), len(images), masks is not None)
    known = report is not None
    if report is None:
        report = Report(np.zeros(len(images), np.int32))
    # Unusable files are never kept: a permission given, or a disk back, is seen at once.
    todo = np.flatnonzero(report.sides == 0)
    _look(report, todo, images, masks, whole, on_progress, should_stop)
    if not known:
        save_json(kept, _kept(report))
    return report


def _look(
    report: Report,
    todo: npt.NDArray[np.intp],
    images: Sequence[str],
    masks: Sequence[str] | None,
    whole: bool,
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> None:
    size = _CHUNK_WHOLE if whole else _CHUNK_HEADERS
    starts = range(0, len(todo), size)

    def chunks() -> Iterator[list[Sample]]:
        for start in starts:
            yield [(images[i], None if masks is None else masks[i]) for i in todo[start : start + size]]

    done = len(images) - len(todo)
    on_progress(done, len(images))
    processes = min(_processors(), _MOST_PROCESSES, len(starts))
    if not processes:
        return
    for start, findings in zip(starts, check_all(chunks(), whole, processes, should_stop), strict=True):
        for index, finding in zip(todo[start : start + size], findings, strict=True):
            report.add(int(index), finding)
        on_progress(done + start + len(findings), len(images))


def _digest(images: Sequence[str], masks: Sequence[str] | None, whole: bool) -> str:
    digests = (fingerprint(images), fingerprint(masks or ()), str(whole))
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _kept(report: Report) -> dict[str, Any]:
    surveys = {str(index): astuple(survey) for index, survey in report.surveys.items()}
    return {"sides": report.sides.tolist(), "surveys": surveys}


def _restored(kept: Any, count: int, masked: bool) -> Report | None:  # noqa: ANN401 - any JSON value
    """Turn what was kept back into a report; None unless it is whole."""
    try:
        report = Report(np.array(kept["sides"], np.int32))
        report.surveys = {int(index): survey_from_json(values) for index, values in kept["surveys"].items()}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        return None
    usable = set(np.flatnonzero(report.sides).tolist()) if masked else set()
    return report if report.sides.shape == (count,) and set(report.surveys) == usable else None


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
