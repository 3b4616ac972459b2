"""`mptui run` beside a bare loop: same model, batch, dtype and threads, data resident on the device.

    python -m benchmarks.loop                # ResNet-18 at 64 px, a small U-Net at 128 px, the tiny network
    python -m benchmarks.loop --only tiny    # the host's work a step, in microseconds

Of the two networks each figure is a fresh process, timed over the same steps after the warm-up (`sides.py`
has both, `peers.py` the others). The tiny network is all host's work: the trainer's step with its default
logging and journal beside the bare loop's over the same window, in one process, on one thread, in blocks that
alternate.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import asked
from benchmarks.common import alternate, ratios, save, turn
from benchmarks.sides import figures
from benchmarks.subjects import CASES, TINY, Case, make_trainer, tiny_network

TINY_BLOCKS = 60
TINY_STEPS = 100


def measure_tiny() -> dict[str, Any]:
    """The host's work a step over the bare loop: thread CPU time, in blocks of steps that alternate."""
    torch.set_num_threads(1)  # nothing here is large enough for a second one
    model = tiny_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trainer = make_trainer(CASES[TINY], Path(folder, "run"), stack)
        window = next(iter(trainer.job.train_loader.windows(0, 1)))

        def bare() -> None:
            for batch in window:
                torch.autograd.backward(F.cross_entropy(model(batch.images_BCHW), batch.targets))
            optimizer.step()
            optimizer.zero_grad()

        def mptui() -> None:
            trainer._step(window)
            if trainer.mailbox or trainer.reporter.due(time.perf_counter()):
                trainer.reporter.flush()

        sides = {"mptui": mptui, "bare": bare}
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(TINY_BLOCKS):
            for name in turn(sides, number):
                figures[name].append(_microseconds(sides[name]))
    over = [a - b for a, b in zip(figures["mptui"], figures["bare"], strict=True)]
    result = {name: statistics.median(values) for name, values in figures.items()}
    quartiles = statistics.quantiles(over, n=4)
    print(f"  {result}; over the bare loop {quartiles[1]:.1f} us ({quartiles[0]:.1f} to {quartiles[2]:.1f})")
    return {
        "blocks": TINY_BLOCKS,
        "median_us": result,
        "over_bare_us_quartiles": quartiles,
        "asked_at_most_us": asked.LOOP_TINY_US,
    }


def _microseconds(step: Callable[[], None]) -> float:
    started = time.thread_time()
    for _ in range(TINY_STEPS):
        step()
    return (time.thread_time() - started) / TINY_STEPS * 1e6


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """The ratio of images a second, `mptui run` over the bare loop."""

    def rate(side: str) -> float:
        return case.batch / float(figures(side, case)["wall_s"])

    rates = alternate({"mptui": lambda: rate("mptui"), "bare": lambda: rate("bare")}, rounds)
    ratio = ratios(rates["mptui"], rates["bare"])
    print(f"  mptui over bare: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")
    return {**rates, "ratio": ratio, "asked": asked.LOOP}


def main() -> None:
    """Measure, and write results/loop.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"rounds": arguments.rounds}
    for name in [arguments.only] if arguments.only else CASES:
        print(name)
        case = replace(CASES[name], device=arguments.device)
        document[name] = measure_tiny() if name == TINY else measure(case, arguments.rounds)
    save(f"loop-{arguments.only}" if arguments.only else "loop", document)


if __name__ == "__main__":
    main()
