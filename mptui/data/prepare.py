"""Converts a dataset to a prepared set: scans files, resizes images, writes shards and then the index."""

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mptui.config.schema import DataConfig
from mptui.data.convert.shard_writer import Shard, ShardWriter, finished_shard, forget_notes, write_file
from mptui.data.convert.shrink import Settings, Small, shrinking
from mptui.data.core.read_errors import machine_fault
from mptui.data.formats.assemble import lossy_images, mask_coding, within_budget
from mptui.data.formats.folder_format import Found
from mptui.data.formats.sharded import (
    BEGUN,
    FORMAT,
    INDEX,
    PIXELS,
    SAMPLES,
    VERSION,
    ShardIndex,
    open_prepared,
)
from mptui.data.formats.splits import Labels
from mptui.data.scan.process_pool import check_all
from mptui.data.scan.scan import OnProgress, ScanReport, ShouldStop, processors, scan
from mptui.errors import ConfigError, DataError, DiskError
from mptui.io.disk_hint import disk_hint
from mptui.text import clean_name

SAMPLES_A_SHARD = 8192

_CHUNK = 16
_MOST_TOLD = 1000
"""Largest number of left-out files listed in the index."""

Told = Callable[[str], None]


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


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request with its scanned files."""

    order: ConversionRequest
    settings: Settings
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """Rows of the usable samples."""
    labels: Labels
    problems: list[tuple[str, str]]
    key: str
    """Hash of everything that the set depends on."""

    @property
    def shards(self) -> int:
        return -(-len(self.rows) // SAMPLES_A_SHARD)


def prepare_set(
    order: ConversionRequest, told: Told, on_progress: OnProgress, should_stop: ShouldStop
) -> ShardIndex:
    """Prepare a set, or continue an interrupted call.

    Args:
        order: The request.
        told: Called with a line of text at each stage.
        on_progress: Called with (done, total) of files.
        should_stop: Called several times per second.

    Raises:
        ConfigError: The folder has other contents.
        DataError: Too many samples are unusable.
        DiskError: The disk is full or not writable.
        ScanCancelledError: `should_stop` returned True.
    """
    _refuse_others(order.out)
    told(f"checking {len(order.found.images):,} files")
    report = scan(order.found.images, order.found.masks, on_progress, should_stop)
    plan = _planned(order, report)
    for warning in lossy_images(order.found, report, None):
        told(warning)
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        with _alone(order.out):
            if (order.out / INDEX).exists():
                prepared = _as_it_is(order.out, plan.key)
                _tidy(plan)  # an earlier call may have been killed before this
                return prepared
            _begin(order.out, plan)
            shards = _written(plan, told, on_progress, should_stop)
            _finish(plan, shards)
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
    facts = [VERSION, order.name, order.image_size, settings.to_json(), found.classes, found.train_rows]
    key = hashlib.sha256(json.dumps([*facts, SAMPLES_A_SHARD]).encode() + report.keys[rows].tobytes())
    labels = np.zeros(len(found.images), np.int64) if found.labels is None else found.labels
    return _Plan(order, settings, rows, labels, [(p.path, p.reason) for p in problems], key.hexdigest())


def _check_halves(order: ConversionRequest, rows: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Refuse a set with an empty half."""
    found = order.found
    train = int((rows < found.train_rows).sum())
    none_to_validate = train == len(rows) and found.train_rows < len(found.images)
    if not train or none_to_validate:
        which = "training" if not train else "validation"
        raise DataError(
            f"{order.name}: no usable images are left for {which}",
            hint="Check the files that were left out.",
        )


def _as_it_is(out: Path, key: str) -> ShardIndex:
    prepared = open_prepared(str(out))
    if prepared.facts.get("key") != key:
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


def _written(plan: _Plan, told: Told, on_progress: OnProgress, should_stop: ShouldStop) -> list[Shard]:
    """Write the missing shards; return all."""
    out, found, total = plan.order.out, plan.order.found, len(plan.rows)
    done = {number: shard for number in range(plan.shards) if (shard := finished_shard(out, number))}
    missing = [number for number in range(plan.shards) if number not in done]
    count = sum(len(_rows(plan, number)) for number in done)
    told(f"{count:,} of {total:,} are there already" if count else f"writing {total:,} samples to {out}")

    def chunks() -> Iterator[list[tuple[str, str | None]]]:
        for number in missing:
            rows = _rows(plan, number)
            for start in range(0, len(rows), _CHUNK):
                yield [
                    (found.images[row], None if found.masks is None else found.masks[row])
                    for row in rows[start : start + _CHUNK].tolist()
                ]

    made = check_all(chunks(), shrinking(plan.settings), processors(), should_stop)
    with contextlib.closing(made):
        for number in missing:
            shard = done[number] = _write_shard(plan, number, made, count, on_progress)
            count += len(_rows(plan, number))
            _check_budget(plan, done.values())
            _check_room(out, shard.facts["bytes"] * (plan.shards - len(done)))
    return [done[number] for number in range(plan.shards)]


def _write_shard(
    plan: _Plan, number: int, made: Iterator[list[Small]], before: int, on_progress: OnProgress
) -> Shard:
    rows, writer = _rows(plan, number), ShardWriter(plan.order.out, number)
    try:
        for start in range(0, len(rows), _CHUNK):
            for row, small in zip(rows[start : start + _CHUNK].tolist(), next(made), strict=True):
                if (fault := machine_fault(small.path, small.reason)) is not None:
                    raise fault
                writer.add(row, int(plan.labels[row]), small)
            on_progress(before + min(start + _CHUNK, len(rows)), len(plan.rows))
        return writer.finish()
    except BaseException:
        writer.give_up()
        raise


def _rows(plan: _Plan, shard: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return plan.rows[shard * SAMPLES_A_SHARD : (shard + 1) * SAMPLES_A_SHARD]


def _check_budget(plan: _Plan, shards: Iterable[Shard]) -> None:
    left_out = [*plan.problems, *(pair for shard in shards for pair in shard.left_out)]
    total, budget = (
        len(plan.order.found.images) + len(plan.order.found.unpaired),
        plan.order.data.bad_sample_budget,
    )
    if len(left_out) > budget * total:
        named = [f"  {clean_name(path)}: {reason}" for path, reason in left_out[:20]]
        raise DataError(
            "\n".join([f"{len(left_out)} of {total} samples can't be used:", *named]),
            hint=f"Repair or remove them, or allow more: --bad-budget {len(left_out) / total:.3g}",
        )


def _check_room(out: Path, needed: int) -> None:
    """Fail early if the disk has too little space for the remaining shards."""
    free = shutil.disk_usage(out).free
    if needed > free:
        raise DiskError(
            f"{clean_name(str(out))}: about {needed:,} bytes more are needed, {free:,} are free",
            hint="free disk space and repeat the command to continue; or choose another disk with --out",
        )


def _finish(plan: _Plan, shards: list[Shard]) -> None:
    order, out = plan.order, plan.order.out
    records = np.concatenate([shard.records for shard in shards])
    _check_halves(order, records["row"])
    classes = order.found.classes if plan.settings.coding is None else plan.settings.coding.classes
    left_out = [*plan.problems, *(pair for shard in shards for pair in shard.left_out)]
    train = int((records["row"] < order.found.train_rows).sum())
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "key": plan.key,
        "name": order.name,
        "task": order.task,
        "classes": list(classes),
        "image_size": order.image_size,
        "side": plan.settings.side,
        "quality": plan.settings.quality,
        "ignore_index": order.data.ignore_index,
        "count": len(records),
        "train_count": train if train < len(records) else None,
        "left_out": left_out[:_MOST_TOLD],
        "warnings": list(order.found.warnings),
        "samples": _write_array(out / SAMPLES, records),
        "shards": [shard.facts for shard in shards],
    }
    if plan.settings.coding is not None:
        pixels = [shard.pixels.reshape(-1, len(classes) + 1) for shard in shards]
        facts["pixels"] = _write_array(out / PIXELS, np.concatenate(pixels))
    write_file(out / INDEX, json.dumps(facts, indent=1).encode())
    _tidy(plan)


def _tidy(plan: _Plan) -> None:
    """Remove the files that only an incomplete set needs."""
    forget_notes(plan.order.out, range(plan.shards))
    (plan.order.out / BEGUN).unlink(missing_ok=True)


def _write_array(path: Path, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    return write_file(path, content.getbuffer())


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
        free = f"; {shutil.disk_usage(out).free:,} bytes are free"
    return DiskError(
        f"{clean_name(str(out))}: cannot write: {(error.strerror or str(error)).lower()}{free}",
        hint=f"{disk_hint(error, out, 'choose another disk with --out')}; "
        "then repeat the command to continue",
    )
