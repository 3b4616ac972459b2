"""Forks, parents, their difference."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mptui import text as fmt
from mptui.engine.checkpoint.pointers import CHECKPOINT, checkpoint_name, checkpoint_of, place_of, step_of
from mptui.errors import DiskError, RunDirectoryError
from mptui.io.files import open_regular, read_regular
from mptui.io.own_files import checkpoint_files
from mptui.io.written_files import disk_hint
from mptui.runs.store import journal
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
from mptui.runs.store.index import read_run
from mptui.runs.view.history import CAPACITY, Floats, History
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import DEVICE, LOSS, MEMORY, TRAIN, VALIDATION
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
_OF_THE_PARENT = ("task", "model", "dataset", "device", "precision")


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
    found = [
        KeptCheckpoint(path, step, tuple(named.get(path.name, ())))
        for path in entries
        if (CHECKPOINT.fullmatch(path.name) or path.name in named)
        and path.is_dir()
        and not path.is_symlink()
        and (step := step_of(path)) is not None
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
    config = (
        read_regular(parent / CONFIG, _LARGEST).decode() if profile is None else _switched(parent, profile)
    )
    run = create_run(parent.parent, "", "", name or _free_name(parent))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, run, ignore_errors=True)
        try:
            _fill(run, parent, checkpoint)
            write_json(run / SUMMARY, _summary(run, parent, checkpoint))
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


def _switched(parent: Path, profile: str) -> str:
    """Return the settings of a run after a switch to a profile, as TOML."""
    from mptui.config.change import switched
    from mptui.config.resolve import resolve, to_toml
    from mptui.registry.models import task_of_model

    now = resolve(str(parent / CONFIG), task=None, flags={}, sets=(), environ={}).config
    task = task_of_model(str(now.model.name)) or read_summary(parent).get("task")
    wanted = resolve(profile, task=task, flags={}, sets=(), environ=os.environ).config
    return to_toml(switched(now, wanted).config)


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
    if not (parent / CONFIG).is_file() or (known is not None and run_id(parent) not in {known, None}):
        others = list_runs(run.parent) if known is not None else []
        found = next((other for other in others if run_id(other) == known), None)
        return None if found is None else (found, step)
    return parent, step


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
    if not isinstance(name, str) or not isinstance(step, int) or name in {"", ".", ".."} or os.sep in name:
        return None
    return name, step, known if isinstance(known, str) else None


def _fill(run: Path, parent: Path, checkpoint: KeptCheckpoint) -> None:
    """Link the checkpoint, and that of the best epoch if it is not a later one."""
    folder = run / CHECKPOINTS
    folder.mkdir(mode=0o700)
    best = next((each for each in kept_checkpoints(parent) if BEST in each.names), None)
    names = {LAST: checkpoint}
    if best is not None and best.place <= checkpoint.place:
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


def _free_name(parent: Path) -> str:
    for number in range(1, 1000):
        name = f"{parent.name}-fork{'' if number == 1 else number}"
        if not os.path.lexists(parent.with_name(name)):
            return name
    raise RunDirectoryError(f"{parent}: it has 999 forks", hint="name this one with --name")


def _words(checkpoint: KeptCheckpoint) -> str:
    names = f" ({', '.join(checkpoint.names)})" if checkpoint.names else ""
    return f"{checkpoint.step}{names}"


# The difference between a run and its fork: whose steps are faster, whose loss is lower, and by how much
# -------------------------------------------------------------------------------------------------------
# Nothing is claimed before there are `STEPS` steps with `VALUES` values of both. Speeds are even if their
# middle halves overlap, losses if zero is among the middle 80 % of their differences.

STEPS = 20
"""Steps from the fork on before anything is claimed."""

VALUES = 8
"""Values to compare before anything is claimed: a fast run reports many steps as one value."""

_PLACES = 64
"""Largest number of places at which two curves are compared, whatever their length."""


@dataclass(frozen=True, slots=True)
class ForkDifference:
    """How a fork differs from its parent.

    Attributes:
        names: The precisions of fork and parent; "fork" and "its parent" if they are the same.
        ratio: Images a second of the fork, divided by those of its parent; 1: even; None: not known.
        loss: Its training loss less that of its parent at equal steps; 0: even; None: not known.
        step: The last step that both have.
    """

    names: tuple[str, str]
    ratio: float | None
    loss: float | None
    step: float

    @property
    def sentence(self) -> str:
        """All that is known: `bf16 is 1.9x ahead of fp32, loss +0.002 at step 3,120`; "" if nothing is."""
        step = f" at step {fmt.count(self.step)}" if self.loss is not None else ""
        return self._words(f" of {self.names[1]}", f" with {self.names[1]}") + step

    @property
    def title(self) -> str:
        """The same for a line with other things: `bf16 is 1.9x ahead, loss +0.002`."""
        return self._words("", "")

    @property
    def short(self) -> str:
        """The same for a narrow line: `1.9x ahead, loss +0.002`."""
        return ", ".join(word for word in (self._speed("", ""), self._loss()) if word)

    def _words(self, of: str, beside: str) -> str:
        words = ", ".join(word for word in (self._speed(of, beside), self._loss()) if word)
        joined = " is " if self.ratio not in {None, 1.0} else ": "
        return f"{self.names[0]}{joined}{words}" if words else ""

    def _speed(self, of: str, beside: str) -> str:
        if self.ratio is None:
            return ""
        if self.ratio == 1:
            return f"speed even{beside}"
        far = max(self.ratio, 1 / self.ratio)
        times = f"{far:.1f}x" if far >= 1.1 else f"{far:.2f}x"
        return f"{times} ahead{of}" if self.ratio > 1 else f"{times} behind{of.removeprefix(' of')}"

    def _loss(self) -> str:
        if self.loss is None:
            return ""
        return f"loss {self.loss:+.2g}" if self.loss else "loss even"


def difference(parent: RunView, fork: RunView, since: int) -> ForkDifference:
    """Compare a fork with its parent from the step of the fork on."""
    differ = parent.precision != fork.precision
    names = (fork.precision, parent.precision) if differ else ("fork", "its parent")
    speeds, losses = (
        (parent.histories.get(chart, {}).get(label), fork.histories.get(chart, {}).get(label))
        for chart, label in (("speed", "images/s"), (LOSS, TRAIN))
    )
    step = min((each.end_x for each in losses if each is not None), default=0.0)
    return ForkDifference(names, _ratio(*speeds, since), _gap(*losses, since), step)


def _ratio(parent: History | None, fork: History | None, since: int) -> float | None:
    """Compare speeds over the steps that both have trained, else with those of the parent before the fork."""
    if parent is None or fork is None or fork.end_x - since < STEPS:
        return None
    end = min(parent.end_x, fork.end_x)
    mine, its = (_values(each, since + 1, end) for each in (fork, parent))
    if min(mine.size, its.size) < VALUES:
        mine = _values(fork, since + 1, fork.end_x)
        its = _values(parent, 2 * since - fork.end_x, since)
    if min(mine.size, its.size) < VALUES:
        return None
    (low, middle, high), (its_low, its_middle, its_high) = (
        np.percentile(each, (25, 50, 75)).tolist() for each in (mine, its)
    )
    if low <= its_high and its_low <= high:
        return 1.0
    return float(middle / its_middle) if its_middle > 0 and middle > 0 else None


def _gap(parent: History | None, fork: History | None, since: int) -> float | None:
    """Compare losses at the same places, over the later half of the steps that both have."""
    if parent is None or fork is None:
        return None
    end = min(parent.end_x, fork.end_x)
    fewer = min(_values(each, since + 1, end, CAPACITY).size for each in (parent, fork))
    places = min(_PLACES, fewer // 2)  # each with values of both, which report at different steps
    if end - since < STEPS or places < VALUES:
        return None
    mine, its = (each.columns(since + 1, end, places).mean for each in (fork, parent))
    gaps = (mine - its)[-max(places // 2, VALUES) :]
    gaps = gaps[np.isfinite(gaps)]
    if gaps.size < VALUES:
        return None
    low, middle, high = np.percentile(gaps, (10, 50, 90)).tolist()
    return 0.0 if low <= 0 <= high else float(middle)


def _values(history: History, first: float, last: float, places: int = _PLACES) -> Floats:
    """Return the means of a history at up to so many places from step `first` to `last`."""
    means = history.columns(first, last, places).mean if last >= first else np.zeros(0)
    return means[np.isfinite(means)]


# The parent of a fork, for the live screen of the fork: its curves, and what differs
# -----------------------------------------------------------------------------------

Curves = dict[str, dict[str, History]]
"""Histories by chart and label, as `RunView.histories` has them."""


@dataclass(frozen=True, slots=True)
class ForkParent:
    """The parent of a fork as it is now.

    Attributes:
        step: The step of the fork.
        name: Its present name; "": it is gone.
        view: Its view; None: it has no readable journal.
        curves: Its curves from the step of the fork on; those of the device are left out.
    """

    step: int
    name: str = ""
    view: RunView | None = None
    curves: Curves = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForkWords:
    """What a fork says of its parent: in full, abbreviated, and whether it is a comparison."""

    long: str
    short: str
    compares: bool = False


class ParentReader:
    """Reads the parent of a fork, again only after its journal has grown. Not thread-safe."""

    def __init__(self) -> None:
        self._runs = RunCurves()
        self._last: ForkParent | None = None

    def read(self, fork: Path) -> ForkParent | None:
        """Return the parent of the run in a directory; None if it is no fork."""
        summary = read_summary(fork)
        forked, parent = forked_from(summary), parent_of(fork, summary)
        if forked is None:
            return None
        if parent is None:
            return ForkParent(forked[1])
        path, step = parent
        view = self._runs.read([path]).get(path)
        if self._last is None or self._last.view is not view or self._last.name != path.name:
            self._last = ForkParent(step, path.name, view, {} if view is None else _curves(view, step))
        return self._last


def fork_words(parent: ForkParent, fork: RunView) -> ForkWords:
    """Compare a fork with its parent, or say why not."""
    if not parent.name:
        return ForkWords("its parent is gone", "parent gone")
    if parent.view is None:
        return ForkWords("its parent has no journal", "no journal")
    if fork.step < parent.step + STEPS:
        words = f"compares from step {parent.step + STEPS:,}"
        return ForkWords(words, words)
    found = difference(parent.view, fork, parent.step)
    if not found.title:
        return ForkWords("too few values to compare", "too few values")
    return ForkWords(found.title, found.short, compares=True)


def _curves(view: RunView, step: int) -> Curves:
    return {
        chart: {label: history.since(step) for label, history in histories.items() if history.end_x > step}
        for chart, histories in view.histories.items()
        if chart not in {DEVICE, MEMORY}
    }


# The curves of several runs, to draw over each other
# ---------------------------------------------------

MOST = 8
"""Largest number of runs that are drawn over each other."""

Curve = tuple[str, str]
"""A chart and a label in it, as `RunView.histories` has them."""


class RunCurves:
    """Views of runs, read again only after their journals have grown. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, RunView]] = {}

    def read(self, runs: Sequence[Path]) -> dict[Path, RunView]:
        """Return the view of each run that has a readable journal."""
        known, self._known = self._known, {}
        for run in runs:
            try:
                size = os.stat(run / journal.NAME).st_size  # noqa: PTH116 - as the journal's writer does
                before = known.get(run)
                self._known[run] = (
                    before if before is not None and before[0] == size else (size, read_run(run))
                )
            except OSError:
                continue
        return {run: view for run, (_, view) in self._known.items()}


def curves_of(views: Sequence[RunView]) -> list[Curve]:
    """Return the curves that any of the views has: losses first, then metrics of the validation."""
    found = {
        (chart, label): None
        for view in views
        for chart, histories in view.histories.items()
        for label, history in histories.items()
        if history.version
    }

    def place(curve: Curve) -> tuple[bool, bool]:
        chart, label = curve
        return chart != LOSS, not label.endswith((TRAIN, VALIDATION))

    return sorted(found, key=place)


def histories_of(views: Mapping[Path, RunView], curve: Curve) -> dict[Path, History]:
    """Return this curve of each run that has it."""
    chart, label = curve
    found = {run: view.histories.get(chart, {}).get(label) for run, view in views.items()}
    return {run: history for run, history in found.items() if history is not None and history.version}
