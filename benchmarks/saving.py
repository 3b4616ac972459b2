"""Cost of saving: steps while a checkpoint is written, against steps without.

    python -m benchmarks.saving                                   # ResNet-50 at 224 px; minutes on a CPU
    python -m benchmarks.saving --batch-size 256 --rounds 10      # on a GPU

Blocks of steps alternate in one process. A block with a save lasts until the save is on disk; its time beyond
that of as many steps without one is the cost of the save. The fraction is for one save per minute.
`processor_s` is the same in CPU time of all threads: what a save takes from other work on a machine whose
cores the training keeps busy; it is also reliable on a busy machine.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import parser_of, save, spread
from mptui.data.batch import Window
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.saver import Saver
from mptui.engine.mailbox import Mailbox
from mptui.engine.reporting.observers import observers
from mptui.engine.trainer import Trainer
from mptui.events import CheckpointSaved, Event
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Request, plan_run

MINUTE_S = 60.0
WARM_UP = 5
LEAST_STEPS = 5


class Bench:
    """A trainer that takes blocks of steps, every other one with a save."""

    def __init__(self, request: Request, folder: Path) -> None:
        self.plan = plan_run(request)
        self.saved: list[CheckpointSaved] = []
        prepared = prepare(
            self.plan,
            emit=self._note,
            mailbox=Mailbox(),
            on_bad=lambda problem: None,
            force_compile=self.plan.resolved.compile_forced,
        )
        self.saver = Saver(folder, lambda: self.plan.config.checkpoint, self._note)
        self.trainer = Trainer(
            prepared.job, emit=self._note, mailbox=Mailbox(), saver=self.saver, observers=observers()
        )
        self.trainer.context.begin()
        self._windows = self._forever()

    def _note(self, event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            self.saved.append(event)

    def _forever(self) -> Iterator[Window]:
        for epoch in range(1_000_000):
            yield from self.trainer.context.job.train_loader.windows(epoch, 1)

    def steps(self, count: int) -> float:
        """Takes steps; returns their seconds, device time included."""
        started = time.perf_counter()
        for _ in range(count):
            self._one()
        self._synchronize()
        return time.perf_counter() - started

    def steps_beside_a_save(self) -> tuple[int, float]:
        """Saves and takes steps until the save is on disk; returns their number and seconds."""
        started, count, before = time.perf_counter(), 0, len(self.saved)
        self.saver.save(snapshots.take(self.trainer.state), "time")
        while len(self.saved) == before or count < LEAST_STEPS:
            self._one()
            count += 1
        self._synchronize()
        return count, time.perf_counter() - started

    def _one(self) -> None:
        self.trainer._train_step(next(self._windows))
        if self.trainer.context.reporter.due(time.perf_counter()):
            self.trainer.context.reporter.flush()

    def _synchronize(self) -> None:
        if self.trainer.context.device.type != "cpu":
            torch.get_device_module(self.trainer.context.device).synchronize()

    def close(self) -> None:
        """Ends threads and workers."""
        self.saver.close()
        self.trainer.close()


def measure(bench: Bench, rounds: int) -> dict[str, Any]:
    """Measures the cost of a save in seconds per round, and its fraction at one save per minute."""
    bench.steps(WARM_UP)
    costs, processor, step_s = [], [], []
    for number in range(rounds):
        began = time.process_time()
        count, with_save = bench.steps_beside_a_save()
        between = time.process_time()
        without = bench.steps(count)
        processor.append(2 * between - began - time.process_time())
        costs.append(with_save - without)
        step_s.append(without / count)
        print(
            f"  round {number + 1}: {count} steps, {with_save:.3f} s with a save, {without:.3f} s without",
            flush=True,
        )
    shares = [cost / MINUTE_S for cost in costs]
    written = [event.seconds for event in bench.saved]
    print(
        f"  a save costs {statistics.median(costs):.3f} s: "
        f"{100 * statistics.median(shares):.2f} % at one a minute"
    )
    return {
        "rounds": rounds,
        "size_bytes": bench.saved[-1].size_bytes,
        "step_s": statistics.median(step_s),
        "written_in_s": statistics.median(written),
        "processor_s": spread(processor),
        "cost_s": spread(costs),
        "share_at_one_a_minute": spread(shares),
    }


def main() -> None:
    """Measures and writes results/saving-MODEL.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument(
        "--folder", type=Path, default=None, help="on the disk to measure; default: a temporary one"
    )
    arguments = parser.parse_args()
    flags: dict[str, tuple[str, Any]] = {
        "model.name": ("--model", arguments.model),
        "hardware.device": ("--device", arguments.device),
        "training.batch_size": ("--batch-size", arguments.batch_size),
        "checkpoint.every_minutes": ("benchmark", 1e6),
    }
    if arguments.image_size:
        flags["data.image_size"] = ("--image-size", arguments.image_size)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench = Bench(Request("fast", flags, ("speed.compile=off",), os.environ), Path(folder))
        try:
            result = measure(bench, arguments.rounds)
        finally:
            bench.close()
    save(f"saving-{arguments.model}", {"device": bench.plan.device.name, **result})


if __name__ == "__main__":
    main()
