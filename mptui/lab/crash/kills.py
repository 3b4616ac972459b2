"""Runs that are killed again and again, and compared with one that nobody disturbed."""

import json
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mptui.engine.checkpoint.files import read_newest
from mptui.errors import DiskError, MptuiError, RunDirectoryError
from mptui.events import EpochFinished, Step, Validated, Warned
from mptui.lab.crash.faults import CALLS
from mptui.lab.crash.forkserver import Child, ForkServer
from mptui.runs.store.directory import CHECKPOINTS
from mptui.runs.store.journal import read_journal

KILLED = -signal.SIGKILL
LIMIT_S = 600.0
"""After so long a run counts as hung; far beyond what these small runs take."""

CALLS_OF_A_SAVE = 45
"""About how many calls beside writes a save makes; kills inside one go through all of them and on."""

WRITES_OF_A_SAVE = 150
"""About how many writes: one a tensor."""

_STEP_BETWEEN_CALLS = 7  # prime to the number of calls, so that all are met
_OTHER_CALLS = [name for name in CALLS if name != "write"]
_MOST_TRIALS = 5


@dataclass(frozen=True)
class RunRecord:
    """All of a run that does not depend on the clock; of a step taken twice, the later record counts.

    `state` is the checkpoint's without the settings, which say how often it was saved.
    """

    steps: dict[int, tuple[object, ...]]
    validations: dict[int, tuple[object, ...]]
    epochs: dict[int, tuple[object, ...]]
    weights: dict[str, dict[str, bytes]]
    state: str


@dataclass(slots=True)
class Tally:
    """What was done to the runs, and what came of it."""

    kills: int = 0
    inside_a_save: int = 0
    runs: int = 0
    steps: int = 0
    steps_again: int = 0
    """Steps that were taken again, since they came after the last save."""
    damaged: list[str] = field(default_factory=list)
    """Checkpoints that could not be read after a kill."""
    differing: list[str] = field(default_factory=list)
    """Runs that ended otherwise than the one that nobody disturbed."""

    @property
    def sound(self) -> bool:
        """Whether nothing was lost and nothing changed."""
        return not self.damaged and not self.differing


def outcome_of(run: Path) -> RunRecord:
    """Read how a run ended from its directory.

    Raises:
        RunDirectoryError: No checkpoint of it is whole.
    """
    events = list(read_journal(run))
    snapshot, complaints = read_newest(run / CHECKPOINTS)
    if complaints:
        raise RunDirectoryError("\n".join(complaints), hint="look at the disk")
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
        server: Begins them.
        arguments: The command line that begins the run of a name, or goes on with it.
        folder: Where the runs are; what they print is put beside them.
        seed: Of the moments.
        on_kill: Told after each kill.
    """

    def __init__(
        self,
        server: ForkServer,
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
        """Kill runs so many times, every second time inside a save, and compare each that ends.

        Raises:
            MptuiError: A run ended with an error of its own.
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
        """Let a run go on until it is killed; False where it ended first."""
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
        """A place inside a save: the next of its calls, in its first or second save, or one of its writes."""
        number = self._trials // 2
        if number % 4 == 3:
            place = {"at": self._chance.randrange(2 * WRITES_OF_A_SAVE), "only": ["write"]}
        else:
            at = number * _STEP_BETWEEN_CALLS % CALLS_OF_A_SAVE + self._chance.choice([0, CALLS_OF_A_SAVE])
            place = {"at": at, "only": _OTHER_CALLS}
        return {**place, "when": self._chance.choice(["before", "half", "after"]), "error": None}

    def _begin(self, name: str, point: dict[str, Any] | None) -> Child:
        disk = point and {"folder": str(self._folder / name / CHECKPOINTS), **point}
        return self._server.start(self._arguments(name), self._folder / f"{name}.out", disk=disk)

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
    """Raise what ended a run that should have ended well."""
    if child.code == 0:
        return
    lines = [line for line in child.said().splitlines() if line.strip()]
    message = "\n".join(lines[-4:]) or f"exit code {child.code}"
    raise _ERRORS.get(child.code or 0, MptuiError)(message, hint="run it again with --debug")


_ERRORS: dict[int, type[MptuiError]] = {error.exit_code: error for error in (DiskError, RunDirectoryError)}
