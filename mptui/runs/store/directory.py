"""Its name, its files, who may write."""

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli

from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.events import SCHEMA_VERSION, Event, finite_json
from mptui.io.files import Guard, is_partial, read_regular, replace_file
from mptui.io.own_files import is_run, make_run
from mptui.io.records import as_number
from mptui.io.written_files import disk_hint
from mptui.runs.store.lock import NAME as LOCK
from mptui.runs.store.lock import PRIVATE, Claim, is_held
from mptui.runs.view.words import cleaned_json
from mptui.text import clean, shell_word, some

if TYPE_CHECKING:
    from mptui.runs.view.specs import EventSpec

# The run directory: its name and its files
# -----------------------------------------
# runs/20261120-101500-fast-resnet50/
#   run.toml  environment.json  data.json  events.jsonl  index.json  summary.json  lock.json  checkpoints/

VERSION = 1
"""Version of summary, environment, choices and changes; `run.toml` and journal have their own."""

SUMMARY = "summary.json"
CONFIG = "run.toml"
CHOICES = "choices.json"
"""The values chosen for `auto` settings, with reasons, and where the others came from as the run began."""
CHANGES = "changes.json"
"""What people have switched since the run's command was given, and whether it is paused."""
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"
BEST, LAST = "best", "last"
"""Names of checkpoints."""
RANKS = "ranks"
"""Folder with the output of each rank of a run in several processes, and the lock of their launcher."""
_OF_A_RUN = (CONFIG, f"{RANKS}/{LOCK}")
"""Files that tell a run: its settings, or the lock of a launcher whose ranks have not started yet."""
_FOLDERS = frozenset({CHECKPOINTS, RANKS, "predictions", "samples", "tensorboard"})
LARGEST = 64 << 20
"""Largest size of a file of a run, except for its journal."""
_TAIL = 1 << 16
"""Bytes of the journal in which the last step of a run is: some hundred events."""
_SUFFIXES = frozenset({".json", ".jsonl", ".toml", ".txt", ".log", ".csv"})
CRASHED = "crashed"
"""Status of a run that no process trains and that has no recorded end."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("run", "directory", "status", "profile"), str),
    **dict.fromkeys(("task", "model", "device"), (str, type(None))),
    **dict.fromkeys(
        (
            "version",
            "exit_code",
            "ranks",
            "nodes",
            "epochs",
            "optimizer_steps",
            "samples_seen",
            "skipped_steps",
        ),
        int,
    ),
    **dict.fromkeys(("dataset", "precision", "final", "best", "time", "memory", "error"), dict),
    **dict.fromkeys(("recoveries", "warnings", "loss_terms", "changed"), list),
    "started": (int, float),
    **dict.fromkeys(("samples_per_second", "cost"), (int, float, type(None))),
    "total_steps": (int, type(None)),
    **dict.fromkeys(("energy", "forked_from"), dict),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_NOT_MADE = "cannot make this directory: "
LONGEST_NAME = 128
"""Largest length of a run's name in characters."""


def create_run(
    folder: Path, profile: str, model: str, name: str | None, *, by_all_nodes: bool = False
) -> Path:
    """Create the directory of a new run, accessible only for its owner.

    Args:
        folder: The folder of the runs.
        profile: Part of the name, unless it is given.
        model: Part of the name, unless it is given.
        name: Name of the run.
        by_all_nodes: Whether other nodes of the run create the directory of this name, too.

    Raises:
        ConfigError: `name` is not a valid name, or is in use.
        DiskError: The folder can't be written.
    """
    chosen = name or time.strftime("%Y%m%d-%H%M%S-") + re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{profile}-{model}")
    check_name(chosen)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error, _NOT_MADE) from error
    for attempt in range(100):
        path = _with_separator(folder / (chosen if not attempt else f"{chosen}-{attempt + 1}"))
        try:
            make_run(path)
        except FileExistsError:
            is_not_begun = path.is_dir() and not has_started(path)
            if by_all_nodes and is_not_begun:
                check_is_run(path)
                return path
            if name is not None and path.is_dir():
                raise ConfigError(
                    f"{path}: a run with this name exists",
                    hint=f"resume it (mptui resume {shell_word(path)}), or choose another --name",
                ) from None
            continue
        except OSError as error:
            raise _unusable(path, error, _NOT_MADE) from error
        return path
    raise DiskError(f"{folder}: no free name for the run {chosen}", hint="choose one with --name")


def check_name(name: str) -> None:
    """Check that a name is valid and stays inside the folder of the runs.

    Raises:
        ConfigError: It is invalid.
    """
    if len(name) > LONGEST_NAME:
        raise ConfigError(
            f"--name {clean(name, 40)}: {len(name):,} characters",
            hint=f"use at most {LONGEST_NAME} characters",
        )
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name!r}: not a valid name",
            hint="use letters, digits, '.', '_', '+' and '-', starting with a letter, a digit or '_'",
        )


def has_started(run: Path) -> bool:
    """Whether a process has trained the run; else a launcher has only made its directory."""
    return (run / CONFIG).is_file()


def find_run(folder: Path, run: str) -> Path:
    """Find the directory of a run by its path, its name, or an unambiguous start of its name.

    A word without a separator is a name in `folder`; `./NAME` is a path.

    Raises:
        RunDirectoryError: No run or several runs match.
    """
    is_path = os.sep in run or run in {os.curdir, os.pardir}
    path = _with_separator(Path(run) if is_path else folder / run)
    if _is_run_here(path):
        return path
    if not is_path and _is_run_here(Path(run)):
        raise RunDirectoryError(
            f"{run}: no such run in {folder}, but there is one in the current folder",
            hint=f"name it as a path: .{os.sep}{run}",
        )
    matches = [p for p in list_runs(folder) if p.name.startswith(run)]
    if len(matches) == 1:
        return _with_separator(matches[0])
    found = f"{len(matches)} runs start with this" if matches else "no such run"
    raise RunDirectoryError(
        f"{run}: {found} in {folder}", hint="mptui runs lists them; --runs-dir names their folder"
    )


def _is_run_here(path: Path) -> bool:
    # pathlib raises for a name that is too long
    return any(os.path.isfile(path / name) for name in _OF_A_RUN)  # noqa: PTH113


def _with_separator(path: Path) -> Path:
    """Return a path that `find_run` takes for one: of a run in the current folder its absolute path."""
    return path if os.sep in str(path) else path.absolute()


def list_runs(folder: Path, on_error: Callable[[OSError], None] = lambda _: None) -> list[Path]:
    """Return the directories of all runs in `folder`, by name.

    Args:
        folder: The folder of all runs, which may be missing.
        on_error: Called for each unreadable folder; the others are listed.
    """
    found = []
    try:
        for path in sorted(folder.iterdir()):
            try:
                if any(_is_file(path / name) for name in _OF_A_RUN):
                    found.append(path)
            except OSError as error:
                on_error(error)
    except FileNotFoundError:
        pass
    except OSError as error:
        on_error(error)
    return found


def _is_file(path: Path) -> bool:
    """Whether there is a regular file; unlike `Path.is_file`, this raises if it can't be read."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def started_of(run: Path, summary: dict[str, Any]) -> float:
    """Return when the run was last started or resumed, in seconds since the epoch.

    Args:
        run: The run directory, whose time is used if the summary has none.
        summary: The summary from `read_summary`.
    """
    if (started := as_number(summary.get("started"))) is not None:
        return started
    try:
        return run.stat().st_mtime
    except OSError:
        return 0.0


def write_text(path: Path, text: str, guard: Guard = contextlib.nullcontext) -> None:
    """Replace a file atomically, accessible only for its owner.

    Args:
        path: The file.
        text: The new content.
        guard: Context around the change.

    Raises:
        DiskError: The disk is full or not writable; the old file is unchanged.
        RunDirectoryError: From `guard`: another process owns the run; the old file is unchanged.
    """
    try:
        replace_file(path, text.encode(errors="backslashreplace"), guard)
    except OSError as error:
        raise DiskError(f"{error.strerror}: {path}", hint=disk_hint(error, path)) from error


def write_json(path: Path, document: dict[str, Any], guard: Guard = contextlib.nullcontext) -> None:
    """Replace a JSON file atomically, as `write_text` does."""
    write_text(path, json_text(document), guard)


def json_text(document: dict[str, Any]) -> str:
    """Return the text of a JSON file."""
    return json.dumps(finite_json(document), indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a run; empty if it is missing or unreadable."""
    try:
        document = json.loads(read_regular(path, LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_summary(run: Path) -> dict[str, Any]:
    """Read summary.json with values of valid types, safe to show; empty if it is unreadable."""
    cleaned = {key: cleaned_json(value) for key, value in read_json(run / SUMMARY).items()}
    known: dict[str, Any] = {k: v for k, v in cleaned.items() if isinstance(v, _TYPES.get(k, object))}
    if "best" in known and not isinstance(known["best"].get("metric"), str):
        known["best"] = {"epoch": None, "metric": None, "value": None}
    if "energy" in known and not _is_energy(known["energy"]):
        del known["energy"]
    return known


def time_of(summary: dict[str, Any]) -> tuple[float | None, float | None]:
    """Return the seconds of the last session of a run, and those of all; None: unknown.

    Earlier versions have noted those of the last session alone.
    """
    noted = summary.get("time") or {}
    session, total = (as_number(noted.get(name)) for name in ("session_s", "total_s"))
    return (total, None) if session is None else (session, total)


def _is_energy(energy: dict[str, Any]) -> bool:
    figures = [energy.get("watt_hours") or 0.0, energy.get("seconds"), energy.get("until")]
    return all(as_number(figure) is not None for figure in figures)


def check_version(run: Path) -> None:
    """Refuse a run of a later version of mptui, which this one could misread.

    Raises:
        RunDirectoryError: A file of the run is of a later version.
    """
    from mptui.config.keys import VERSION as OF_PROFILES
    from mptui.runs.store import journal  # imports numpy, which the first screen does without

    known = {
        CONFIG: (_version(run / CONFIG, tomli.loads), OF_PROFILES),
        SUMMARY: (_version(run / SUMMARY, json.loads), VERSION),
        ENVIRONMENT: (_version(run / ENVIRONMENT, json.loads), VERSION),
        CHOICES: (_version(run / CHOICES, json.loads), VERSION),
        CHANGES: (_version(run / CHANGES, json.loads), VERSION),
        journal.NAME: (journal.version_of(run), SCHEMA_VERSION),
    }
    for name, (version, newest) in known.items():
        if version is not None and version > newest:
            raise RunDirectoryError(
                f"{run / name}: written by a newer mptui (version {version}, this one reads {newest})",
                hint="use that version of mptui for this run",
            )


def _version(path: Path, loads: Callable[[str], object]) -> int | None:
    """Return the version in a file; None if it has none."""
    try:
        document = loads(read_regular(path, LARGEST).decode())
    except (OSError, ValueError, RecursionError):
        return None
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, int) else None


def status_of(run: Path) -> dict[str, Any]:
    """Read the summary with the actual status: `running` only while a process trains it, else `crashed`."""
    summary = {"run": run.name, **summary_of(run), "directory": str(run)}
    if summary.get("status") in {None, "running"}:
        summary["status"] = "running" if is_trained(run) else CRASHED
        if summary["status"] == CRASHED:  # its process had no time to write the latest
            for spec, event in _events(run, -_TAIL):
                if spec.moves_step and event.step:
                    summary["optimizer_steps"] = event.step
    return summary


def summary_of(run: Path) -> dict[str, Any]:
    """Read the summary; from the journal if the process was killed before it could write what the run is."""
    summary = read_summary(run)
    if summary.get("model"):
        return summary
    by_clock: dict[str, Any] = {name: summary[name] for name in ("time", "memory") if name in summary}
    document: dict[str, Any] = {**summary, **blank_summary(), **by_clock}
    for spec, event in _events(run, 0):
        spec.summarize(document, event)
    return document if document["model"] else summary


def _events(run: Path, start: int) -> Iterator[tuple["EventSpec[Any]", Event]]:
    """Yield the events of the journal from byte `start`, if negative from its end; none if unreadable."""
    from mptui.runs.store import journal  # imports numpy, which the list of runs does without
    from mptui.runs.view.specs import EVENTS

    with contextlib.suppress(OSError):
        start = start if start >= 0 else max(0, journal.length(run) + start)
        for _, events in journal.read_events(run / journal.NAME, start):
            yield from ((EVENTS[event.kind], event) for event in events)


def blank_summary() -> dict[str, Any]:
    """Return the summary of a run before its first event, without its names and times."""
    return {
        "task": None,
        "model": None,
        "dataset": {"name": None, "train_samples": None, "val_samples": None, "classes": None},
        "device": None,
        "ranks": 1,
        "nodes": 1,
        "precision": {"requested": None, "used": None, "reason": None},
        "epochs": 0,
        "optimizer_steps": 0,
        "total_steps": None,
        "samples_seen": 0,
        "skipped_steps": 0,
        "final": {},
        "loss_terms": [],
        "best": {"epoch": None, "metric": None, "value": None},
        "samples_per_second": None,
        "energy": {"watt_hours": None, "seconds": 0.0, "until": 0.0},
        "price_per_hour": None,
        "cost": None,
        "time": {"total_s": 0.0, "session_s": 0.0, "first_step_s": None, "data_wait_fraction": None},
        "memory": {
            "peak_allocated_bytes": None,
            "peak_reserved_bytes": None,
            "host_peak_bytes": None,
        },
        "recoveries": [],
        "warnings": [],
    }


def is_trained(run: Path) -> bool:
    """Whether a process trains the run, or a launcher is about to start its processes again."""
    return is_held(run) or is_held(run / RANKS)


def claim(run: Path) -> Claim:
    """Make this process the owner of the run; of several concurrent calls, one succeeds.

    Raises:
        RunDirectoryError: Another living process owns the run, it is of a later version, it is the folder of
            another program, or one of its files is a link or a special file.
        DiskError: The run's directory can't be written.
    """
    _check_kinds(run)
    check_is_run(run)
    check_version(run)
    return Claim(run)


def check_is_run(folder: Path) -> None:
    """Refuse a folder with files of other programs, which a run would replace, remove or append to.

    Raises:
        RunDirectoryError: It is not the folder of a run, and not empty.
        DiskError: It can't be read.
    """
    try:
        others = {entry.name for entry in os.scandir(folder) if not is_partial(entry.name)} - {LOCK, PRIVATE}
    except OSError as error:
        raise _unusable(folder, error) from error
    if others and not is_run(folder):
        told = some(sorted(others))
        raise RunDirectoryError(
            f"{folder}: not the folder of a run: mptui has not written what is in it ({told})",
            hint="choose another --name or --runs-dir; nothing in this folder was changed",
        )


def _unusable(folder: Path, error: OSError, what: str = "") -> DiskError:
    hint = disk_hint(error, folder, "choose another folder with --runs-dir")
    return DiskError(f"{folder}: {what}{error.strerror}", hint=hint)


def _check_kinds(run: Path) -> None:
    """Refuse a run with links or special files, which would redirect writes.

    Raises:
        RunDirectoryError: One is a link, a FIFO, a device.
        DiskError: The directory can't be read.
    """
    try:
        with os.scandir(run) as entries:
            odd = [entry.name for entry in entries if _is_odd(entry)]
    except OSError as error:
        raise _unusable(run, error) from error
    if odd:
        kind = "folder" if odd[0] in _FOLDERS else "regular file"
        raise RunDirectoryError(
            f"{run / odd[0]}: a link or a special file instead of a {kind}; runs don't write to these",
            hint=f"replace it by a copy of the {kind}, or remove it",
        )


def _is_odd(entry: "os.DirEntry[str]") -> bool:
    if entry.name in _FOLDERS:
        return not entry.is_dir(follow_symlinks=False)
    return Path(entry.name).suffix in _SUFFIXES and not entry.is_file(follow_symlinks=False)


# Ownership of a run, which all threads of a session check before they write
# --------------------------------------------------------------------------


class Ownership:
    """This process's claim on one run, until it is released or another process has taken the run over.

    Args:
        run: The run's directory.
        on_loss: Called once when another process owns the run.

    Attributes:
        untouched: Returns whether no other process has written to the run's journal.

    Raises:
        RunDirectoryError: Another living process has the run.
        DiskError: The run's directory can't be written.
    """

    def __init__(self, run: Path, on_loss: Callable[[], None]) -> None:
        self.untouched: Callable[[], bool] = lambda: True
        self._claim = claim(run)
        self._on_loss = on_loss
        self._lost: RunDirectoryError | None = None

    def lost(self) -> RunDirectoryError | None:
        """Return the error if another process owns the run; None while this one does."""
        if self._lost is None:
            try:
                self._claim.keep(self.untouched)
            except RunDirectoryError as error:
                self._lose(error)
        return self._lost

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Change a name in the run directory while no other process can take it over; see `Claim.change`.

        Raises:
            RunDirectoryError: Another process has taken the run over.
            OSError: The directory or its lock can't be read.
        """
        if (lost := self.lost()) is not None:
            raise lost
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._claim.change(self.untouched))
            except RunDirectoryError as error:
                self._lose(error)
                raise
            yield

    def release(self) -> None:
        """Release the run."""
        self._claim.release()

    def _lose(self, error: RunDirectoryError) -> None:
        self._lost = error
        self._on_loss()
