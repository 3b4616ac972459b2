"""Kills runs repeatedly and compares them with an undisturbed one."""

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mptui.engine.checkpoint.files import read_newest
from mptui.errors import RunDirectoryError, error_of_code
from mptui.events import EpochFinished, Step, Validated, Warned
from mptui.lab.crash.faults import CALLS
from mptui.lab.crash.run_server import Child, RunServer
from mptui.runs.store.directory import CHECKPOINTS
from mptui.runs.store.journal import read_journal

KILLED = -signal.SIGKILL
LIMIT_S = 600.0
"""Seconds after which a run counts as hung, far more than these small runs take."""

CALLS_OF_A_SAVE = 45
"""Approximate number of calls of a save besides writes; kills iterate over all of them."""

WRITES_OF_A_SAVE = 150
"""Approximate number of writes of a save, one per tensor."""

_STEP_BETWEEN_CALLS = 7  # coprime to the number of calls, so that all are covered
_OTHER_CALLS = [name for name in CALLS if name != "write"]
_MOST_TRIALS = 5


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
        self._server, self._arguments, self._folder = server, arguments, folder
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
        return {**place, "when": self._chance.choice(["before", "half", "after"]), "error": None}

    def _begin(self, name: str, point: dict[str, Any] | None) -> Child:
        disk = point and {"folder": str(self._folder / name / CHECKPOINTS), **point}
        return self._server.run(self._arguments(name), self._folder / f"{name}.out", disk=disk)

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
