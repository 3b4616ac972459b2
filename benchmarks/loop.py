"""Host overhead per step over a bare loop, on a tiny network whose step is nothing but host work.

    python -m benchmarks.loop                # results/loop.json

Compares an iteration of the trainer's loop, with its loader, default logging, guards and journal, to one of a
bare loop that gathers its own batch: in one process, on one thread, in alternating blocks, by the thread's
CPU time. Both have their data in memory. `peers.py` compares whole runs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import targets
from benchmarks.common import parser_of, save, turn
from benchmarks.subjects import CASES, TINY, Batches, Stamps, make_trainer, tiny_network
from mptui.data.batch import Window
from mptui.engine.guards.memory import read_windows
from mptui.engine.trainer import Trainer
from mptui.hardware.host import keep_freed_memory

BLOCKS = 60
STEPS = 100
CASE = CASES[TINY]

Stepper = Callable[[], None]


def ours(trainer: Trainer) -> Stepper:
    """Returns an iteration of `Trainer._train_epoch`, over one epoch after the other."""
    trainer.context.model.train()
    trainer.context.enter("training")

    def epochs() -> Iterator[Window]:
        for epoch in count():
            yield from trainer.context.job.train_loader.windows(epoch, 1)

    windows = read_windows(trainer.context, epochs)

    def step() -> None:
        window = next(windows)
        trainer._train_step(window)
        trainer.state.cursor.sample = window.next_sample
        trainer._between_steps()

    return step


def bare() -> Stepper:
    """Returns an iteration of a hand-tuned tutorial loop."""
    model, data = tiny_network(), Batches(CASE, Stamps(CASE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    batches = (batch for _ in count() for batch in data)

    def step() -> None:
        images, targets = next(batches)
        torch.autograd.backward(F.cross_entropy(model(images), targets))
        optimizer.step()
        optimizer.zero_grad()

    return step


def microseconds(step: Stepper) -> float:
    """Returns CPU time of this thread per step."""
    started = time.thread_time()
    for _ in range(STEPS):
        step()
    return (time.thread_time() - started) / STEPS * 1e6


def measure() -> dict[str, Any]:
    """Measures microseconds per step of both, and the overhead of ours in each block."""
    torch.set_num_threads(1)  # nothing here is large enough for a second one
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trainer = make_trainer(CASE, Path(folder, "run"), stack, batches=CASE.steps)
        sides = {"mptui": ours(trainer), "bare": bare()}
        for step in sides.values():
            microseconds(step)  # warm-up
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(BLOCKS):
            for name in turn(sides, number):
                figures[name].append(microseconds(sides[name]))
    over = [a - b for a, b in zip(figures["mptui"], figures["bare"], strict=True)]
    medians = {name: statistics.median(values) for name, values in figures.items()}
    quartiles = statistics.quantiles(over, n=4)
    print(f"  {medians}; over the bare loop {quartiles[1]:.1f} us ({quartiles[0]:.1f} to {quartiles[2]:.1f})")
    return {"blocks": BLOCKS, "median_us": medians, "over_bare_us_quartiles": quartiles}


def main() -> None:
    """Measures and writes results/loop.json."""
    parser_of(__doc__).parse_args()
    save("loop", {"asked_at_most_us": targets.LOOP_TINY_US, **measure()})


if __name__ == "__main__":
    main()
