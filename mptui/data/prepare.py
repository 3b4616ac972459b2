"""Converts a set to a prepared one: scans files, shrinks images, writes tar shards and then the index."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mptui import text as fmt
from mptui.config.schema import DataConfig
from mptui.data.address import open_binary
from mptui.data.assemble import check_budget, lossy_images, mask_coding, within_budget
from mptui.data.dataset import Labels, Rows
from mptui.data.decode import FileRequest, load_upright, opened
from mptui.data.folder_format import Found
from mptui.data.masks import MaskCoding, MaskedFileRequest
from mptui.data.prepared import (
    BEGUN,
    CLASSES,
    FORMAT,
    INDEX,
    SAMPLES,
    VERSION,
    PreparedSet,
    SetDescription,
    SetFile,
    ignored_value,
    open_prepared,
    record_type,
)
from mptui.data.scan import OnProgress, Sample, ScanReport, ShouldStop, Work, check_all, processors, scan
from mptui.data.transforms import resized
from mptui.data.types import (
    IGNORE,
    BadSampleError,
    Decoded,
    Mask,
    Problem,
    machine_fault,
    reason_of,
    tried_again,
)
from mptui.errors import ConfigError, DataError, DiskError
from mptui.io.cache import load_arrays
from mptui.io.files import replacing, write_synced
from mptui.io.written_files import disk_hint
from mptui.text import clean_name

# Resizes and encodes samples in the child processes of `mptui prepare`
# ---------------------------------------------------------------------
# Imports no torch. A sample is returned in the form of the prepared set: an image file and a mask file.

_KEPT_FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "BMP": "bmp", "PPM": "ppm"}
_KEPT_OVERHEAD = 1 << 16
"""Bytes by which an original file may exceed its pixels to be stored unchanged."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the conversion of samples."""

    side: int
    """The shorter side in pixels that images are resized to."""
    quality: int
    """JPEG quality, 1 to 100; 0: PNG, lossless."""
    coding: MaskCoding | None
    """Coding of the masks, if there are masks."""

    @staticmethod
    def from_json(values: list[Any]) -> "Settings":
        """Create settings from the fields in order."""
        side, quality, parts = values
        if parts is None:
            return Settings(side, quality, None)
        classes, codes, indices, *more = parts
        return Settings(side, quality, MaskCoding(tuple(classes), tuple(codes), tuple(indices), *more))


@dataclass(frozen=True, slots=True)
class Small:
    """A sample encoded for a prepared set; with a `reason`, an unusable one."""

    path: str = ""
    reason: str = ""
    kind: str = ""
    """File extension of the image's format."""
    image: bytes = b""
    mask: bytes = b""
    shorter: int = 0
    longer: int = 0
    pixels: tuple[int, ...] = ()
    """With masks: pixels of each class, and last the ignored ones."""

    def to_json(self) -> list[Any]:
        """Return the fields in order, ready for JSON."""
        image, mask = (b64encode(content).decode() for content in (self.image, self.mask))
        return [self.path, self.reason, self.kind, image, mask, self.shorter, self.longer, self.pixels]

    @staticmethod
    def from_json(values: list[Any]) -> "Small":
        """Create a sample from the result of `to_json`."""
        path, reason, kind, image, mask, shorter, longer, pixels = values
        return Small(path, reason, kind, b64decode(image), b64decode(mask), shorter, longer, tuple(pixels))


def shrinking(settings: Settings) -> Work[Small]:
    """Return the work of resizing and encoding samples."""
    return Work("mptui.data.prepare:main", astuple(settings), Small.from_json, Small)


def shrink(sample: Sample, settings: Settings) -> Small:
    """Decode, resize and encode a sample."""
    try:
        return tried_again(lambda: _shrunk(sample, settings))
    except BadSampleError as error:
        return Small(path=error.name, reason=error.reason)


def _shrunk(sample: Sample, settings: Settings) -> Small:
    path, mask_path = sample
    if mask_path is None:
        decoded = FileRequest(path, 0).read(settings.side)
    else:
        assert settings.coding is not None
        decoded = MaskedFileRequest(path, mask_path, settings.coding).read(settings.side)
    small = resized(decoded, settings.side)
    kind, image = _as_it_was(path, decoded, mask_path) if small is decoded else ("", b"")
    if not image:
        kind, image = _encoded(small, settings.quality)
    height, width = small.image_HWC.shape[:2]
    mask, pixels = b"", tuple[int, ...]()
    if small.mask_HW is not None and settings.coding is not None:
        mask, pixels = _encoded_mask(small.mask_HW, len(settings.coding.classes))
    return Small("", "", kind, image, mask, min(height, width), max(height, width), pixels)


def main() -> None:
    """Answer each line of stdin, a JSON list [settings, samples], with a line of converted samples."""
    for line in sys.stdin:
        told, samples = json.loads(line)
        settings = Settings.from_json(told)
        answers = [shrink((path, mask), settings).to_json() for path, mask in samples]
        sys.stdout.write(json.dumps(answers) + "\n")
        sys.stdout.flush()


def _as_it_was(path: str, decoded: Decoded, mask_path: str | None) -> tuple[str, bytes]:
    """Return extension and bytes of the file if it can be stored unchanged, else empty ones.

    It must have been decoded at full size and be no larger than its pixels. With a mask, it must not be
    stored turned: masks are stored upright, and not every reader of the tars turns the image.
    """
    with opened(path) as image:
        kind, size = _KEPT_FORMATS.get(image.format or "", ""), image.size
        if mask_path is not None and load_upright(image)[1] != 1:
            return "", b""
    if not kind or size[0] * size[1] != decoded.image_HWC.shape[0] * decoded.image_HWC.shape[1]:
        return "", b""
    try:
        with open_binary(path) as file:
            content = file.read(decoded.image_HWC.nbytes + _KEPT_OVERHEAD + 1)
    except OSError as error:
        raise BadSampleError(path, reason_of(error)) from error
    return (kind, content) if len(content) <= decoded.image_HWC.nbytes + _KEPT_OVERHEAD else ("", b"")


def _encoded(sample: Decoded, quality: int) -> tuple[str, bytes]:
    content = BytesIO()
    image = Image.fromarray(sample.image_HWC)
    if quality == 0:
        image.save(content, "PNG", compress_level=3)
        return "png", content.getvalue()
    image.save(content, "JPEG", quality=quality)
    return "jpg", content.getvalue()


def _encoded_mask(mask_HW: Mask, classes: int) -> tuple[bytes, tuple[int, ...]]:
    """Return a mask as PNG with the class index of each pixel, and the number of pixels of each class."""
    ignored = ignored_value(classes)
    values_HW = np.where(mask_HW == IGNORE, ignored, mask_HW).astype(
        np.uint8 if ignored == 255 else np.uint16
    )
    counts = np.bincount(np.where(mask_HW == IGNORE, classes, mask_HW).ravel(), minlength=classes + 1)
    content = BytesIO()
    Image.fromarray(values_HW).save(content, "PNG")
    return content.getvalue(), tuple(counts.tolist())


# Writes the tars of a prepared set atomically, so that a killed `mptui prepare` can continue
# -------------------------------------------------------------------------------------------
# A tar is written under a temporary name, synced and renamed; then a note of its contents is written. A tar
# with a note is complete.

_TAR_BLOCK = 512
_TAR_END = bytes(2 * _TAR_BLOCK)


@dataclass(frozen=True, slots=True)
class Tar:
    """A complete tar, where its samples lie in it, and the samples left out."""

    file: SetFile
    records: npt.NDArray[np.void]
    left_out: list[Problem]


class TarWriter:
    """Writes one tar.

    Args:
        folder: Folder of the set.
        name: Name of the tar.
        number: Its number among those of the set.
        record: `record_type` of the set.

    Raises:
        OSError: The disk is full, gone, or not writable.
    """

    def __init__(self, folder: Path, name: str, number: int, record: "np.dtype[np.void]") -> None:
        self._folder = folder
        self._name = name
        self._number = number
        self._record = record
        self._records: list[tuple[Any, ...]] = []
        self._left_out: list[Problem] = []
        self._path = folder / f".{name}.partial"
        self._file = self._path.open("wb")
        self._digest = hashlib.sha256()
        self._at = 0

    def add(self, row: int, label: int | None, small: Small) -> None:
        """Append a sample, or record that it is left out.

        Raises:
            OSError: The disk is full, gone, or not writable.
        """
        if small.reason:
            self._left_out.append(Problem(small.path, small.reason))
            return
        at, mask_at = self._member(f"{row:08d}.{small.kind}", small.image), 0
        if small.mask:
            mask_at = self._member(f"{row:08d}.seg.png", small.mask)
        if label is not None:
            self._member(f"{row:08d}.cls", str(label).encode())
        sizes = len(small.image), len(small.mask)
        record = (self._number, row, at, mask_at, *sizes, label or 0, small.shorter, small.longer)
        self._records.append((*record, small.pixels) if small.mask else record)

    def finish(self) -> Tar:
        """Sync the tar to the disk and rename it to its final name.

        Raises:
            OSError: The disk is full, gone, or not writable.
        """
        self._write(_TAR_END)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.replace(self._folder / self._name)
        file = SetFile(self._name, self._at, self._digest.hexdigest())
        tar = Tar(file, np.array(self._records, self._record), self._left_out)
        _write_note(self._folder, tar)
        return tar

    def give_up(self) -> None:
        """Remove an unfinished tar."""
        with suppress(OSError):  # the buffered rest does not fit on the disk either
            self._file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _member(self, name: str, content: bytes) -> int:
        """Append a file to the archive; return the offset of its content."""
        header = tarfile.TarInfo(name)
        header.size = len(content)
        self._write(header.tobuf(tarfile.USTAR_FORMAT))
        at = self._at
        self._write(content + bytes(-len(content) % _TAR_BLOCK))
        return at

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)
        self._at += len(content)


def finished_tar(folder: Path, name: str) -> Tar | None:
    """Return a tar finished by an earlier, interrupted call; None if it is not finished."""
    noted = load_arrays(_note(folder, name))
    try:
        file, left_out = json.loads(noted["facts"].tobytes())
        tar = Tar(SetFile(*file), noted["records"], [Problem(*pair) for pair in left_out])
        return tar if (folder / name).stat().st_size == tar.file.bytes else None
    except (OSError, KeyError, TypeError, ValueError):
        return None


def forget_notes(folder: Path, names: Iterable[str]) -> None:
    """Remove the notes of tars, which the set's index replaces."""
    for name in names:
        _note(folder, name).unlink(missing_ok=True)


def write_file(path: Path, content: bytes | memoryview) -> SetFile:
    """Replace a file of the set atomically.

    Raises:
        OSError: The disk is full, gone, or not writable; an older file is unchanged.
    """
    fresh = path.with_name(f".{path.name}.partial")  # the next call overwrites the file of a killed one
    with replacing(path, fresh=fresh):
        return SetFile(path.name, len(content), write_synced(fresh, [content], 0o666))


def _note(folder: Path, name: str) -> Path:
    return folder / f".{name}.npz"


def _write_note(folder: Path, tar: Tar) -> None:
    content = BytesIO()
    facts = json.dumps([astuple(tar.file), [astuple(problem) for problem in tar.left_out]])
    np.savez(content, records=tar.records, facts=np.frombuffer(facts.encode(), np.uint8))
    write_file(_note(folder, tar.file.name), content.getbuffer())


# Converts a dataset to a prepared set: scans files, resizes images, writes tars and then the index
# -------------------------------------------------------------------------------------------------

SAMPLES_A_TAR = 8192

_CHUNK = 16
_MOST_TOLD = 1000
"""Largest number of left-out files listed in the index."""

OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """The set to prepare, and the settings."""

    name: str
    task: str
    found: Found
    out: Path
    image_size: int
    resize: int
    """The shorter side in pixels that images are resized to: `data.resize` of the runs."""
    quality: int
    """JPEG quality, 1 to 100; 0: PNG, lossless."""
    data: DataConfig
    """The budget of unusable files, and the ignored mask value."""
    small_side: int | None = None
    """The shorter side in pixels of small images; see `mptui.data.open.small_side`."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request with its scanned files."""

    order: ConversionRequest
    settings: Settings
    rows: Rows
    """Rows of the usable samples."""
    labels: Labels | None
    """The class of each row; None: masks, or images alone."""
    problems: tuple[Problem, ...]
    key: str
    """Hash of everything that the set depends on."""

    @property
    def classes(self) -> tuple[str, ...]:
        coding = self.settings.coding
        return self.order.found.classes if coding is None else coding.classes

    @property
    def tars(self) -> dict[str, Rows]:
        """The rows of each tar, by its name: those of training first."""
        train, val = np.split(self.rows, [int((self.rows < self.order.found.train_rows).sum())])
        return {
            f"{half}-{number:05d}.tar": rows[start : start + SAMPLES_A_TAR]
            for half, rows in (("train", train), ("val", val))
            for number, start in enumerate(range(0, len(rows), SAMPLES_A_TAR))
        }


def prepare_set(
    order: ConversionRequest, on_stage: OnStage, on_progress: OnProgress, should_stop: ShouldStop
) -> PreparedSet:
    """Prepare a set, or continue an interrupted call.

    Args:
        order: The request.
        on_stage: Called with a line of text at each stage.
        on_progress: Called with (done, total) of files.
        should_stop: Called several times per second.

    Raises:
        ConfigError: The folder has other contents.
        DataError: Too many samples are unusable.
        DiskError: The disk is full or not writable.
        ScanCancelledError: `should_stop` returned True.
    """
    _refuse_others(order.out)
    on_stage(f"checking {len(order.found.images):,} files")
    report = scan(order.found.images, order.found.masks, on_progress, should_stop)
    plan = _planned(order, report)
    for warning in lossy_images(order.found, report, None):
        on_stage(warning)
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        with _alone(order.out):
            if (order.out / INDEX).exists():
                prepared = _as_it_is(order.out, plan.key)
                _tidy(plan)  # an earlier call may have been killed before this
                return prepared
            _begin(order.out, plan)
            _finish(plan, _written(plan, on_stage, on_progress, should_stop))
    except OSError as error:
        raise _disk(order.out, error) from error
    return open_prepared(str(order.out))


def _refuse_others(out: Path) -> None:
    """Refuse a folder with other contents than a complete or incomplete prepared set."""
    try:
        names = {entry.name for entry in os.scandir(out)}
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"{clean_name(str(out))}: {error.strerror}", hint="choose another with --out"
        ) from error
    names -= {f".{BEGUN}.partial"}
    if names and INDEX not in names and BEGUN not in names:
        raise ConfigError(f"{clean_name(str(out))} is not empty", hint="choose a new folder with --out DIR")


def _planned(order: ConversionRequest, report: ScanReport) -> _Plan:
    found, coding = order.found, None
    if found.masks is not None:
        coding = mask_coding(found, report, order.data).coding
    problems = within_budget(found, report, order.data.bad_sample_budget)
    settings = Settings(order.resize, order.quality, coding)
    rows = np.flatnonzero(report.sides[:, 0])
    _check_halves(order, rows)
    facts = [VERSION, order.name, order.image_size, astuple(settings), found.classes, found.train_rows]
    key = hashlib.sha256(json.dumps([*facts, SAMPLES_A_TAR]).encode() + report.keys[rows].tobytes())
    labels = found.labels if coding is None and len(found.classes) > 1 else None
    return _Plan(order, settings, rows, labels, problems, key.hexdigest())


def _check_halves(order: ConversionRequest, rows: npt.NDArray[Any]) -> None:
    """Refuse a set with an empty half."""
    found = order.found
    train = int((rows < found.train_rows).sum())
    none_to_validate = train == len(rows) and found.train_rows < len(found.images)
    if not train or none_to_validate:
        which = "training" if not train else "validation"
        raise DataError(
            f"{order.name}: no usable images are left for {which}",
            hint="check the files that were left out",
        )


def _as_it_is(out: Path, key: str) -> PreparedSet:
    prepared = open_prepared(str(out))
    if prepared.about.key != key:
        raise _other_set(out, "a set prepared from other files or with other settings")
    return prepared


def _begin(out: Path, plan: _Plan) -> None:
    """Record the set's key, or check that an earlier call has recorded the same."""
    begun = out / BEGUN
    if begun.exists():
        if begun.read_text(errors="replace").strip() != json.dumps({"key": plan.key}):
            raise _other_set(out, "an incomplete set from other files or with other settings")
        return
    write_file(begun, json.dumps({"key": plan.key}).encode())


def _other_set(out: Path, what: str) -> ConfigError:
    return ConfigError(
        f"{clean_name(str(out))} holds {what}", hint="choose another folder with --out, or remove this one"
    )


def _written(plan: _Plan, on_stage: OnStage, on_progress: OnProgress, should_stop: ShouldStop) -> list[Tar]:
    """Write the missing tars; return all."""
    out, found, tars, total = plan.order.out, plan.order.found, plan.tars, len(plan.rows)
    done = {name: tar for name in tars if (tar := finished_tar(out, name))}
    missing = [name for name in tars if name not in done]
    count = sum(len(tars[name]) for name in done)
    on_stage(f"{count:,} of {total:,} are there already" if count else f"writing {total:,} samples to {out}")

    def chunks() -> Iterator[list[Sample]]:
        for rows in (chunk for name in missing for chunk in _chunks(tars[name])):
            yield [(found.images[row], None if found.masks is None else found.masks[row]) for row in rows]

    def on_done(samples: int) -> None:
        nonlocal count
        count += samples
        on_progress(count, total)

    made = check_all(chunks(), shrinking(plan.settings), processors(), should_stop)
    with contextlib.closing(made):
        for name in missing:
            tar = done[name] = _write_tar(plan, name, made, on_done)
            left_out = [*plan.problems, *(problem for each in done.values() for problem in each.left_out)]
            check_budget(found, left_out, plan.order.data.bad_sample_budget, "allow more: --bad-budget")
            _check_room(out, tar.file.bytes * (len(tars) - len(done)))
    return [done[name] for name in tars]


def _write_tar(plan: _Plan, name: str, made: Iterator[list[Small]], on_done: Callable[[int], None]) -> Tar:
    number = list(plan.tars).index(name)
    record = record_type(0 if plan.settings.coding is None else len(plan.classes))
    writer = TarWriter(plan.order.out, name, number, record)
    try:
        for rows in _chunks(plan.tars[name]):
            for row, small in zip(rows, next(made), strict=True):
                if (fault := machine_fault(small.path, small.reason)) is not None:
                    raise fault
                writer.add(row, None if plan.labels is None else int(plan.labels[row]), small)
            on_done(len(rows))
        return writer.finish()
    except BaseException:
        writer.give_up()
        raise


def _chunks(rows: Rows) -> Iterator[list[int]]:
    for start in range(0, len(rows), _CHUNK):
        yield rows[start : start + _CHUNK].tolist()


def _check_room(out: Path, needed: int) -> None:
    """Fail early if the disk has too little space for the remaining shards."""
    free = shutil.disk_usage(out).free
    if needed > free:
        raise DiskError(
            f"about {fmt.size(needed)} more are needed, {fmt.size(free)} are free: {clean_name(str(out))}",
            hint="free disk space and repeat the command to continue; or choose another disk with --out",
        )


def _finish(plan: _Plan, tars: list[Tar]) -> None:
    order, out, settings = plan.order, plan.order.out, plan.settings
    records = np.concatenate([tar.records for tar in tars])
    _check_halves(order, records["row"])
    left_out = [*plan.problems, *(problem for tar in tars for problem in tar.left_out)]
    train = int((records["row"] < order.found.train_rows).sum())
    array = io.BytesIO()
    np.save(array, records, allow_pickle=False)
    write_file(out / CLASSES, "".join(f"{clean_name(name)}\n" for name in plan.classes).encode())
    about = SetDescription(
        format=FORMAT,
        version=VERSION,
        key=plan.key,
        name=order.name,
        task=order.task,
        classes=list(plan.classes),
        masks=settings.coding is not None,
        image_size=order.image_size,
        side=settings.side,
        quality=settings.quality,
        ignore_index=order.data.ignore_index,
        count=len(records),
        train_count=train if train < len(records) else None,
        left_out=[[problem.path, problem.reason] for problem in left_out[:_MOST_TOLD]],
        warnings=list(order.found.warnings),
        samples=write_file(out / SAMPLES, array.getbuffer()),
        tars=[tar.file for tar in tars],
        small_side=order.small_side and min(order.small_side, settings.side),
    )
    write_file(out / INDEX, json.dumps(asdict(about), indent=1).encode())
    _tidy(plan)


def _tidy(plan: _Plan) -> None:
    """Remove the files that only an incomplete set needs."""
    forget_notes(plan.order.out, plan.tars)
    (plan.order.out / BEGUN).unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(out: Path) -> Iterator[None]:
    """Lock the folder against other calls within the context."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(out, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{clean_name(str(out))}: another mptui prepare is writing to it",
                hint="wait for it, or use --out",
            ) from None
        yield
    finally:
        os.close(handle)


def _disk(out: Path, error: OSError) -> DiskError:
    free = ""
    with contextlib.suppress(OSError):
        free = f"; {fmt.size(shutil.disk_usage(out).free)} are free"
    return DiskError(
        f"cannot write: {(error.strerror or str(error)).lower()}{free}: {clean_name(str(out))}",
        hint=f"{disk_hint(error, out, 'choose another disk with --out')}; "
        "then repeat the command to continue",
    )
