"""Checkpoints: folders that are whole or not there at all.

A checkpoint is written under a temporary name, each file synced to the disk, with a manifest of the sha256 of
every file; then one rename puts it in place. Tensors are safetensors, the rest JSON: nothing in it is ever
executed or unpickled.

    checkpoints/
      step-000001200/   model.safetensors optimizer.safetensors … state.json manifest.json
      last -> step-000001200
      best -> step-000000900
"""

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mptui.errors import DiskError, RunDirectoryError
from mptui.events import finite_json

FORMAT_VERSION = 1
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


def write_checkpoint(folder: Path, snapshot: Snapshot) -> Path:
    """Write `snapshot` into `folder` and return the new checkpoint's path.

    Raises:
        DiskError: The disk is full or not writable; older checkpoints are untouched.
    """
    final = _free_name(folder, snapshot.step)
    partial = folder / f".{final.name}.{os.getpid()}.partial"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _need_space(folder, snapshot.size_bytes)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        _write_files(partial, snapshot)
        partial.rename(final)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise _disk_error(error, folder) from error
    return final


def point(folder: Path, name: str, checkpoint: Path) -> None:
    """Let `folder/name` (last, best) lead to `checkpoint`, by one atomic rename."""
    fresh = folder / f".{name}.{os.getpid()}.partial"
    try:
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(checkpoint.name)
        fresh.rename(folder / name)
        _sync(folder)
    except OSError as error:
        raise _disk_error(error, folder) from error


def keep_only(folder: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints and the ones that last and best lead to.

    What a process left half written when it was killed goes too.
    """
    kept = {(folder / name).resolve().name for name in ("last", "best") if (folder / name).exists()}
    whole = checkpoints(folder)
    kept |= {path.name for path in whole[-count:]}
    for path in [*whole, *folder.glob(".*.partial")]:
        if path.is_symlink():
            path.unlink(missing_ok=True)
        elif path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def checkpoints(folder: Path) -> list[Path]:
    """All whole checkpoints of a run, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if _NAME.fullmatch(p.name) and p.is_dir()), key=_place)


def read_checkpoint(path: Path) -> Snapshot:
    """Read a checkpoint whole, checking every byte against its manifest.

    Raises:
        RunDirectoryError: It is missing, damaged, or of a newer version.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["version"] > FORMAT_VERSION:
            raise RunDirectoryError(
                f"{path}: written by a newer mptui (checkpoint version {manifest['version']})",
                hint="use that version of mptui to go on with this run",
            )
        if manifest["version"] < 1:
            raise _damaged(path, f"there is no version {manifest['version']}")
        for name, digest in manifest["files"].items():
            if _sha256(path / name) != digest:
                raise _damaged(path, f"{name} is not what was written")
        if set(manifest["files"]) != {p.name for p in path.iterdir()} - {"manifest.json"}:
            raise _damaged(path, "its files are not those of its manifest")
        state = json.loads((path / "state.json").read_text())
        tensors = {p.stem: load_file(p) for p in path.glob("*.safetensors")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise _damaged(path, str(error)) from error
    return Snapshot(int(state["step"]), tensors, state)


def read_newest(folder: Path) -> tuple[Snapshot, list[str]]:
    """The newest undamaged checkpoint, and what was wrong with each newer one, which is set aside.

    Raises:
        RunDirectoryError: There is none.
    """
    complaints: list[str] = []
    for path in reversed(checkpoints(folder)):
        try:
            return read_checkpoint(path), complaints
        except RunDirectoryError as error:
            if "newer mptui" in error.message:
                raise
            complaints.append(error.message)
            aside = path.with_name(f"damaged-{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    raise RunDirectoryError(
        "\n".join([f"{folder}: no checkpoint to go on from", *complaints]),
        hint="start the run anew: mptui run --profile RUN/run.toml",
    )


def _place(checkpoint: Path) -> tuple[int, int]:
    """Where a checkpoint stands in the order of a run: its step, and which of that step it is, from 0."""
    step, _, again = checkpoint.name.removeprefix("step-").partition(".")
    return int(step), int(again or 0)


def _free_name(folder: Path, step: int) -> Path:
    """A step can be saved more than once (its epoch ends, then it is validated): none replaces another."""
    last = max((again for saved, again in map(_place, checkpoints(folder)) if saved == step), default=None)
    return folder / (f"step-{step:09d}" + ("" if last is None else f".{last + 1}"))


def _write_files(folder: Path, snapshot: Snapshot) -> None:
    for group, tensors in snapshot.tensors.items():
        if tensors:
            save_file(tensors, folder / f"{group}.safetensors")
    state = {"step": snapshot.step, **snapshot.state}
    (folder / "state.json").write_text(json.dumps(finite_json(state), indent=1, allow_nan=False))
    files = sorted(folder.iterdir())
    manifest = {"version": FORMAT_VERSION, "files": {p.name: _sha256(p) for p in files}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    for path in [*files, folder / "manifest.json", folder]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        _sync(path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _need_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size * 1.05 + (1 << 20):
        raise OSError(errno.ENOSPC, f"a checkpoint needs {size:,} bytes and {free:,} are free")


def _disk_error(error: Exception, folder: Path) -> DiskError:
    return DiskError(
        f"{folder}: cannot save: {error}",
        hint="make room, or choose another disk with --runs-dir; the older checkpoint is whole",
    )


def _damaged(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path}: damaged checkpoint: {why}", hint="an older checkpoint is used if there is one"
    )
