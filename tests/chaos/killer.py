"""Kills real runs again and again, at any moment and inside a save, and compares what becomes of them."""

import json
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from mptui.engine.checkpoint.files import read_newest
from mptui.events import EpochFinished, Step, Validated, Warned
from mptui.runs.store.directory import CHECKPOINTS
from mptui.runs.store.journal import read_journal
from tests.chaos.runs import LIMIT_S, Case, finished, started
from tests.run_server import RunServer
from tests.tools.faulty_disk import CALLS

CALLS_OF_A_SAVE = 45
"""Approximate number of calls of a save besides writes; kills iterate over all of them."""

WRITES_OF_A_SAVE = 150
"""Approximate number of writes of a save, one per tensor."""

_STEP_BETWEEN_CALLS = 7  # coprime to the number of calls, so that all are covered
_MOST_TRIALS = 5
_OTHER_CALLS = [name for name in CALLS if name != "write"]


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


def outcome_of(run: Path) -> RunRecord:
    """Read the results of a run, whose newest checkpoint has to be intact."""
    events = list(read_journal(run))
    snapshot, complaints = read_newest(run / CHECKPOINTS)
    assert not complaints, complaints
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
        case: What they train.
        folder: Folder of the runs and their output.
        seed: Seed of the times of kills.
    """

    def __init__(self, server: RunServer, case: Case, folder: Path, *, seed: int = 0) -> None:
        self._server = server
        self._case = case
        self._folder = folder
        self._chance = random.Random(seed)
        self._trials = 0
        self.tally = Tally()

    def run(self, kills: int) -> Tally:
        """Kill runs `kills` times, every second time inside a save, and compare each that completes."""
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
        disk = {**self._point(), "error": None} if inside else None
        child = started(self._server, self._case, self._folder, name, disk)
        if not inside:
            time.sleep(self._chance.uniform(0, usual_s))
            child.send(signal.SIGKILL)
        if child.wait(LIMIT_S) != -signal.SIGKILL:
            assert child.code == 0, child.output()
            return False
        self.tally.kills += 1
        self.tally.inside_a_save += inside
        return True

    def _point(self) -> dict[str, object]:
        """Return a point inside a save: its next call, in the first or second save, or one of its writes."""
        number = self._trials // 2
        if number % 4 == 3:
            place = {"at": self._chance.randrange(2 * WRITES_OF_A_SAVE), "only": ["write"]}
        else:
            at = number * _STEP_BETWEEN_CALLS % CALLS_OF_A_SAVE + self._chance.choice([0, CALLS_OF_A_SAVE])
            place = {"at": at, "only": _OTHER_CALLS}
        return {**place, "when": self._chance.choice(["before", "half", "after"])}

    def _finished(self, name: str) -> Path:
        return finished(self._server, self._case, self._folder, name)

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
