"""Cost of the guards in a healthy run: the same trainer with and without them.

    python -m benchmarks.guards                # ResNet-18 at 64 px, and the tiny network in fp32 and fp16
    python -m benchmarks.guards --only tiny    # only one of them

Both trainers take the same steps in one process, in alternating blocks, measured as CPU time of their thread,
on one thread. The one without guards has only the other hooks. Few blocks would contain a snapshot, which is
taken once in `guards.snapshot_every` steps: it is timed separately and added pro rata.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks import targets
from benchmarks.common import parser_of, save, turn
from benchmarks.subjects import CASES as SUBJECTS
from benchmarks.subjects import TINY, Case, make_trainer
from mptui.engine.guards.divergence import NanGuard
from mptui.engine.trainer import HOOKS, Trainer

SNAPSHOTS = 10
NEVER = 1 << 60


@dataclass(frozen=True)
class Blocks:
    """A training setup and the timing of its steps."""

    case: Case
    blocks: int
    steps: int


BLOCKS = {
    "resnet18": Blocks(SUBJECTS["resnet18"], blocks=40, steps=1),
    "tiny": Blocks(SUBJECTS[TINY], blocks=300, steps=50),
    "tiny-fp16": Blocks(replace(SUBJECTS[TINY], precision="fp16"), blocks=300, steps=50),
}


Stepper = Callable[[int], None]


def stepper(trainer: Trainer) -> Stepper:
    """Returns a function that takes steps as `Trainer._train_epoch` does, always over the same window."""
    trainer.context.model.train()
    trainer.context.enter("training")
    window = next(iter(trainer.context.job.train_loader.windows(0, 1)))

    def step(times: int) -> None:
        for again in repeat(window, times):
            trainer._train_step(again)
            trainer._between_steps()

    return step


def microseconds(step: Stepper, steps: int) -> float:
    """Returns CPU time of this thread per step."""
    started = time.thread_time()
    step(steps)
    return (time.thread_time() - started) / steps * 1e6


def measure(timed: Blocks) -> dict[str, Any]:
    """Measures the guards' time per step, and its fraction of the step."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        guarded = make_trainer(timed.case, Path(folder, "on"), stack)
        with mock.patch.dict(HOOKS):
            del HOOKS["nan"], HOOKS["memory"]
            bare = make_trainer(timed.case, Path(folder, "off"), stack)
        bare.context.reporter.on_rows = None
        snapshot_every = guarded.context.job.config.guards.snapshot_every
        guarded.context.begin()
        # no snapshot is due in the blocks: snapshots are timed separately
        nan_guard(guarded)._snapshot_at = NEVER
        sides = {"with": stepper(guarded), "without": stepper(bare)}
        for step in sides.values():
            microseconds(step, timed.steps)
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(timed.blocks):
            for name in turn(sides, number):
                figures[name].append(microseconds(sides[name], timed.steps))
        snapshots = [_snapshot(guarded, sides["with"]) for _ in range(SNAPSHOTS)]
    over = [a - b for a, b in zip(figures["with"], figures["without"], strict=True)]
    step_us = statistics.median(figures["without"])
    snapshot_us = statistics.median(snapshots) / snapshot_every
    quartiles = statistics.quantiles(over, n=4)
    share = (quartiles[1] + snapshot_us) / step_us
    print(
        f"  a step {step_us:,.1f} us; guards {quartiles[1]:.2f} us "
        f"({quartiles[0]:.2f} to {quartiles[2]:.2f}) and {snapshot_us:.2f} us of snapshots: {share:.2%}"
    )
    return {
        "step_us": step_us,
        "guards_us_quartiles": quartiles,
        "snapshot_ms": statistics.median(snapshots) / 1e3,
        "snapshot_every": snapshot_every,
        "share": share,
        "asked_at_most": targets.GUARDS,
    }


def _snapshot(trainer: Trainer, step: Stepper) -> float:
    """Returns microseconds of a snapshot into reused memory, after all pending rows are read."""
    step(1)
    guard = nan_guard(trainer)
    guard._snapshot_at = trainer.state.step
    took = microseconds(lambda _: guard.step_ends(), 1)
    guard._snapshot_at = NEVER
    return took


def nan_guard(trainer: Trainer) -> NanGuard:
    """Returns the guard that keeps snapshots."""
    guard = trainer.context.hooks["nan"]
    assert isinstance(guard, NanGuard)
    return guard


def main() -> None:
    """Measures and writes results/guards.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--only", choices=list(BLOCKS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {}
    for name in [arguments.only] if arguments.only else BLOCKS:
        print(name)
        document[name] = measure(BLOCKS[name])
    save(f"guards-{arguments.only}" if arguments.only else "guards", document)


if __name__ == "__main__":
    main()
