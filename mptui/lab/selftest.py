"""The kill-and-resume test of `mptui selftest`, on this disk and device.

A small ResNet is trained in a folder next to the runs, once undisturbed and then with many kills, half of
them inside a save; every run must end with the same losses and weights, bit for bit.
"""

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NoReturn

from mptui.engine.checkpoint.files import read_newest
from mptui.errors import DiskError, RunDirectoryError, error_of_code
from mptui.events import EpochFinished, Step, Validated, Warned
from mptui.processes.start import MAIN, Child, RunServer, function_of
from mptui.runs.store.directory import CHECKPOINTS
from mptui.runs.store.journal import read_journal

_FLAGS = ("--model", "resnet18", "--batch-size", "4", "--epochs", "2", "--workers", "0", "--no-compile", "-q")
_SETS = (
    *("data.image_size=32", "data.samples=16", "training.deterministic=true"),
    *("logging.step_interval_s=0", "checkpoint.every_steps=1", "precision.matmul=highest"),
)

KILLED = -signal.SIGKILL
LIMIT_S = 600.0
"""Seconds after which a run counts as hung, far more than these small runs take."""

CALLS_OF_A_SAVE = 45
"""Approximate number of calls of a save besides writes; kills iterate over all of them."""

WRITES_OF_A_SAVE = 150
"""Approximate number of writes of a save, one per tensor."""

_STEP_BETWEEN_CALLS = 7  # coprime to the number of calls, so that all are covered
_MOST_TRIALS = 5

CALLS = (
    *("statvfs", "mkdir", "open", "write", "fsync", "close", "rename", "replace"),
    *("symlink", "unlink", "rmdir", "ftruncate"),
)
"""The functions of `os` that saving uses."""

When = Literal["before", "half", "after"]

_OTHER_CALLS = [name for name in CALLS if name != "write"]

_KILLED_IN_A_SAVE = f"{__name__}:run_on_faulty_disk"


@dataclass(frozen=True)
class RunRecord:
    """Everything of a run that doesn't depend on time; of a repeated step, the later record counts.

    `state` is the checkpoint's, without settings, which contain how often it is saved.
    """

    steps: dict[int, tuple[object, ...]]
    validations: dict[int, tuple[object, ...]]
    epochs: dict[int, tuple[object, ...]]
    weights: dict[str, dict[str, bytes]]
    state: str


@dataclass(slots=True)
class Tally:
    """Counts of kills and their results."""

    kills: int = 0
    inside_a_save: int = 0
    runs: int = 0
    steps: int = 0
    steps_again: int = 0
    """Steps that were repeated because they came after the last save."""
    damaged: list[str] = field(default_factory=list)
    """Checkpoints that could not be read after a kill."""
    differing: list[str] = field(default_factory=list)
    """Runs with other results than the undisturbed one."""

    @property
    def sound(self) -> bool:
        """Whether no checkpoint was damaged and no result differs."""
        return not self.damaged and not self.differing


def outcome_of(run: Path) -> RunRecord:
    """Read the results of a run from its directory.

    Raises:
        RunDirectoryError: It has no intact checkpoint.
    """
    events = list(read_journal(run))
    snapshot, complaints = read_newest(run / CHECKPOINTS)
    if complaints:
        raise RunDirectoryError("\n".join(complaints), hint="check the disk")
    return RunRecord(
        steps={e.step: _figures(e) for e in events if isinstance(e, Step)},
        validations={e.epoch: (e.loss, repr(e.metrics), e.best) for e in events if isinstance(e, Validated)},
        epochs={e.epoch: (e.train_loss, e.val_loss, e.lr) for e in events if isinstance(e, EpochFinished)},
        weights={
            group: {name: t.numpy().tobytes() for name, t in tensors.items()}
            for group, tensors in snapshot.tensors.items()
        },
        state=json.dumps({k: v for k, v in snapshot.state.items() if k != "settings"}, sort_keys=True),
    )


def _figures(event: Step) -> tuple[object, ...]:
    return (
        event.loss,
        event.lr,
        event.grad_norm,
        event.skipped_steps,
        event.samples_seen,
        repr(event.metrics),
    )


class Killer:
    """Kills runs.

    Args:
        server: Starts the runs.
        arguments: The command line that starts or resumes the run of a name.
        folder: Folder of the runs and their output.
        seed: Seed of the times of kills.
        on_kill: Called after each kill.
    """

    def __init__(
        self,
        server: RunServer,
        arguments: Callable[[str], Sequence[object]],
        folder: Path,
        *,
        seed: int = 0,
        on_kill: Callable[[Tally], None] = lambda tally: None,
    ) -> None:
        self._server = server
        self._arguments = arguments
        self._folder = folder
        self._chance = random.Random(seed)
        self._on_kill = on_kill
        self._trials = 0
        self.tally = Tally()

    def run(self, kills: int) -> Tally:
        """Kill runs `kills` times, every second time inside a save, and compare each that completes.

        Raises:
            MptuiError: A run failed.
        """
        expected = outcome_of(self._finished("undisturbed"))
        before = time.monotonic()
        self._compare("again", expected)
        usual_s = time.monotonic() - before
        while self.tally.kills < kills and self._trials < _MOST_TRIALS * kills + 20:
            name = f"killed-{self.tally.runs}"
            while self.tally.kills < kills and self._killed_once(name, usual_s):
                pass
            self._compare(name, expected)
            self.tally.runs += 1
        return self.tally

    def _killed_once(self, name: str, usual_s: float) -> bool:
        """Start or resume a run and kill it; return False if it ended before."""
        self._trials += 1
        inside = self._trials % 2 == 0
        child = self._begin(name, self._point() if inside else None)
        if not inside:
            time.sleep(self._chance.uniform(0, usual_s))
            child.send(signal.SIGKILL)
        if child.wait(LIMIT_S) != KILLED:
            _check(child)
            return False
        self.tally.kills += 1
        self.tally.inside_a_save += inside
        self._on_kill(self.tally)
        return True

    def _point(self) -> dict[str, Any]:
        """Return a point inside a save: its next call, in the first or second save, or one of its writes."""
        number = self._trials // 2
        if number % 4 == 3:
            place = {"at": self._chance.randrange(2 * WRITES_OF_A_SAVE), "only": ["write"]}
        else:
            at = number * _STEP_BETWEEN_CALLS % CALLS_OF_A_SAVE + self._chance.choice([0, CALLS_OF_A_SAVE])
            place = {"at": at, "only": _OTHER_CALLS}
        return {**place, "when": self._chance.choice(["before", "half", "after"])}

    def _begin(self, name: str, point: dict[str, Any] | None) -> Child:
        words, output = self._arguments(name), self._folder / f"{name}.out"
        if point is None:
            return self._server.run(words, output)
        disk = {"folder": str(self._folder / name / CHECKPOINTS), **point}
        return self._server.run([json.dumps(disk), *words], output, call=_KILLED_IN_A_SAVE)

    def _finished(self, name: str) -> Path:
        child = self._begin(name, None)
        child.wait(LIMIT_S)
        _check(child)
        return self._folder / name

    def _compare(self, name: str, expected: RunRecord) -> None:
        run = self._finished(name)
        steps = [event for event in read_journal(run) if isinstance(event, Step)]
        self.tally.steps += len({event.step for event in steps})
        self.tally.steps_again += len(steps) - len({event.step for event in steps})
        self.tally.damaged += [
            event.message
            for event in read_journal(run)
            if isinstance(event, Warned) and event.code == "damaged_checkpoint"
        ]
        if outcome_of(run) != expected:
            self.tally.differing.append(name)


def _check(child: Child) -> None:
    """Raise the error of a run that failed."""
    if child.code == 0:
        return
    lines = [line.removeprefix("mptui: ") for line in child.output().splitlines() if line.strip()]
    message = "\n".join(lines[-4:]) or f"exit code {child.code}"
    raise error_of_code(child.code or 0)(message, hint="run it again with --debug")


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """The result. `seconds` is the duration."""

    tally: Tally
    folder: Path
    device: str
    seconds: float


def selftest(runs: Path, device: str, kills: int, on_kill: Callable[[Tally], None]) -> SelftestReport:
    """Run the test; all of its files are removed.

    Args:
        runs: Folder of the runs, whose disk is tested.
        device: As for `mptui run --device`.
        kills: Number of kills.
        on_kill: Called after each kill.

    Raises:
        DiskError: The folder can't be written, or the disk is full.
        RunDirectoryError: A run could not be resumed.
    """
    started = time.monotonic()
    with _folder_beside(runs) as folder, RunServer() as server:

        def arguments(name: str) -> list[str]:
            sets = [text for value in _SETS for text in ("--set", value)]
            where = ["--runs-dir", str(folder), "--device", device]
            return ["run", "--resume", "--name", name, *where, *_FLAGS, *sets]

        tally = Killer(server, arguments, folder, on_kill=on_kill).run(kills)
    return SelftestReport(tally, runs, device, time.monotonic() - started)


@contextlib.contextmanager
def _folder_beside(runs: Path) -> Iterator[Path]:
    try:
        runs.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=runs, prefix=".selftest-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DiskError(
            f"{runs}: cannot write here: {error.strerror}", hint="choose another folder with --runs-dir"
        ) from error
    with folder as path:
        yield Path(path)


def kill_this_process() -> NoReturn:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("killed, and still here")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in call number `at` (from 0) of those in `only`, and in the next `count - 1` calls.

    `half` interrupts a write halfway; other calls are done and then fail. With a `name`, only calls on paths
    that match this pattern count.
    """

    at: int
    when: When
    strike: Callable[[], None]
    count: float = 1
    only: Collection[str] = CALLS
    name: str = "*"

    def counts(self, call: str, path: str) -> bool:
        """Whether a call on a path is one that counts."""
        return call in self.only and fnmatchcase(path, self.name)


@contextlib.contextmanager
def faulty_disk(folder: Path, fault: Fault | None = None) -> Iterator[list[str]]:
    """Inject `fault` into calls on files in `folder`, in all threads of this process.

    Yields:
        The names of the calls made so far, a growing list.
    """
    disk = _Disk(os.path.realpath(folder), fault)
    whole = {name: getattr(os, name) for name in CALLS}
    for name in CALLS:
        setattr(os, name, disk.wrapped(name, whole[name]))
    try:
        yield disk.calls
    finally:
        for name in CALLS:
            setattr(os, name, whole[name])


class _Disk:
    def __init__(self, folder: str, fault: Fault | None) -> None:
        self._folder = folder
        self._fault = fault
        self._ours: dict[int, str] = {}
        self._counted = 0
        self.calls: list[str] = []

    def wrapped(self, name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - any call of os
            path = self._path_of(arguments, options)
            if path is None:
                return whole(*arguments, **options)
            self.calls.append(name)
            fault = self._due(name, path)
            if fault is not None and fault.when == "before":
                fault.strike()
            if fault is None or fault.when == "before":
                return self._noted(name, whole(*arguments, **options), arguments)
            if fault.when == "half" and name == "write":
                arguments = (arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            with contextlib.suppress(OSError):  # it fails in any case
                whole(*arguments, **options)
            return fault.strike()

        return call

    def _due(self, name: str, path: str) -> Fault | None:
        """Return the fault if it applies to this call."""
        fault = self._fault
        if fault is None or not fault.counts(name, path):
            return None
        number, self._counted = self._counted, self._counted + 1
        return fault if fault.at <= number < fault.at + fault.count else None

    def _noted(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        if name == "open":
            self._ours[result] = os.path.abspath(arguments[0])  # noqa: PTH100
        elif name == "close":
            self._ours.pop(arguments[0], None)
        return result

    def _path_of(self, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """Return the path in the folder that a call uses; None for other calls."""
        first, folder = arguments[0], options.get("dir_fd")
        if isinstance(first, int):
            return self._ours.get(first)
        if folder is not None:
            return f"{self._ours[folder]}/{os.fspath(first)}" if folder in self._ours else None
        return next((path for path in map(self._inside, arguments[:2]) if path is not None), None)

    def _inside(self, path: Any) -> str | None:  # noqa: ANN401
        if not isinstance(path, (str, os.PathLike)):
            return None
        whole = os.path.abspath(path)  # noqa: PTH100 - a symlink is itself here, not what it leads to
        return whole if whole == self._folder or whole.startswith(self._folder + os.sep) else None


def run_on_faulty_disk() -> None:
    """Run `mptui` on a disk whose fault kills the process: in JSON, the first of `argv`."""
    disk = json.loads(sys.argv.pop(1))
    with faulty_disk(Path(disk.pop("folder")), Fault(strike=kill_this_process, **disk)):
        function_of(MAIN)()
