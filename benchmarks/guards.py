"""What the guards cost a healthy run: the same trainer with them and with nothing in their place.

    python -m benchmarks.guards                # a ResNet-18 at 64 px, and the tiny network in fp32 and fp16
    python -m benchmarks.guards --only tiny    # one of them

Both trainers live in one process and take the same steps, in blocks that alternate, timed by the CPU time of
their thread, on one thread. The one without guards has stubs where the flow asks them, so that the asking
counts too. A snapshot comes once in `guards.snapshot_every` steps, which would be in few blocks or none: it
is timed by itself and added as its share of a step.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import save
from benchmarks.loop import CPU, TINY_BATCH, TINY_CLASSES, Noises, tiny_network
from mptui.config.schema import ModelConfig, RunConfig
from mptui.data.batch import Batch
from mptui.data.loader import Loader, Window
from mptui.engine.control import Mailbox
from mptui.engine.parts import Job
from mptui.engine.saver import Saver
from mptui.engine.trainer import Trainer
from mptui.models.zoo import build
from mptui.runs.journal import Journal
from mptui.tasks.registry import build_task

SNAPSHOTS = 10


@dataclass(frozen=True)
class Case:
    """One network and how its steps are timed."""

    precision: str
    side: int
    batch: int
    blocks: int
    steps: int
    network: Callable[[], torch.nn.Module]


def _resnet18() -> torch.nn.Module:
    torch.manual_seed(0)
    return build(ModelConfig(name="resnet18"), num_classes=TINY_CLASSES, task="classification", side=64)


CASES = {
    "resnet18": Case("fp32", 64, 32, blocks=40, steps=1, network=_resnet18),
    "tiny": Case("fp32", 8, TINY_BATCH, blocks=100, steps=100, network=tiny_network),
    "tiny-fp16": Case("fp16", 8, TINY_BATCH, blocks=100, steps=100, network=tiny_network),
}


class Unguarded:
    """What stands in the guards' place: it agrees to everything."""

    def __init__(self) -> None:
        self.nan = self.memory = self

    def due(self, step: int) -> bool:
        return False

    def look(self) -> bool:
        return False

    def keep_if_due(self) -> None:
        pass

    def leaves_out(self, epoch: int, sample: int) -> bool:
        return False

    def pieces(self, batch: Batch) -> tuple[Batch]:
        return (batch,)

    def windows(self, begin: Callable[[], Iterator[Window]]) -> Iterator[Window]:
        return begin()


def make_trainer(case: Case, folder: Path, stack: ExitStack) -> Trainer:
    """A trainer with journal and default logging, over one window that stays on the device."""
    config = RunConfig.model_validate(
        {"training": {"epochs": 10_000, "lr": 0.001, "batch_size": case.batch}, "speed": {"fused": True}}
    )

    def loader(train: bool) -> Loader:
        made = Loader(
            Noises(2 * case.batch),
            task="classification",
            batch_size=case.batch,
            side=case.side,
            num_classes=TINY_CLASSES,
            device=CPU,
            train=train,
            augment=False,
            seed=0,
            channels_last=False,
            cache="device",
        )
        made.prepare()
        return made

    folder.mkdir()
    journal = Journal(folder)
    saver = Saver(folder, config.checkpoint, journal.write)
    stack.callback(saver.close)
    job = Job(
        config=config,
        model=case.network(),
        task=build_task("classification", [str(i) for i in range(TINY_CLASSES)], config.training),
        num_classes=TINY_CLASSES,
        device=CPU,
        precision=case.precision,
        train_loader=loader(True),
        val_loader=loader(False),
    )
    trainer = Trainer(job, emit=journal.write, mailbox=Mailbox(), saver=saver)
    stack.callback(trainer.close)
    return trainer


def stepper(trainer: Trainer) -> Callable[[], None]:
    """One turn of the training loop, as `Trainer._train_epoch` takes it, always over the same window."""
    trainer.model.train()
    trainer.enter("training")
    window = next(iter(trainer.job.train_loader.windows(0, 1)))

    def step() -> None:
        for again in trainer.guards.memory.windows(lambda: iter((window,))):
            trainer._step(again)
            if (
                trainer.mailbox
                or trainer.guards.due(trainer.step)
                or trainer.reporter.due(time.perf_counter())
            ):
                trainer._between_steps()

    return step


def microseconds(step: Callable[[], None], steps: int) -> float:
    """CPU time of this thread, a step."""
    started = time.thread_time()
    for _ in range(steps):
        step()
    return (time.thread_time() - started) / steps * 1e6


def measure(case: Case) -> dict[str, Any]:
    """The guards' work a step, and its share of the step."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        guarded = make_trainer(case, Path(folder, "on"), stack)
        bare = make_trainer(case, Path(folder, "off"), stack)
        bare.reporter.watcher = None
        bare.guards = Unguarded()  # type: ignore[assignment]
        snapshot_every = guarded.job.config.guards.snapshot_every
        guarded.guards.begin()
        # none falls due in the blocks: they are timed by themselves
        guarded.guards._snapshot_at = 1 << 60
        sides = {"with": stepper(guarded), "without": stepper(bare)}
        for step in sides.values():
            microseconds(step, case.steps)
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(case.blocks):
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                figures[name].append(microseconds(sides[name], case.steps))
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
    }


def _snapshot(trainer: Trainer, step: Callable[[], None]) -> float:
    """Microseconds of a snapshot in memory that is used again, all rows read first."""
    step()

    def settle_and_keep() -> None:
        trainer.guards.settle()
        trainer.guards.nan.keep()

    return microseconds(settle_and_keep, 1)


def main() -> None:
    """Measure, and write results/guards.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(CASES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document: dict[str, Any] = {}
    for name in [arguments.only] if arguments.only else CASES:
        print(name)
        document[name] = measure(CASES[name])
    save(f"guards-{arguments.only}" if arguments.only else "guards", document)


if __name__ == "__main__":
    main()
