"""Forks, parents, their difference."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptui.engine.checkpoint.pointers import CHECKPOINT, checkpoint_name, checkpoint_of, place_of, step_of
from mptui.errors import DiskError, RunDirectoryError
from mptui.events import Forked
from mptui.io.files import open_regular, read_regular
from mptui.io.own_files import checkpoint_files
from mptui.io.written_files import disk_hint
from mptui.runs.store.directory import (
    BEST,
    CHECKPOINTS,
    CHOICES,
    CONFIG,
    LAST,
    SUMMARY,
    VERSION,
    check_version,
    create_run,
    list_runs,
    read_summary,
    write_json,
    write_text,
)
from mptui.text import clean

# Forks a run: another run that begins with one of its checkpoints, and leaves it as it is
# ----------------------------------------------------------------------------------------
# The files of the checkpoint are hard links where the disk has them, since no checkpoint is ever changed;
# else copies. The fork goes on as `mptui resume` of the parent would from this checkpoint.

FORKED_FROM = "forked_from"
"""Entry of the summary of a fork: name and id (`run_id`) of its parent, and the step of the checkpoint."""

_JOURNAL = "events.jsonl"  # as in `store.journal`, which imports numpy
_LONGEST_LINE = 1 << 16

_DATA = "data.json"
_COPIED = (CHOICES, _DATA)
_LARGEST = 1 << 20
_OF_THE_PARENT = ("profile", "changed", "task", "model", "dataset", "device", "precision")


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A checkpoint of a run.

    Attributes:
        path: Its folder; of a copy of a run that has followed the links it may be `last` or `best` itself.
        step: The optimizer step.
        names: What points to it: last, best, undo.
    """

    path: Path
    step: int
    names: tuple[str, ...]

    @property
    def folder_name(self) -> str:
        """Name of its folder in a run."""
        return self.path.name if CHECKPOINT.fullmatch(self.path.name) else checkpoint_name(self.step)

    @property
    def place(self) -> tuple[int, int]:
        """Its position in the run: `place_of` its name."""
        return place_of(self.folder_name)


def kept_checkpoints(run: Path) -> list[KeptCheckpoint]:
    """Return the checkpoints of a run, the newest first.

    Raises:
        DiskError: They can't be read.
    """
    folder = run / CHECKPOINTS
    try:
        entries = list(folder.iterdir()) if folder.is_dir() else []
        named: dict[str, list[str]] = {}
        for name in (LAST, BEST, "undo"):
            if (place := checkpoint_of(folder, name)) is not None:
                named.setdefault(place.name, []).append(name)
    except OSError as error:
        hint = "try again when the disk responds"
        raise DiskError(f"{folder}: {error.strerror or error}", hint=hint) from error
    by_name = (path for path in entries if CHECKPOINT.fullmatch(path.name) or path.name in named)
    folders = (path for path in by_name if path.is_dir() and not path.is_symlink())
    found = [
        KeptCheckpoint(path, step, tuple(named.get(path.name, ())))
        for path in folders
        if (step := step_of(path)) is not None
    ]
    return sorted(found, key=lambda each: each.place, reverse=True)


def find_checkpoint(run: Path, at: str) -> KeptCheckpoint:
    """Find a checkpoint by a name that points to it (last, best) or by its step.

    Raises:
        RunDirectoryError: There is none.
        DiskError: They can't be read.
    """
    kept = kept_checkpoints(run)
    for checkpoint in kept:
        if at in checkpoint.names or at == str(checkpoint.step):
            return checkpoint
    told = ", ".join(_words(each) for each in kept) or "none"
    raise RunDirectoryError(f"{run}: no checkpoint {at}; it has: {told}", hint="name one of these with --at")


def fork_run(
    parent: Path, checkpoint: KeptCheckpoint, name: str | None = None, profile: str | None = None
) -> Path:
    """Make a run that goes on from a checkpoint of another one, and return its directory.

    Args:
        parent: The other run, which may be training.
        checkpoint: One of `kept_checkpoints`.
        name: Name of the new run; None: that of the parent with `-fork`.
        profile: A profile to switch to, as far as a run can switch to it; None: the settings of the parent.

    Raises:
        ConfigError: The name is not valid, or in use; the profile is not valid.
        RunDirectoryError: The checkpoint is gone, or the run is of a later version.
        DiskError: The disk is full or not writable.
    """
    check_version(parent)
    config, named = read_regular(parent / CONFIG, _LARGEST).decode(), {}
    if profile is not None:
        config, name_of_profile = _switched(parent, profile)
        named = {"profile": name_of_profile, "changed": []}
    run = create_run(parent.parent, "", "", name or _free_name(parent))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, run, ignore_errors=True)
        try:
            _fill(run, parent, checkpoint)
            summary = _summary(run, parent, checkpoint) | named
            write_json(run / SUMMARY, summary)
            _begin_journal(run, parent, summary)
            write_text(run / CONFIG, config)  # last, as this makes it a run
        except FileNotFoundError as error:
            words = f"{checkpoint.path}: gone: {parent.name} has saved a newer one"
            raise RunDirectoryError(words, hint="choose a newer checkpoint") from error
        except OSError as error:
            raise DiskError(
                f"{run}: {error.strerror or error}", hint=disk_hint(error, run, "fork to another disk")
            ) from error
        undo.pop_all()
    return run


def _switched(parent: Path, profile: str) -> tuple[str, str]:
    """Return the settings of a run after a switch to a profile, as TOML, and the profile's name."""
    from mptui.config.change import switched, with_chosen
    from mptui.config.keys import read_profile
    from mptui.config.resolve import resolve, to_toml
    from mptui.registry.models import task_of_model
    from mptui.runs.store.choices import chosen_at_start

    now = resolve(str(parent / CONFIG), task=None, flags={}, sets=(), environ={}).config
    task = task_of_model(str(now.model.name)) or read_summary(parent).get("task")
    wanted = resolve(profile, task=task, flags={}, sets=(), environ=os.environ)
    wanted = with_chosen(wanted, chosen_at_start(parent))
    meant = read_profile(parent / CONFIG)[0].meant
    return to_toml(switched(now, wanted.config).config, meant), wanted.profile


def run_id(run: Path) -> str | None:
    """Return what tells a run from others under any name; None before it has trained.

    It comes from the first line of the journal, which has the time of the beginning and never changes.
    """
    try:
        with os.fdopen(open_regular(run / _JOURNAL), "rb") as file:
            line = file.readline(_LONGEST_LINE)
    except OSError:
        return None
    return hashlib.sha256(line).hexdigest()[:16] if line.endswith(b"\n") else None


def parent_of(run: Path, summary: Mapping[str, Any]) -> tuple[Path, int] | None:
    """Return the directory of the parent of a fork, and the step of the fork; None if it is gone.

    A parent that has been renamed is found by its id; forks of earlier versions know its name alone.
    """
    forked = forked_from(summary)
    if forked is None:
        return None
    name, step, known = forked
    parent = run.with_name(name)
    is_parent = (parent / CONFIG).is_file() and (known is None or run_id(parent) in {known, None})
    if not is_parent:
        others = list_runs(run.parent) if known is not None else []
        found = next((other for other in others if run_id(other) == known), None)
        return None if found is None else (found, step)
    return parent, step


def fork_step(runs: Sequence[Path]) -> int | None:
    """Return the step at which the second of two runs was forked from the first; None: it was not."""
    parent = parent_of(runs[1], read_summary(runs[1])) if len(runs) == 2 else None
    return parent[1] if parent is not None and parent[0] == runs[0] else None


def parent_words(run: Path, summary: Mapping[str, Any]) -> str:
    """Return the present name of a fork's parent and the step: `stable at step 40`; "" for other runs."""
    forked, parent = forked_from(summary), parent_of(run, summary)
    if forked is None:
        return ""
    name = f"{forked[0]} (gone)" if parent is None else parent[0].name
    return f"{clean(name)} at step {forked[1]:,}"


def forked_from(summary: Mapping[str, Any]) -> tuple[str, int, str | None] | None:
    """Return name, step and id of the parent as they were at the fork; None if the run is no fork."""
    forked = summary.get(FORKED_FROM)
    if not isinstance(forked, dict):
        return None
    name, step, known = forked.get("run"), forked.get("step"), forked.get("id")
    if not isinstance(name, str) or not isinstance(step, int):
        return None
    if name in {"", ".", ".."} or os.sep in name:  # the name of no run
        return None
    return name, step, known if isinstance(known, str) else None


def _fill(run: Path, parent: Path, checkpoint: KeptCheckpoint) -> None:
    """Link the checkpoint, and that of the best epoch if it is not a later one."""
    folder = run / CHECKPOINTS
    folder.mkdir(mode=0o700)
    best = next((each for each in kept_checkpoints(parent) if BEST in each.names), None)
    names = {LAST: checkpoint}
    if best is not None and best.step <= checkpoint.step:  # that of the last epoch is written after the end's
        names[BEST] = best
    for name, each in names.items():
        place = folder / each.folder_name
        if not place.exists():
            place.mkdir(mode=0o700)
            for file_name in _files_of(each):
                _link(each.path / file_name, place / file_name)
        with contextlib.suppress(OSError):  # a disk without links: a resume takes the newest one
            (folder / name).symlink_to(place.name)
    for name in _COPIED:
        if (parent / name).is_file():
            shutil.copyfile(parent / name, run / name)


def _files_of(checkpoint: KeptCheckpoint) -> frozenset[str]:
    files = checkpoint_files(checkpoint.path)
    if not files:
        checkpoint.path.stat()  # raises if it is gone
        raise RunDirectoryError(
            f"{checkpoint.path}: damaged checkpoint: it has no manifest", hint="choose another one with --at"
        )
    return files


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def _summary(run: Path, parent: Path, checkpoint: KeptCheckpoint) -> dict[str, Any]:
    """Return the first summary of a fork: what it has of its parent, and where from."""
    before = read_summary(parent)
    summary = {name: before[name] for name in _OF_THE_PARENT if name in before}
    if (run / CHECKPOINTS / BEST).exists() and "best" in before:
        summary["best"] = before["best"]
    return summary | {
        "version": VERSION,
        "run": run.name,
        "directory": str(run),
        "status": "stopped",
        "optimizer_steps": checkpoint.step,
        FORKED_FROM: {"run": parent.name, "id": run_id(parent), "step": checkpoint.step},
    }


def _begin_journal(run: Path, parent: Path, summary: Mapping[str, Any]) -> None:
    """Write the first event of a fork, so that its screen knows what it trains before it has begun."""
    from mptui.runs.store.journal import Journal  # needs NumPy, and the list of runs does not

    journal = Journal(run)
    forked = Forked(
        step=summary["optimizer_steps"],
        parent=parent.name,
        profile=summary.get("profile", ""),
        changed=[key for key in summary.get("changed", ()) if isinstance(key, str)],
        model=summary.get("model") or "",
        dataset=str((summary.get("dataset") or {}).get("name") or ""),
    )
    journal.write(forked)
    journal.close()


def _free_name(parent: Path) -> str:
    for number in range(1, 1000):
        name = f"{parent.name}-fork{'' if number == 1 else number}"
        if not os.path.lexists(parent.with_name(name)):
            return name
    raise RunDirectoryError(f"{parent}: it has 999 forks", hint="name this one with --name")


def _words(checkpoint: KeptCheckpoint) -> str:
    names = f" ({', '.join(checkpoint.names)})" if checkpoint.names else ""
    return f"{checkpoint.step}{names}"
