"""The files of a run: summary, environment, data, bad samples, train.log, device.csv; who writes them."""

import contextlib
import csv
import io
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mptui.config.schema import RunConfig
from mptui.data.describe import reading_changes, reading_document
from mptui.data.fingerprint import Fingerprint, changes, fingerprint
from mptui.data.learned import LearnedData
from mptui.data.pictures import Pixels, ValidationPictures, grid, is_own_png, png_bytes
from mptui.data.types import RGB, Dataset, Problem
from mptui.engine.checkpoint.files import DiskWatch, checkpoints, read_checkpoint
from mptui.engine.evaluate import ValidationResult
from mptui.errors import DiskError, MptuiError, RunDirectoryError
from mptui.events import (
    DeviceSample,
    EpochFinished,
    EpochStarted,
    Event,
    PresetSwitched,
    Recovered,
    RunFinished,
    Step,
    Validated,
    Warned,
)
from mptui.hardware.describe import csv_header, csv_row
from mptui.hardware.devices import Device
from mptui.io.files import Guard, LineFile, read_regular, replace_file
from mptui.io.own_files import make_folder
from mptui.runs.store import directory
from mptui.runs.store import pictures as store_pictures
from mptui.runs.store.directory import (
    CHECKPOINTS,
    ENVIRONMENT,
    LARGEST,
    VERSION,
    blank_summary,
    read_summary,
    time_of,
    write_json,
)
from mptui.runs.store.index import Index, read_run
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.runs.store.journal import Journal
from mptui.runs.view.specs import EVENTS, step_words
from mptui.text import cell, clean

# Updates the files of a run: journal, index, summary, bad samples, train.log, device.csv
# ---------------------------------------------------------------------------------------
# Events are written to the journal at once. The other files are derived from it and written at a fixed
# rate; failed writes are repeated the next time.

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
        self._run = run
        self._guard = guard
        self._lock = threading.Lock()
        self._journal = Journal(run, is_owner)
        self._journal_waits = self._given_up = False
        self._index = Index(run, guard)
        self._disk = DiskWatch(run)
        self._log = TrainLog(run)
        self._samples = DeviceCsv(run)
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

    @property
    def reach(self) -> tuple[int, int]:
        """The positions of the journal after all events, and after those on disk."""
        return self._journal.position, self._journal.written

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

    def write_data_pictures(self, tiles: Sequence[Pixels]) -> str:
        """Write training images, each [H, W, C], side by side; returns their file as `write_images`."""
        return store_pictures.write_data(self._run, tiles, self._guard)

    def write_pictures(self, pictures: ValidationPictures) -> str:
        """Write the pictures of a validation; returns their file as `write_images`."""
        return store_pictures.write(self._run, pictures, self._guard)

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


# Removes the directory of a run that failed before it started
# ------------------------------------------------------------


def discard_unstarted(run: Path) -> None:
    """Remove the directory of a new run that never started because of its arguments.

    A run that has started, or has found unusable files, keeps its directory.
    """
    started = read_summary(run).get("model") is not None
    if not started and not any(os.path.lexists(run / name) for name in (CHECKPOINTS, BAD_SAMPLES)):
        shutil.rmtree(run, ignore_errors=True)


# bad_samples.json: the files that a run leaves out, with reasons
# ---------------------------------------------------------------

BAD_SAMPLES = "bad_samples.json"
BAD_SAMPLES_VERSION = 1


class BadSampleList:
    """The files left out by scan and training, each once, also over resumes.

    Args:
        run: The run's directory.
        guard: Context around each change of the file.
    """

    def __init__(self, run: Path, guard: Guard = contextlib.nullcontext) -> None:
        self._path = run / BAD_SAMPLES
        self._guard = guard
        self._lock = threading.Lock()
        self._reasons = dict(_read_reasons(self._path))
        self._written = True

    def add(self, problems: Iterable[Problem]) -> None:
        """Add files; cheap and thread-safe."""
        with self._lock:
            fresh = {problem.path: problem.reason for problem in problems}
            self._written &= fresh.items() <= self._reasons.items()
            self._reasons |= fresh

    def note(self, problems: Sequence[Problem], warn: Callable[[str, str], None]) -> None:
        """Add and write the files that a scan left out, and warn of them by `warn(code, message)`."""
        self.add(problems)
        self.write()
        if problems:
            names = ", ".join(clean(f"{p.path} ({p.reason})") for p in problems[:5])
            more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
            warn("bad_samples", f"left out {len(problems)} files: {names}{more}; see {BAD_SAMPLES}")

    def write(self) -> None:
        """Write the list if it has changed; a failed write is repeated the next time."""
        with self._lock:
            if self._written:
                return
            files = [{"path": path, "reason": reason} for path, reason in sorted(self._reasons.items())]
        with contextlib.suppress(MptuiError):
            write_json(self._path, {"version": BAD_SAMPLES_VERSION, "files": files}, self._guard)
            self._written = len(files) == len(self._reasons)


def _read_reasons(path: Path) -> Iterable[tuple[str, str]]:
    try:
        files = json.loads(read_regular(path, LARGEST))["files"]
        return [(str(file["path"]), str(file["reason"])) for file in files]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


# data.json: a fingerprint of the data set of a run when it was last trained, and how it was read
# -----------------------------------------------------------------------------------------------
# A resume compares it with the current data and reports changes. What a network has learned from is in its
# checkpoint; only runs of earlier versions have it here.

DATA_RECORD = "data.json"
_DECIDE = ("name", "path", "val_fraction", "ignore_index", "mask_orientation", "class_folders", "bands")
"""Settings of [data] that decide how it is read."""


def note_data(run: Path, dataset: Dataset, warn: Callable[[str, str], None]) -> None:
    """Save the fingerprint of the data set, and warn if it differs from the saved one.

    Args:
        run: The run directory; without the file, the run is new or of an older version.
        dataset: The opened data set.
        warn: Called with code and text of a warning.

    Raises:
        DiskError: The file can't be written.
    """
    before, now, reading = (
        _read_fingerprint(run / DATA_RECORD),
        fingerprint(dataset),
        reading_document(dataset),
    )
    recorded = directory.read_json(run / DATA_RECORD).get("reading")
    if before is not None and (told := [*changes(before, now), *reading_changes(recorded, reading)]):
        text = f"the data of this run has changed: {'; '.join(told)}"
        files = [before.train_samples + before.val_samples, before.names, before.classes]
        if dataset.held_out and files != [now.train_samples + now.val_samples, now.names, now.classes]:
            text += "; its validation samples are drawn anew, and some of them may have been trained on"
        warn("data_changed", f"{text}. The run continues with the changed data.")
    if before != now or recorded != reading:
        counts = [int(count) for count in dataset.class_counts]
        document = {"version": directory.VERSION, **asdict(now), "class_counts": counts, "reading": reading}
        directory.write_json(run / DATA_RECORD, document)


def kept_reading(run: Path, before: RunConfig | None, now: RunConfig) -> dict[str, Any] | None:
    """Return how a run has read its data; None if it is not recorded, or settings that decide it are new."""
    if before is None or any(getattr(before.data, key) != getattr(now.data, key) for key in _DECIDE):
        return None
    recorded = directory.read_json(run / DATA_RECORD).get("reading")
    return recorded if isinstance(recorded, dict) else None


def data_changes(run: Path, dataset: Dataset) -> str | None:
    """Describe how the data of a run has changed since its last training; None: not at all, or unknown."""
    before = _read_fingerprint(run / DATA_RECORD)
    if before is None:
        return None
    recorded = directory.read_json(run / DATA_RECORD).get("reading")
    told = [*changes(before, fingerprint(dataset)), *reading_changes(recorded, reading_document(dataset))]
    return "; ".join(told) or None


def learned_in(run: Path, state: Mapping[str, Any]) -> LearnedData | None:
    """Return what the network in a checkpoint has learned from; None if it is not recorded.

    Args:
        run: The run directory. Runs of earlier versions record it there alone.
        state: The state of the checkpoint.

    Raises:
        RunDirectoryError: The checkpoint has facts that this version can't read.
    """
    if (record := state.get("data")) is None:
        return _recorded(run)
    try:
        return LearnedData.read(record)
    except ValueError as error:
        raise RunDirectoryError(
            f"{run}: a checkpoint doesn't say what its network has learned from: {error}",
            hint="use another checkpoint, or the version of mptui that has written it",
        ) from error


def learned_before(run: Path) -> LearnedData | None:
    """Return what the network in the newest readable checkpoint of a run has learned from."""
    with contextlib.suppress(OSError):
        for path in reversed(checkpoints(run / directory.CHECKPOINTS)):
            with contextlib.suppress(RunDirectoryError, DiskError):
                return learned_in(run, read_checkpoint(path, ()).state)
    return None


def learned_by_weights(path: Path) -> LearnedData | None:
    """Return what a weights file in a checkpoint of a run has learned from; None for other files."""
    checkpoint = path.absolute().parent
    if checkpoint.parent.name != directory.CHECKPOINTS:
        return None
    state: Mapping[str, Any] = {}
    with contextlib.suppress(RunDirectoryError, DiskError):
        state = read_checkpoint(checkpoint, ()).state
    return learned_in(checkpoint.parent.parent, state)


def _recorded(run: Path) -> LearnedData | None:
    """Return what a run has learned from, by its last data.json, or, in an early version, by its journal."""
    if (fingerprint := _read_fingerprint(run / DATA_RECORD)) is None:
        try:
            started = read_run(run).started
        except OSError:
            return None
        return None if started is None else LearnedData(classes=started.classes)
    counts = directory.read_json(run / DATA_RECORD).get("class_counts")
    return LearnedData(
        classes=list(fingerprint.classes),
        class_counts=counts if isinstance(counts, list) and all(type(n) is int for n in counts) else [],
        bands=fingerprint.bands,
        dtype=fingerprint.dtype,
    )


def _read_fingerprint(path: Path) -> Fingerprint | None:
    """Return the saved fingerprint; None if it is missing or unreadable."""
    document = directory.read_json(path)
    # version 0.1.0 recorded no format: all images were RGB
    document = {"bands": RGB.bands, "dtype": RGB.dtype, **document}
    values: dict[str, Any] = {name: document.get(name) for name in Fingerprint.__dataclass_fields__}
    kinds = {
        **dict.fromkeys(("train_samples", "val_samples", "bands"), int),
        **dict.fromkeys(("names", "sizes", "labels", "dtype"), str),
        "classes": list,
    }
    if not all(type(value) is kinds[name] for name, value in values.items()):
        return None
    values["classes"] = tuple(map(str, values["classes"]))
    return Fingerprint(**values)


# environment.json: the software and hardware of a run, to reproduce it
# ---------------------------------------------------------------------

_PACKAGES = ("mptui", "torch", "torchvision", "numpy", "pillow", "safetensors", "textual", "nvidia-ml-py")
_WORDS = r"(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|credential)"
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_NAMED = re.compile(
    rf"(--[\w-]*{_WORDS}[\w-]* +|[\w-]*{_WORDS}[\w-]*[\"']? *[=:] *)([^\s,;]+)", re.IGNORECASE
)
_IN_ADDRESS = re.compile(r"(\w://[^\s/:@]*:)[^\s/@]+@")
_SHORTEST = 8
"""Length below which a value is too common to be treated as a secret."""


def write_environment(run: Path, device: Device, driver: str | None, guard: Guard) -> None:
    """Write environment.json, as `describe_environment` returns it; raises as `write_json`."""
    write_json(run / ENVIRONMENT, describe_environment(device, driver), guard)


def describe_environment(device: Device, driver: str | None) -> dict[str, Any]:
    """Return versions, device, git commit and command line, without values that look like secrets."""
    import torch

    return {
        "version": VERSION,
        "mptui": _version("mptui"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        "driver": driver,
        "device": {
            "kind": device.kind,
            "name": device.name,
            "architecture": device.architecture,
            "memory_total": device.memory_total,
        },
        "processors": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "git_commit": _git_commit(Path.cwd()),
        "command": redact(" ".join(sys.argv)),
        "directory": redact(str(Path.cwd())),
    }


def redact(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Remove secrets: values named like one, passwords in URLs, values of such variables."""
    for name, value in environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name):
            text = text.replace(value, "…")
    return _IN_ADDRESS.sub(r"\1…@", _NAMED.sub(r"\1…", text))


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit(folder: Path) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],  # noqa: S607 - the user's git
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


# summary.json: the state and result of a run, computed from its events
# ---------------------------------------------------------------------

_CARRIED_OVER = (
    *("profile", "changed", "task", "model", "parameters", "dataset", "device", "ranks", "nodes"),
    *("precision", "price_per_hour"),
    *("epochs", "optimizer_steps", "total_steps", "samples_seen", "skipped_steps", "final", "loss_terms"),
    *("best", "lowest_val_loss", "samples_per_second", "recoveries", "warnings", "energy", "forked_from"),
)
"""Entries that a resumed run carries over; memory is that of one process.

What a run is stays known when its resume ends before `RunStarted` tells it anew.
"""


def seconds_before(run: Path, summary: dict[str, Any]) -> float:
    """Return the time in which earlier processes have trained a run.

    Its journal has that of a process that was killed, and of earlier versions, which have noted that of the
    last one alone; its summary has the time before the first event of each.
    """
    noted = max(seconds or 0.0 for seconds in time_of(summary))
    try:
        return max(noted, read_run(run).timeline.elapsed)
    except OSError:
        return noted


def paused_before(run: Path) -> float:
    """Return the part of `seconds_before` in which the run was paused or suspended."""
    try:
        return read_run(run).timeline.seconds_in("paused", "suspended")
    except OSError:
        return 0.0


_OF_BRANCH = ("best", "lowest_val_loss")
"""Entries that are of the branch in force."""

_BESTS_KEPT = 256

_Results = list[tuple[int, dict[str, Any]]]
"""Steps of validations, and the entries after each."""


class _Bests:
    """The entries of a summary after each validation, to which an undo or a rollback goes back.

    Args:
        document: The summary, which it changes.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._known: _Results = []
        self._left: _Results = []
        self._split: int | None = None
        """The step of the last undo; None: a switch has come since."""
        self._note(-1)

    def handle(self, event: Event) -> None:
        """Note the entries, or put back those of the branch that the run goes on with."""
        if isinstance(event, Validated):
            self._note(event.step)
            del self._known[1:-_BESTS_KEPT]
        elif isinstance(event, Recovered) and event.problem == "divergence":
            self._leave(event.step)
        elif isinstance(event, PresetSwitched) and not event.undone:
            self._split = None
        elif isinstance(event, PresetSwitched) and self._split is None:
            self._split = event.step
            self._leave(event.step)
        elif isinstance(event, PresetSwitched) and self._split is not None:
            returned = self._left  # an undo of an undo
            self._leave(self._split, returned)

    def _note(self, step: int) -> None:
        entries = {name: self._document[name] for name in _OF_BRANCH if name in self._document}
        self._known.append((step, entries))

    def _leave(self, step: int, returned: _Results | None = None) -> None:
        self._left = [known for known in self._known if known[0] > step]
        self._known = [known for known in self._known if known[0] <= step] + (returned or [])
        for name in _OF_BRANCH:
            self._document.pop(name, None)
        self._document |= self._known[-1][1]


class Summary:
    """The document behind `summary.json` and `--json`.

    Attributes:
        seconds_before: Time in which earlier processes have trained the run.
    """

    def __init__(self, run: str, directory: str) -> None:
        self._started = time.monotonic()
        self.seconds_before = 0.0
        self._cost_before = 0.0
        self.document: dict[str, Any] = {
            "version": VERSION,
            "run": run,
            "directory": directory,
            "status": "running",
            "started": time.time(),
            **blank_summary(),
        }
        self._bests = _Bests(self.document)

    def go_on_from(self, before: Mapping[str, Any], seconds: float = 0.0) -> None:
        """Carry over the summary of earlier processes of the run (`read_summary`), and their seconds."""
        self.document |= {name: before[name] for name in _CARRIED_OVER if name in before}
        self._bests = _Bests(self.document)
        self.seconds_before = seconds
        self._cost_before = before.get("cost") or 0.0

    def handle(self, event: Event) -> None:
        """Update the document."""
        EVENTS[event.kind].summarize(self.document, event)
        self._bests.handle(event)

    def measure(self, device: torch.device | None) -> None:
        """Record the elapsed time, its cost, and the peaks of memory."""
        seconds = time.monotonic() - self._started
        self.document["time"] |= {
            "total_s": round(self.seconds_before + seconds, 3),
            "session_s": round(seconds, 3),
        }
        if (price := self.document["price_per_hour"]) is not None:
            self.document["cost"] = round(self._cost_before + price * seconds / 3600, 6)
        # Linux counts in KiB, macOS in bytes
        unit = 1 if sys.platform == "darwin" else 1024
        memory = self.document["memory"]
        memory["host_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        if device is not None and device.type == "cuda":
            memory["peak_allocated_bytes"] = torch.cuda.max_memory_allocated(device)
            memory["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(device)


# train.log and device.csv: what happened in a run as lines of text, for grep, awk and spreadsheets
# -------------------------------------------------------------------------------------------------
# The journal has all of it, too: a line that can't be written waits, and the oldest are dropped.

TRAIN_LOG, DEVICE_CSV = "train.log", "device.csv"
_STEPS_EVERY_S = 10.0
_MOST_WAITING = 10_000


class _Lines:
    """Lines that wait to be appended to a file."""

    def __init__(self, path: Path, header: str = "") -> None:
        self._path = path
        self._header = header
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._file: LineFile | None = None

    def add(self, line: str) -> None:
        """Append a line with the next `write`; any thread may call it."""
        self._waiting.append(line)

    def write(self) -> None:
        """Write what waits. One thread at a time.

        Raises:
            OSError: The disk is full or gone; the lines wait.
        """
        lines = list(self._waiting)
        if not lines:
            return
        if self._file is None:
            self._file = LineFile(self._path, self._header)
        self._file.append(lines)
        for _ in lines:
            self._waiting.popleft()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class TrainLog(_Lines):
    """train.log: the lines of a console with the time, and a step every ten seconds and at an epoch's end."""

    def __init__(self, run: Path) -> None:
        super().__init__(run / TRAIN_LOG)
        self._steps = 0
        self._step: Step | None = None
        self._step_at = 0.0

    def handle(self, event: Event) -> None:
        """Add the lines of an event, if it has any."""
        if isinstance(event, EpochStarted):
            self._steps = event.steps
        elif isinstance(event, Step):
            self._step = event
            if not 0 <= event.time - self._step_at < _STEPS_EVERY_S:
                self._add_step()
        elif isinstance(event, EpochFinished | RunFinished):
            self._add_step()
        spec = EVENTS[event.kind]
        lines = [text for text, _ in spec.log_lines(event)] if isinstance(event, RunFinished) else ()
        for line in lines or spec.console_lines(event):
            self._write_line(event.time, line)

    def _add_step(self) -> None:
        if (step := self._step) is None:
            return
        self._step = None
        self._step_at = step.time
        self._write_line(step.time, step_words(step, self._steps))

    def _write_line(self, moment: float, words: str) -> None:
        self.add(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}  {clean(words)}")


class DeviceCsv(_Lines):
    """device.csv: a row for each sample of the device, in the columns of `mptui monitor --csv`."""

    def __init__(self, run: Path) -> None:
        super().__init__(run / DEVICE_CSV, csv_header())
        self._processes: DeviceSample | None = None

    def handle(self, event: Event) -> None:
        """Add the row of a sample."""
        if not isinstance(event, DeviceSample):
            return
        if event.processes is not None:
            self._processes = event
        elif self._processes is not None:
            event = replace(event, processes=self._processes.processes)
        self.add(csv_row(event))
