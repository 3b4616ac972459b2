"""Checkpoints: folders that are whole or not there at all.

A checkpoint is written under a temporary name, each file synced to the disk, with a manifest of the sha256 of
every file and of itself; then one rename puts it in place. Tensors are safetensors, the rest JSON: nothing
in it is ever executed or unpickled.

    checkpoints/
      step-000001200/   model.safetensors optimizer.safetensors … state.json manifest.json
      last -> step-000001200
      best -> step-000000900
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from mptui.codec import finite_json
from mptui.engine.files import sync_folder, write_synced
from mptui.engine.tensor_file import write_tensors
from mptui.errors import DiskError, RunDirectoryError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-\d{9,}(\.\d+)?")


@dataclass(slots=True)
class Snapshot:
    """The state of a run between two optimizer steps, in host memory.

    `tensors` maps a group (model, optimizer, average, metrics) to its named tensors; `state` is JSON-ready.
    """

    step: int
    tensors: dict[str, dict[str, torch.Tensor]]
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for group in self.tensors.values() for t in group.values())


def host_copy(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous copies in host memory, which training no longer touches."""
    return {
        name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


class NewerVersionError(RunDirectoryError):
    """Written whole by a later mptui: nothing is wrong with it, and this one can't read it."""


def write_checkpoint(folder: Path, snapshot: Snapshot, check: Callable[[], None] = lambda: None) -> Path:
    """Write `snapshot` into `folder` and return the new checkpoint's path.

    Args:
        folder: The run's `checkpoints` folder.
        snapshot: What to write.
        check: Called once all is written, before it is put in place; after what it raises there is nothing.

    Raises:
        DiskError: The disk is full or not writable; older checkpoints are untouched.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        need_space(folder, snapshot.size_bytes)
        final = _free_name(folder, snapshot.step)
        partial = folder / f".{final.name}.{os.getpid()}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _write_files(partial, snapshot)
            check()
            os.rename(partial, final)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(folder)
    except OSError as error:
        raise cant_save(folder, snapshot.size_bytes, error) from error
    return final


def point(folder: Path, name: str, checkpoint: Path) -> None:
    """Let `folder/name` (last, best) lead to `checkpoint`, by one atomic rename.

    Raises:
        DiskError: The disk is full or not writable; the name leads where it led before.
    """
    fresh = folder / f".{name}.{os.getpid()}.partial"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh)
        os.symlink(checkpoint.name, fresh)
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            _remove(folder / name)  # a copy of the run has the checkpoint itself in place of the link
        os.rename(fresh, folder / name)
        sync_folder(folder)
    except OSError as error:
        raise cant_save(folder, 0, error) from error


def keep_only(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints and the ones that last and best lead to.

    What a process left half written when it was killed goes too. What can't be removed is left to the next
    time: it only takes room.
    """
    with contextlib.suppress(OSError):
        kept = {(folder / name).resolve().name for name in ("last", "best") if (folder / name).exists()}
        whole = checkpoints(folder)
        kept |= {path.name for path in whole[-count:]}
        for path in [*whole, *folder.glob(".*.partial")]:
            if path.is_symlink():
                os.unlink(path)
            elif path.name not in kept:
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint: out of the way by one rename first, so that none is ever half there."""
    aside = path.with_name(f".{path.name}.old.partial")
    if not path.name.startswith("."):
        os.rename(path, aside)
        path = aside
    shutil.rmtree(path, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """All whole checkpoints of a run, oldest first.

    Those of later steps than `last` count as the oldest: the run has gone back behind them since.
    """
    if not folder.is_dir():
        return []
    last = _leads_to(folder / "last")

    def age(path: Path) -> tuple[bool, tuple[int, int]]:
        place = _place(path.name)
        return last is None or place <= last, place

    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()), key=age)


def _leads_to(link: Path) -> tuple[int, int] | None:
    """The place of the checkpoint that a link names, be it gone; None where that is unknown."""
    try:
        name = os.readlink(link)
    except OSError:
        return None
    return _place(name) if _NAME.fullmatch(name) else None


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint whole, checking every byte against its manifest.

    Raises:
        RunDirectoryError: It is missing or damaged.
        NewerVersionError: It is whole, and of a newer version.
    """
    try:
        digests = _digests(path)
        for name, digest in digests.items():
            if _sha256(path / name) != digest:
                raise _damaged(path, f"{name} is not what was written")
        state = json.loads((path / "state.json").read_text())
        tensors = {p.stem: load_file(p) for p in path.glob("*.safetensors")}
        snapshot = Snapshot(int(state["step"]), tensors, state)
        real = path.resolve().name
        if _NAME.fullmatch(real) and _place(real)[0] != snapshot.step:
            raise _damaged(path, f"it is of step {snapshot.step}")
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        SafetensorError,
        RecursionError,
    ) as error:
        raise _damaged(path, str(error)) from error
    return snapshot


def _digests(path: Path) -> dict[str, str]:
    """The sha256 of each file, by a manifest that is itself whole and names the files that are there."""
    content = (path / MANIFEST).read_bytes()
    manifest = json.loads(content)
    version, files = manifest["version"], manifest["files"]
    # its own hash comes first: a version that the disk has garbled is no later mptui's
    if _encoded({key: value for key, value in manifest.items() if key != "sha256"}) != content:
        raise _damaged(path, f"{MANIFEST} is not what was written")
    if version > FORMAT_VERSION:
        raise NewerVersionError(
            f"{path}: written by a newer mptui (checkpoint version {version})",
            hint="use that version of mptui to go on with this run",
        )
    there = {entry.name for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)}
    if {*files, MANIFEST} != there:
        raise _damaged(path, "its files are not those of its manifest")
    return dict(files)


def _encoded(manifest: dict[str, Any]) -> bytes:
    """A manifest as it is on the disk, its own hash in it."""
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    return json.dumps({**manifest, "sha256": own}, indent=1, sort_keys=True).encode()


def read_newest(folder: Path) -> tuple[Snapshot, list[str]]:
    """The newest undamaged checkpoint, and what was wrong with each newer one, which is set aside.

    Raises:
        RunDirectoryError: There is none.
        NewerVersionError: The newest is of a newer version.
    """
    complaints: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return read_checkpoint(path), complaints
        except NewerVersionError:
            raise
        except RunDirectoryError as error:
            complaints.append(error.message)
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(OSError):  # a disk that can't be written: it is passed over all the same
                path.rename(aside)
    raise RunDirectoryError(
        "\n".join([f"{folder}: no checkpoint to go on from", *complaints]),
        hint="start the run anew: mptui run --profile RUN/run.toml",
    )


def never_saved(folder: Path) -> bool:
    """Whether a run was never saved, so that it goes on from its start; a damaged checkpoint is one, too."""
    return not checkpoints(folder) and not any(folder.glob("damaged-*"))


def _place(name: str) -> tuple[int, int]:
    """Where a checkpoint stands in the order of a run: its step, and which of that step it is, from 0."""
    step, _, again = name.removeprefix("step-").partition(".")
    return int(step), int(again or 0)


def _free_name(folder: Path, step: int) -> Path:
    """A step can be saved more than once (its epoch ends, then it is validated): none replaces another."""
    places = (_place(path.name) for path in checkpoints(folder))
    last = max((again for saved, again in places if saved == step), default=None)
    return folder / (f"step-{step:09d}" + ("" if last is None else f".{last + 1}"))


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    os.mkdir(folder, 0o700)
    digests = {
        f"{group}.safetensors": write_tensors(folder / f"{group}.safetensors", tensors)
        for group, tensors in snapshot.tensors.items()
        if tensors
    }
    state = json.dumps(finite_json({"step": snapshot.step, **snapshot.state}), indent=1, allow_nan=False)
    digests["state.json"] = write_synced(folder / "state.json", [state.encode()])
    write_synced(folder / MANIFEST, [_encoded({"version": FORMAT_VERSION, "files": digests})])
    sync_folder(folder)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def need_space(folder: Path, size: int) -> None:
    """Raise ENOSPC where `size` bytes and a little more are not free.

    Raises:
        OSError: They are not, or the folder can't be looked at.
    """
    if shutil.disk_usage(folder).free < size * 1.05 + (1 << 20):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cant_save(folder: Path, size: int, error: OSError) -> DiskError:
    """What to tell of a save of `size` bytes that failed: the cause, the room needed, the room there is."""
    room = f"; {size:,} bytes are needed" if size else ""
    with contextlib.suppress(OSError):
        room += f"{' and' if size else ';'} {shutil.disk_usage(folder).free:,} are free"
    return DiskError(
        f"{folder}: cannot save: {(error.strerror or str(error)).lower()}{room}",
        hint="make room, or choose another disk with --runs-dir; the older checkpoint is whole",
    )


def _damaged(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: damaged checkpoint: {why}", hint="an older checkpoint is used if there is one"
    )
