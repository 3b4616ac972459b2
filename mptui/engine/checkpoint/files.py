"""Complete or absent."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from mptui import text as fmt
from mptui.engine.checkpoint.pointers import (
    CHECKPOINT,
    STATE,
    checkpoint_name,
    checkpoint_of,
    place_of,
    target_of,
)
from mptui.engine.ranks.group import full_tensor
from mptui.errors import DiskError, RunDirectoryError
from mptui.events import Alert, CheckpointSaved, Event, Recovered, finite_json
from mptui.io.files import (
    Guard,
    OddFileError,
    is_partial,
    partial_path,
    read_regular,
    sync_folder,
    write_synced,
)
from mptui.io.own_files import MANIFEST, is_checkpoint, remove_checkpoint, remove_partial, set_aside
from mptui.io.safetensors import read_tensors, write_tensors
from mptui.io.written_files import disk_hint, lacks_inodes

# Reads and writes checkpoints: folders that are complete or absent
# -----------------------------------------------------------------
# A checkpoint is written under a temporary name, each file synced to the disk, with a manifest of the
# sha256 of every file and of itself; then one rename puts it in place. Tensors are safetensors, the rest
# JSON: nothing is ever executed or unpickled.
#
#     checkpoints/
#       step-000001200/   model.safetensors optimizer.safetensors … state.json manifest.json
#       last -> step-000001200
#       best -> step-000000900
#       undo -> step-000000700   before the last switch to other settings
#
# `last` and `best` are symbolic links, or on a disk without links files with the checkpoint's name. Any
# other name set by `point` protects its checkpoint from removal as they do.

FORMAT_VERSION = 1
BEST = "best"
"""Name of the best checkpoint."""
UNDO = "undo"
"""Name of the checkpoint before the last switch, for an undo."""
UNDO_BEST = "undo-best"
"""Name of the best checkpoint at that time, if there was one."""
NAMES = ("last", BEST, UNDO, UNDO_BEST)
"""All names that point to a checkpoint."""
_TENSORS = ".safetensors"
_LARGEST_JSON = 64 << 20
_DAMAGED = "damaged-"
_ANY = re.compile(rf"({_DAMAGED})?{CHECKPOINT.pattern}(-\d+)?")
"""The name of a checkpoint's folder, damaged or not."""


@dataclass(slots=True)
class Snapshot:
    """The state of a run between two optimizer steps, in host memory.

    `tensors` maps a group (model, optimizer, average, metrics) to its named tensors; `state` is JSON-ready.
    `ignored` names what lies in its folder and is not of the checkpoint. `bring` returns the tensors that are
    still on their way from a device; None: they are here.
    """

    step: int
    tensors: dict[str, dict[str, torch.Tensor]]
    state: dict[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    bring: Callable[[], dict[str, dict[str, torch.Tensor]]] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for group in self.tensors.values() for t in group.values())

    def arrive(self) -> None:
        """Wait until the tensors are in host memory. Thread-safe."""
        if (bring := self.bring) is not None:
            self.tensors = bring()
            self.bring = None


def host_copy(tensors: Mapping[str, torch.Tensor], *, kept: bool = True) -> dict[str, torch.Tensor]:
    """Return contiguous copies in host memory, independent of the originals.

    Sharded tensors are gathered, one at a time: all ranks take part, and return nothing if not `kept`.
    """
    copies = {}
    for name, tensor in tensors.items():
        all_of_it = full_tensor(tensor.detach())
        if kept:
            copies[name] = all_of_it.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return copies


class NewerVersionError(RunDirectoryError):
    """The checkpoint is intact, but of a newer format that this version can't read."""


def write_checkpoint(folder: Path, snapshot: Snapshot, guard: Guard = contextlib.nullcontext) -> Path:
    """Write `snapshot` into `folder` and return the new checkpoint's path.

    Args:
        folder: The run's `checkpoints` folder. It is created if missing; the run directory is not: if its
            disk is unmounted, that would create another one below the mount point.
        snapshot: The snapshot to write.
        guard: Entered around each change of a name in `folder`; if it raises, no checkpoint is created.

    Raises:
        DiskError: The disk is full, missing or not writable; older checkpoints are untouched.
    """
    try:
        with guard():
            folder.mkdir(mode=0o700, exist_ok=True)
        need_space(folder, snapshot.size_bytes)
        final = free_name(folder, snapshot.step)
        partial = partial_path(final)
        try:
            _write_files(partial, snapshot)
            with guard():
                os.rename(partial, final)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(folder)
    except OSError as error:
        raise cant_save(folder, snapshot.size_bytes, error) from error
    return final


def point(folder: Path, name: str, checkpoint: Path, guard: Guard = contextlib.nullcontext) -> None:
    """Point `folder/name` (last, best) to `checkpoint`, by one atomic rename.

    The pointer is a symbolic link, or on a disk without links a file with the checkpoint's name.

    Raises:
        DiskError: The disk is full or not writable; the pointer is unchanged.
    """
    place, fresh = folder / name, partial_path(folder / name)
    try:
        _write_pointer(fresh, checkpoint.name)
        if os.path.lexists(place) and target_of(folder, name) is None:  # not a pointer: of a person
            set_aside(place, f"{name}.others", guard)
        with guard():
            os.rename(fresh, place)
        sync_folder(folder)
    except Exception as error:
        _unlink(fresh)
        if isinstance(error, OSError):
            raise cant_save(folder, 0, error) from error
        raise


def _write_pointer(path: Path, target: str) -> None:
    try:
        os.symlink(target, path)
    except OSError:
        _unlink(path)  # a network file system may have created it despite the error
        write_synced(path, [target.encode() + b"\n"])


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def unpoint(folder: Path, name: str, guard: Guard = contextlib.nullcontext) -> None:
    """Remove the pointer `folder/name`; what else has this name stays."""
    if _target(folder, name) is not None:
        with guard():
            _unlink(folder / name)


def point_as(folder: Path, name: str, other: str, guard: Guard = contextlib.nullcontext) -> None:
    """Point `folder/name` to the target of `folder/other`, or remove it; raises as `point`."""
    if (target := _target(folder, other)) is None:
        unpoint(folder, name, guard)
    else:
        point(folder, name, target, guard)


def is_after(folder: Path, name: str, step: int) -> bool:
    """Whether `folder/name` points to a checkpoint of a later step than `step`."""
    target = _target(folder, name)
    return target is not None and _place(target.name)[0] > step


def _target(folder: Path, name: str) -> Path | None:
    try:
        return target_of(folder, name)
    except OSError as error:
        raise cant_save(folder, 0, error) from error


def checkpoints(folder: Path, *, with_damaged: bool = False) -> list[Path]:
    """Return all complete checkpoints of a run, oldest first.

    Those of later steps than `last` count as the oldest: the run was rolled back to before them.

    Args:
        folder: The run's `checkpoints` folder.
        with_damaged: Whether to list those that `read_newest` has renamed, too.

    Raises:
        OSError: The folder exists but can't be read.
    """
    try:
        with os.scandir(folder) as entries:
            pattern = _ANY if with_damaged else CHECKPOINT
            found = [folder / e.name for e in entries if pattern.fullmatch(e.name) and e.is_dir()]
    except FileNotFoundError:
        return []
    target = target_of(folder, "last")
    last = None if target is None else _place(target.name)

    def age(path: Path) -> tuple[bool, tuple[int, int]]:
        place = _place(path.name)
        return last is None or place <= last, place

    return sorted(found, key=age)


def read_checkpoint(path: Path, groups: Collection[str] | None = None) -> Snapshot:
    """Read a checkpoint, verifying every byte against its manifest.

    Args:
        path: The checkpoint, or a name that points to it.
        groups: The groups of tensors to read; None: all.

    Raises:
        RunDirectoryError: It is missing, or damaged: it does not match its manifest.
        NewerVersionError: It is intact, but of a newer version.
        DiskError: It can't be read now; it may be intact.
    """
    try:
        return _read(target_of(path.parent, path.name) or path, groups)
    except (FileNotFoundError, NotADirectoryError, OddFileError) as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise _cant_read(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise _damaged(path, str(error)) from error


def _read(path: Path, groups: Collection[str] | None) -> Snapshot:
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    state: dict[str, Any] = {}
    digests = _digests(path)
    for name, digest in digests.items():
        if name.endswith(_TENSORS):
            group = name.removesuffix(_TENSORS)
            if groups is None or group in groups:
                tensors[group] = read_tensors(path / name, digest)
        else:
            content = read_regular(path / name, _LARGEST_JSON, os.O_NOFOLLOW)
            if hashlib.sha256(content).hexdigest() != digest:
                raise _damaged(path, f"{name} differs from what was written")
            state = json.loads(content) if name == STATE else state
    ignored = tuple(sorted({entry.name for entry in os.scandir(path)} - {*digests, MANIFEST}))
    snapshot = Snapshot(int(state["step"]), tensors, state, ignored)
    if CHECKPOINT.fullmatch(path.name) and _place(path.name)[0] != snapshot.step:
        raise _damaged(path, f"it is of step {snapshot.step}")
    return snapshot


def _digests(path: Path) -> dict[str, str]:
    """Return the sha256 of each file from the manifest, which must be intact and name no missing file."""
    with os.scandir(path) as entries:
        there = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    content = read_regular(path / MANIFEST, _LARGEST_JSON, os.O_NOFOLLOW)
    manifest = json.loads(content)
    version, files = manifest["version"], manifest["files"]
    # the manifest's own hash comes first: a corrupted version number is not a newer version
    if _encoded({key: value for key, value in manifest.items() if key != "sha256"}) != content:
        raise _damaged(path, f"{MANIFEST} differs from what was written")
    if version > FORMAT_VERSION:
        raise NewerVersionError(
            f"{path}: written by a newer mptui (checkpoint version {version})",
            hint="use that version of mptui to resume this run",
        )
    if missing := sorted({*files} - there):
        raise _damaged(path, f"{missing[0]} is missing")
    return dict(files)


def _encoded(manifest: dict[str, Any]) -> bytes:
    """Encode a manifest as it is on the disk, with its own hash."""
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": own}, indent=1, sort_keys=True).encode()


def read_newest(folder: Path, guard: Guard = contextlib.nullcontext) -> tuple[Snapshot, list[str]]:
    """Read the newest intact checkpoint; newer ones that are damaged are renamed.

    Those that were renamed before are looked at again, and get their name back if they are intact now.

    Args:
        folder: The run's `checkpoints` folder.
        guard: Entered around each change of a name in it.

    Returns:
        The checkpoint, and the fault of each damaged one.

    Raises:
        RunDirectoryError: There is no intact checkpoint.
        NewerVersionError: The newest is of a newer version.
        DiskError: The newest, or the folder, can't be read now; it is not renamed.
    """
    complaints: list[str] = []
    for path in reversed(_listed(folder, with_damaged=True)):
        try:
            snapshot = read_checkpoint(path)
        except NewerVersionError:
            raise
        except RunDirectoryError as error:
            complaints.append(error.message)
            if CHECKPOINT.fullmatch(path.name):
                with contextlib.suppress(OSError):  # skip it even if the disk can't be written
                    set_aside(path, f"{_DAMAGED}{path.name}", guard)
        else:
            if not CHECKPOINT.fullmatch(path.name):
                with guard():
                    os.rename(path, free_name(folder, snapshot.step))
            return snapshot, complaints
    raise RunDirectoryError(
        "\n".join([f"{folder}: no usable checkpoint", *complaints]),
        hint="start the run again: mptui run --profile RUN/run.toml",
    )


def _listed(folder: Path, *, with_damaged: bool = False) -> list[Path]:
    try:
        return checkpoints(folder, with_damaged=with_damaged)
    except OSError as error:
        raise _cant_read(folder, error) from error


def never_saved(folder: Path) -> bool:
    """Whether a run was never saved, so that it starts from scratch; damaged checkpoints count as saved.

    Raises:
        DiskError: The folder can't be read now.
    """
    return not _listed(folder, with_damaged=True) and not any((folder / name).is_dir() for name in NAMES)


def _place(name: str) -> tuple[int, int]:
    """Return `place_of` a checkpoint, damaged or not."""
    return place_of(name.removeprefix(_DAMAGED).removeprefix("step-").partition("-")[0])


def free_name(folder: Path, step: int) -> Path:
    """Return an unused path: a step can be saved more than once, and no save replaces another."""
    places = (_place(path.name) for path in checkpoints(folder))
    last = max((again for saved, again in places if saved == step), default=None)
    return folder / (checkpoint_name(step) + ("" if last is None else f".{last + 1}"))


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    os.mkdir(folder, 0o700)
    digests = {
        group + _TENSORS: write_tensors(folder / (group + _TENSORS), tensors)
        for group, tensors in snapshot.tensors.items()
        if tensors
    }
    state = json.dumps(finite_json({"step": snapshot.step, **snapshot.state}), indent=1, allow_nan=False)
    digests[STATE] = write_synced(folder / STATE, [state.encode()])
    write_synced(folder / MANIFEST, [_encoded({"version": FORMAT_VERSION, "files": digests})])
    sync_folder(folder)


def _cant_read(path: Path, error: OSError) -> DiskError:
    return DiskError(
        f"{path}: cannot be read: {error.strerror or error}",
        hint="nothing was changed; try again when the disk responds and the files are readable",
    )


def _damaged(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: damaged checkpoint: {why}", hint="an older checkpoint is used if there is one"
    )


# Checks the space for checkpoints, and builds the error of a save that failed
# ----------------------------------------------------------------------------

FEW, ENOUGH = 3, 4
"""Further checkpoints that fit on the disk: fewer than the first begin an alert, the second ends it."""

DISK = "disk"
"""Code of the alert."""


def need_space(folder: Path, size: int) -> None:
    """Check that `size` bytes and a small margin are free.

    Raises:
        OSError: They, or a name for a file, are not free (ENOSPC), or the folder can't be read.
    """
    if lacks_inodes(folder) or shutil.disk_usage(folder).free < size * 1.05 + (1 << 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cant_save(folder: Path, size: int, error: OSError, otherwise: str = "") -> DiskError:
    """Build the error of a failed save: its cause, the space needed, the space free.

    Args:
        folder: Where it should have gone.
        size: Its bytes; 0: unknown.
        error: The cause.
        otherwise: What helps beside a remedy of the cause.
    """
    room = _room(folder, size)
    hint = disk_hint(error, folder, otherwise)
    with contextlib.suppress(OSError):
        hint += "; the checkpoints before it are intact" if checkpoints(folder) else ""
    if isinstance(error, FileNotFoundError):
        hint = "the disk or the run directory is missing: mount it again, or move it back"
    elif isinstance(error, TimeoutError):
        room = ""
        hint = (
            "end the process that keeps it locked (it may be suspended), or check the connection of the disk"
        )
    cause = (error.strerror or str(error)).lower()
    return DiskError(f"cannot save: {cause}{room}: {folder}", hint=hint)


def _room(folder: Path, size: int) -> str:
    parts = [f"{fmt.size(max(size, 1 << 20))} are needed"] if size else []
    with contextlib.suppress(OSError):
        parts.append(f"{fmt.size(shutil.disk_usage(folder).free)} are free")
    return f"; {' and '.join(parts)}" if parts else ""


class DiskWatch:
    """Tells when the disk of a run is nearly full, and when it has room again.

    Args:
        folder: A folder on it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._size = 0
        self._scarce = False

    def handle(self, event: Event) -> None:
        """Take the size of the last checkpoint; a recovery of the disk has ended the alert."""
        if isinstance(event, CheckpointSaved):
            self._size = event.size_bytes
        elif isinstance(event, Recovered) and event.problem == DISK:
            self._scarce = False

    def check(self, emit: Callable[[Event], None], step: int) -> None:
        """Emit an alert or its end; an unreadable folder is neither."""
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(self._folder).free
            scarce = free < (ENOUGH if self._scarce else FEW) * self._size
            if scarce != self._scarce:
                self._scarce = scarce
                room = f"{fmt.size(free)} are free, a checkpoint has {fmt.size(self._size)}"
                message = f"the disk is nearly full: {room}" if scarce else f"the disk has room again: {room}"
                emit(Alert(step=step, code=DISK, message=message, over=not scarce))


# Reads the checkpoint of a name (last, best) without changing anything: its run may be training
# ----------------------------------------------------------------------------------------------


def read_named(folder: Path, name: str, groups: Collection[str]) -> Snapshot | None:
    """Read some groups of tensors of the checkpoint `folder/name`; None if nothing has this name.

    Args:
        folder: The run's `checkpoints` folder.
        name: The name: last, best.
        groups: The groups of tensors to read.

    Raises:
        RunDirectoryError: The checkpoint is damaged, or of a newer version.
        DiskError: It can't be read now.
    """
    while (path := _named_place(folder, name)) is not None:
        try:
            return read_checkpoint(path, groups)
        except RunDirectoryError:
            if _named_place(folder, name) == path:
                raise
            # the run has saved another one, and removed this one while it was read
    return None


def _named_place(folder: Path, name: str) -> Path | None:
    try:
        return checkpoint_of(folder, name)
    except OSError as error:
        raise DiskError(
            f"{folder / name}: cannot be read: {error.strerror or error}",
            hint="try again when the disk responds and the files are readable",
        ) from error


# Keeps the folder of checkpoints in order: removes those that nobody needs, adopts what a copy brought
# -----------------------------------------------------------------------------------------------------


def keep_only(folder: Path, count: int | Literal["all"], guard: Guard = contextlib.nullcontext) -> None:
    """Remove all but the newest `count` checkpoints and those that a name (last, best) points to.

    Of `all` none is removed. Partial files of killed processes are removed, too. Errors are ignored: the next
    call retries.
    """
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        if count != "all":
            whole = [path for path in checkpoints(folder) if is_checkpoint(path)]
            kept = {target_of(folder, name) for name in names if not name.startswith(".")} | {*whole[-count:]}
            for path in whole:
                if path not in kept:
                    remove_checkpoint(path, guard)
        for name in filter(is_partial, names):
            with guard():
                remove_partial(folder / name)


def adopt(folder: Path, guard: Guard = contextlib.nullcontext) -> None:
    """Give checkpoints that are folders named last or best, in place of links, the names of their steps.

    Copies of a run that follow links (rsync -L, object stores, zip) bring such folders. Others leave links
    out: without one, the best checkpoint is known by its state, and would be removed as one of many.

    Raises:
        RunDirectoryError: Such a folder is not an intact checkpoint.
        DiskError: It can't be read, or the folder can't be written.
    """
    for name in NAMES:
        place = folder / name
        if not place.is_dir() or place.is_symlink():
            continue
        try:
            step = read_checkpoint(place, ()).step
        except NewerVersionError:
            raise
        except RunDirectoryError as error:
            raise RunDirectoryError(
                f"{error.message}; it is a folder in place of a link to a checkpoint",
                hint="copy it again; or move it out of the run, to go on from another checkpoint",
            ) from error
        try:
            path = free_name(folder, step)
            with guard():
                os.rename(place, path)
        except OSError as error:
            raise cant_save(folder, 0, error) from error
        point(folder, name, path, guard)
    if not os.path.lexists(folder / BEST) and (best := _best_of(folder)) is not None:
        point(folder, BEST, best, guard)


def _best_of(folder: Path) -> Path | None:
    """Return the checkpoint of the best epoch that the newest one knows of; None: it isn't there."""
    paths = checkpoints(folder)
    newest = next(filter(None, map(_state, reversed(paths))), {})
    epoch = newest.get("best", {}).get("epoch")
    return next((path for path in paths if _is_of_best(_state(path), epoch)), None) if epoch else None


def _is_of_best(state: dict[str, Any], epoch: int) -> bool:
    """Whether a state was taken after the validation of the best epoch, before any further step."""
    best, cursor = state.get("best", {}), state.get("cursor", {})
    if (best.get("epoch"), best.get("epochs_since")) != (epoch, 0):
        return False
    return cursor.get("sample") == 0 or bool(cursor.get("measured_at") == state["step"])


def _state(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint; empty if it can't be read."""
    try:
        return read_checkpoint(path, ()).state
    except (RunDirectoryError, DiskError):
        return {}
