"""Looks at every file of a set once, in processes that may die; cached by path, size and time."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from math import sqrt
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from mptui.data.address import open_binary, status_of, title_of
from mptui.data.decode import (
    is_finite,
    load_upright,
    lossy_as_rgb,
    opened,
    read_stored,
    stored_size,
    stored_tiff_format,
)
from mptui.data.masks import MaskSurvey, Size, opened_mask, surveyed
from mptui.data.transforms import Normalization
from mptui.data.types import BadSampleError, PixelFormat, Problem, Sides, machine_fault, tried_again
from mptui.io.cache import cache_folder, load_arrays, save_arrays
from mptui.processes.start import start

# Checks that samples can be read, in the child processes of the scan
# -------------------------------------------------------------------
# Decoders are C code: some write to the terminal past Python, and a hostile file may crash one. A child
# process isolates both. Imports no torch: a child starts in a fraction of a second.

Sample = tuple[str, str | None]
"""An image file and the file of its mask, if it has one."""

NOT_RGB = ', which data.bands = "rgb" can\'t read'
"""End of the reason of a file that only `data.bands = "all"` reads."""

_END_MARKERS = {"JPEG": b"\xff\xd9", "MPO": b"\xff\xd9", "PNG": b"IEND"}
_END_BYTES = 64
_PAGE_TYPE, _NO_PAGE = 254, 0b101


@dataclass(frozen=True, slots=True)
class SampleCheck:
    """Result of the check of a sample: the unusable file and the reason, or its sides in pixels."""

    path: str = ""
    reason: str = ""
    side: int = 0
    """The shorter side in pixels; 0 if the sample can't be used."""
    longer: int = 0
    mask: MaskSurvey | None = None
    finite: bool = True
    """False: some pixels are NaN or infinite; the sample is still usable."""
    pixels: PixelFormat | None = None
    """The format of the image as it is stored; if it is read as 8-bit RGB, only where that loses some."""

    def to_json(self) -> list[Any]:
        """Return the fields in order, ready for JSON."""
        return list(astuple(self))

    @staticmethod
    def from_json(values: Sequence[Any]) -> "SampleCheck":
        """Create a check from the result of `to_json`."""
        path, reason, side, longer, mask, finite, pixels = values
        found = None if mask is None else survey_from_json(mask)
        form = None if pixels is None else PixelFormat(*pixels)
        return SampleCheck(path, reason, side, longer, found, bool(finite), form)


def survey_from_json(values: Sequence[Any]) -> MaskSurvey:
    """Create a survey from its fields in JSON."""
    kind, codes, counts, colours, lossy, even, between, fit, (regions, compact) = values
    columns = tuple(codes), tuple(counts), tuple(colours)
    return MaskSurvey(kind, *columns, bool(lossy), tuple(even), tuple(between), fit, (regions, compact))


class _StackError(BadSampleError):
    """A TIFF of several pages."""


def check(sample: Sample, whole: bool, stored: bool = False) -> SampleCheck:
    """Check whether a sample can be read.

    Args:
        sample: The image file, and its mask file.
        whole: Decode every pixel. Otherwise a JPEG or PNG file with a valid end counts as complete, and only
            its header is read.
        stored: The image is read as it is stored, always whole; otherwise as 8-bit RGB.
    """
    try:
        return tried_again(lambda: _looked_at(sample, whole, stored))
    except BadSampleError as error:
        return SampleCheck(path=error.name, reason=error.reason)


def _looked_at(sample: Sample, whole: bool, stored: bool) -> SampleCheck:
    path, mask_path = sample
    seen, size, orientation = _as_stored(path) if stored else _as_rgb(path, whole or mask_path is not None)
    if mask_path is None:
        return seen
    with opened_mask(mask_path) as file:
        _refuse_stack(mask_path, file)
        return replace(seen, mask=surveyed(mask_path, file, size, orientation))


def _as_stored(path: str) -> tuple[SampleCheck, Size, int]:
    image = read_stored(path)
    side, longer = sorted(image.size)
    seen = SampleCheck(side=side, longer=longer, finite=image.finite, pixels=image.format)
    return seen, image.size, image.orientation


def _as_rgb(path: str, whole: bool) -> tuple[SampleCheck, Size, int]:
    try:
        with opened(path) as image:
            _refuse_stack(path, image)
            size = stored_size(image)
            seen = SampleCheck(side=min(size), longer=max(size), pixels=lossy_as_rgb(image))
            if not whole and _ends_well(path, image):
                return seen, size, 1
            image.draft(None, (1, 1))
            upright, orientation = load_upright(image)
            return replace(seen, finite=is_finite(upright)), size, orientation
    except _StackError:
        raise
    except BadSampleError as error:
        if (found := stored_tiff_format(path)) is None:
            raise
        raise BadSampleError(path, f"{found}{NOT_RGB}") from error


def _refuse_stack(path: str, image: Image.Image) -> None:
    """Refuse a TIFF of several pages, of which the first alone would be read.

    Smaller copies and transparency masks (bits 0 and 2 of the type of a page) are no pages of their own.

    Raises:
        BadSampleError: It has several.
    """
    if image.format != "TIFF" or getattr(image, "n_frames", 1) == 1:
        return
    pages = 0
    for number in range(image.n_frames):  # type: ignore[attr-defined] # a TIFF has it
        image.seek(number)
        pages += not image.tag_v2.get(_PAGE_TYPE, 0) & _NO_PAGE  # type: ignore[attr-defined]
    image.seek(0)
    if pages > 1:
        raise _StackError(path, f"a stack of {pages} pages: save each as a file of its own")


def main() -> None:
    """Answer each line of stdin, a JSON list [[whole, stored], samples], until stdin ends."""
    for line in sys.stdin:
        (whole, stored), samples = json.loads(line)
        findings = [check((path, mask_path), whole, stored).to_json() for path, mask_path in samples]
        sys.stdout.write(json.dumps(findings) + "\n")
        sys.stdout.flush()


def _ends_well(path: str, image: Image.Image) -> bool:
    marker = _END_MARKERS.get(image.format or "")
    if marker is None:
        return False
    with open_binary(path) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _END_BYTES))
        return marker in file.read()


# Tells masks from photographs by their pixels, in child processes: decoders are C code
# -------------------------------------------------------------------------------------

FEW, _MANY = 16, 64
"""Colours of a mask at most, grey values of a photograph more."""
_BIN, _FULLEST = 8, 4
_IN_MASK, _IN_PHOTOGRAPH = 0.97, 0.8
"""Share of the 4 fullest bins of 8 grey values in a mask with loss or smoothing; of a photograph at most."""
_SIDE = 256


@dataclass(frozen=True, slots=True)
class PixelLook:
    """What the pixels of an image can be.

    Attributes:
        width: Its width as it is stored, in pixels; 0: it can't be read.
        height: Its height.
        values: Number of its grey values.
        is_flat: Whether it has few values, as a mask.
        is_photograph: Whether it has many values, in many of its pixels.
    """

    width: int = 0
    height: int = 0
    values: int = 0
    is_flat: bool = False
    is_photograph: bool = False


def look(path: str) -> PixelLook:
    """Decode an image, a JPEG at a smaller size, and count its values."""
    try:
        with opened(path) as image:
            width, height = stored_size(image)
            image.draft("RGB", (_SIDE, _SIDE))
            few = image.convert("RGB").getcolors(FEW)
            pixels = image.convert("L").histogram()
    except BadSampleError:
        return PixelLook()
    bins = sorted(sum(pixels[start : start + _BIN]) for start in range(0, len(pixels), _BIN))
    share, values = sum(bins[-_FULLEST:]) / sum(pixels), sum(map(bool, pixels))
    is_flat = few is not None or share >= _IN_MASK
    return PixelLook(width, height, values, is_flat, values > _MANY and share <= _IN_PHOTOGRAPH)


def look_at_pixels() -> None:
    """Answer each line of stdin, a JSON list [null, samples], until stdin ends."""
    for line in sys.stdin:
        _, samples = json.loads(line)
        sys.stdout.write(json.dumps([astuple(look(path)) for path, _ in samples]) + "\n")
        sys.stdout.flush()


# Child processes that decode files, with a bounded queue of work
# ---------------------------------------------------------------

_LOOK_AROUND_S = 0.2
_ENDED = "reading it ended the process: out of memory, or an error in the decoder"

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Work(Generic[Found]):
    """The work of the child processes."""

    call: str
    """`module:function` that answers each line [told, samples] of stdin with JSON, a value per sample."""
    told: Any
    """Argument sent with each chunk; ready for JSON."""
    found: Callable[[Any], Found]
    """Converts a value to a result."""
    failed: Callable[[str, str], Found]
    """Creates the result of a sample that ends the child, from its path and the reason."""


def looking(*, whole: bool, stored: bool = False) -> Work[SampleCheck]:
    """Return the work of checking samples: whole, or headers; as they are stored, or as 8-bit RGB."""
    return Work("mptui.data.scan:main", [whole, stored], SampleCheck.from_json, SampleCheck)


class ScanCancelledError(Exception):
    """A stop was requested before the scan was complete."""


class CheckProcess(Generic[Found]):
    """One child process. A file that ends the child is identified and reported; the others are checked."""

    def __init__(self, work: Work[Found]) -> None:
        self._work = work
        self._guard = threading.Lock()
        self._stopped = False
        self._child = self._started()

    def check(self, samples: Sequence[Sample]) -> list[Found]:
        """Process samples in the child.

        Raises:
            ScanCancelledError: `stop` was called in the meantime.
        """
        try:
            return self._ask(samples)
        except (OSError, EOFError):
            self._restart()
        if len(samples) == 1:
            return [self._work.failed(title_of(samples[0][0]), _ENDED)]
        return [found for sample in samples for found in self.check([sample])]

    def stop(self) -> None:
        """End the child, from any thread; a `check` in progress returns at once."""
        with self._guard:
            self._stopped = True
            self._child.kill()

    def close(self) -> None:
        """Release the resources of a stopped child."""
        self._child.communicate()

    def _restart(self) -> None:
        with self._guard:
            if self._stopped:
                raise ScanCancelledError
            self._child.kill()
            self._child.communicate()
            self._child = self._started()

    def _ask(self, samples: Sequence[Sample]) -> list[Found]:
        stdin, stdout = self._child.stdin, self._child.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps([self._work.told, samples]) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line.endswith("\n"):
            raise EOFError("the child ended")
        return [self._work.found(values) for values in json.loads(line)]

    def _started(self) -> subprocess.Popen[str]:
        # The child ends with this process in any case, as its stdin closes.
        call = self._work.call
        return start(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def check_all(
    chunks: Iterator[list[Sample]], work: Work[Found], processes: int, should_stop: Callable[[], bool]
) -> Generator[list[Found], None, None]:
    """Process chunks of samples in `processes` children; yield the results in the order of the chunks.

    Only a few chunks are in progress at a time.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    checkers = [CheckProcess(work) for _ in range(processes)]
    idle: SimpleQueue[CheckProcess[Found]] = SimpleQueue()
    for checker in checkers:
        idle.put(checker)

    def task(chunk: list[Sample]) -> list[Found]:
        checker = idle.get()
        try:
            return checker.check(chunk)
        finally:
            idle.put(checker)

    under_way: deque[Future[list[Found]]] = deque()
    threads = ThreadPoolExecutor(processes)
    try:
        for chunk in chunks:
            under_way.append(threads.submit(task, chunk))
            if len(under_way) >= 4 * processes:
                yield _result(under_way.popleft(), should_stop)
        while under_way:
            yield _result(under_way.popleft(), should_stop)
    finally:
        for checker in checkers:
            checker.stop()
        threads.shutdown(cancel_futures=True)
        for checker in checkers:
            checker.close()


def _result(future: Future[list[Found]], should_stop: Callable[[], bool]) -> list[Found]:
    while True:
        if should_stop():
            raise ScanCancelledError
        if wait([future], timeout=_LOOK_AROUND_S).done:
            return future.result()


# On-disk cache of scans, keyed by path, size and modification time of each file
# ------------------------------------------------------------------------------

Keys = npt.NDArray[np.uint64]

_AT_ONCE = 2048
_THREADS = 8
"""A network file system answers many requests in parallel; a local one is hardly slower."""


def file_keys(images: Sequence[str], masks: Sequence[str] | None, should_stop: Callable[[], bool]) -> Keys:
    """Return a key per sample that changes with path, size or time of its files. Reads no content.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    keys = np.empty(len(images), np.uint64)

    def fill(start: int) -> None:
        if not should_stop():
            for row in range(start, min(start + _AT_ONCE, len(images))):
                keys[row] = _key(images[row], None if masks is None else masks[row])

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(fill, range(0, len(images), _AT_ONCE)):
            pass
    if should_stop():
        raise ScanCancelledError
    return keys


def recall(
    path: Path, keys: Keys, *, masked: bool
) -> tuple[Sides, dict[int, MaskSurvey], dict[int, PixelFormat]]:
    """Load the cached sides (0: not cached), surveys and formats of the samples with `keys`."""
    sides = np.zeros((len(keys), 2), np.uint16)
    surveys: dict[int, MaskSurvey] = {}
    formats: dict[int, PixelFormat] = {}
    kept = load_arrays(path)
    try:
        known, known_sides = kept["keys"].astype(np.uint64), kept["sides"].astype(np.uint16)
        if known_sides.shape != (len(known), 2) or not len(known):
            return sides, {}, {}
        by_key = np.argsort(known)
        found = by_key[np.searchsorted(known, keys, sorter=by_key).clip(max=len(known) - 1)]
        same = np.flatnonzero(known[found] == keys)
        if masked:
            texts = dict(json.loads(kept["surveys"].tobytes()))
            surveys = {int(row): survey_from_json(texts[int(found[row])]) for row in same}
        if "formats" in kept:  # version 0.1.0 kept none
            stored = {int(place): PixelFormat(*form) for place, form in json.loads(kept["formats"].tobytes())}
            places = {int(row): int(found[row]) for row in same} if stored else {}
            formats = {row: stored[place] for row, place in places.items() if place in stored}
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError):
        return sides, {}, {}
    sides[same] = known_sides[found[same]]
    return sides, surveys, formats


def remember(
    path: Path,
    keys: Keys,
    sides: Sides,
    *,
    surveys: Mapping[int, MaskSurvey],
    formats: Mapping[int, PixelFormat],
) -> None:
    """Save the sides, surveys and formats of the usable samples."""
    usable = np.flatnonzero(sides[:, 0])
    texts, stored = (
        [(place, astuple(of[row])) for place, row in enumerate(usable.tolist()) if row in of]
        for of in (surveys, formats)
    )
    save_arrays(
        path,
        {
            "keys": keys[usable],
            "sides": sides[usable],
            "surveys": np.frombuffer(json.dumps(texts).encode(), np.uint8),
            "formats": np.frombuffer(json.dumps(stored).encode(), np.uint8),
        },
    )


def _key(image: str, mask: str | None) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for path in (image,) if mask is None else (image, mask):
        try:
            size, changed_ns = status_of(path)
            facts = f"{size} {changed_ns}"
        except OSError:
            facts = "missing"
        digest.update(os.fsencode(path) + b"\0" + facts.encode() + b"\0")
    return int.from_bytes(digest.digest(), "little")


# Checks every file of a dataset before the first epoch, so that none of them ends the run hours later
# ----------------------------------------------------------------------------------------------------
# Each file is decoded completely, in child processes. Above `DECODE_WHOLE` files that would take too long:
# then only headers and file ends are read, which detects truncated files; damage in the middle of a file is
# detected and counted during training. The result is cached until the file changes.

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
    for first in range(0, len(todo), _REMEMBER_EVERY):
        try:
            part = todo[first : first + _REMEMBER_EVERY]
            done = len(images) - len(todo) + first
            work = looking(whole=whole, stored=stored)
            _check_samples(
                report,
                part,
                done,
                images,
                masks=masks,
                whole=whole,
                work=work,
                on_progress=on_progress,
                should_stop=should_stop,
            )
        finally:
            known = report.sides.copy()
            known[report.not_finite] = 0  # checked again the next time, to be reported again
            remember(kept, keys, known, surveys=report.surveys, formats=report.formats)
    on_progress(len(images), len(images))
    return report


def _check_samples(
    report: ScanReport,
    todo: npt.NDArray[np.intp],
    done: int,
    images: Sequence[str],
    *,
    masks: Sequence[str] | None,
    whole: bool,
    work: Work[SampleCheck],
    on_progress: OnProgress,
    should_stop: ShouldStop,
) -> None:
    size = _CHUNK_WHOLE if whole else _CHUNK_HEADERS
    starts = range(0, len(todo), size)

    def chunks() -> Iterator[list[Sample]]:
        for first in starts:
            yield [(images[i], None if masks is None else masks[i]) for i in todo[first : first + size]]

    on_progress(done, len(images))
    processes = min(processors(), _MOST_PROCESSES, len(starts))
    for first, findings in zip(starts, check_all(chunks(), work, processes, should_stop), strict=True):
        for index, finding in zip(todo[first : first + size], findings, strict=True):
            report.add(int(index), finding)
        on_progress(done + first + len(findings), len(images))


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


# Measures mean and standard deviation of each band over images as they are stored, in child processes
# ----------------------------------------------------------------------------------------------------
# Sums of integers are exact; those of float32 are float64 sums of each image, added without rounding. So
# the result does not depend on the number of processes or on the order of their answers. Imports no torch.

_CHUNK = 8


@dataclass(frozen=True, slots=True)
class BandSums:
    """Number of pixels of an image, and for each band the sums of its values and of their squares."""

    pixels: int = 0
    sums: Sequence[float] = ()
    squares: Sequence[float] = ()


def measure(
    paths: Sequence[str], form: PixelFormat, on_progress: OnProgress, should_stop: ShouldStop
) -> Normalization:
    """Measure images of one format; those that can't be read any more are left out.

    Args:
        paths: The training images.
        form: Their format.
        on_progress: Called with (done, total) of images.
        should_stop: Called several times per second.

    Returns:
        Mean and standard deviation of each band over all pixels: uint8 in 0..1, others as stored. A band of
        one value has a standard deviation of 1.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    starts = range(0, len(paths), _CHUNK)

    def chunks() -> Iterator[list[Sample]]:
        for first in starts:
            yield [(path, None) for path in paths[first : first + _CHUNK]]

    work = Work(
        "mptui.data.scan:measure_bands", [form.bands, form.dtype], lambda values: BandSums(*values), _unread
    )
    pixels = 0
    sums, squares = ([Fraction(0)] * form.bands for _ in range(2))
    done = 0
    for found in check_all(chunks(), work, min(processors(), _MOST_PROCESSES, len(starts)), should_stop):
        for image in found:
            pixels += image.pixels
            for band, (total, square) in enumerate(zip(image.sums, image.squares, strict=True)):
                sums[band] += Fraction(total)
                squares[band] += Fraction(square)
        done += len(found)
        on_progress(done, len(paths))
    unit = 255 if form.dtype == "uint8" else 1
    means = [total / max(pixels, 1) for total in sums]
    variances = [square / max(pixels, 1) - mean**2 for square, mean in zip(squares, means, strict=True)]
    stds = [sqrt(variance) / unit if variance > 0 else 1.0 for variance in variances]
    return Normalization(tuple(float(mean / unit) for mean in means), tuple(stds))


def band_sums(path: str, form: PixelFormat) -> BandSums:
    """Return the sums of an image; zeros if it can't be read."""
    try:
        pixels_HWC = tried_again(lambda: read_stored(path, form).pixels_HWC)
    except BadSampleError:
        return BandSums()
    values_CN = pixels_HWC.reshape(-1, form.bands).T
    wide: Callable[[Any], Any] = np.int64 if values_CN.dtype.kind in "iu" else np.float64
    sums, squares = [], []
    for band_N in values_CN:  # one by one: all of them would take eight times the image's memory
        values_N = wide(band_N)
        sums.append(values_N.sum().item())
        squares.append((values_N * values_N).sum().item())
    return BandSums(values_CN.shape[1], sums, squares)


def _unread(_path: str, _reason: str) -> BandSums:
    return BandSums()


def measure_bands() -> None:
    """Answer each line of stdin, a JSON list [format, samples], with a line of sums, until stdin ends."""
    for line in sys.stdin:
        (bands, dtype), samples = json.loads(line)
        form = PixelFormat(bands, dtype)
        sys.stdout.write(json.dumps([astuple(band_sums(path, form)) for path, _ in samples]) + "\n")
        sys.stdout.flush()
