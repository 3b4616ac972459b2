"""Several processes beside a bare DistributedDataParallel loop, on one thread each.

    python -m benchmarks.scaling             # results/scaling.json

Each of two processes trains a ResNet-18 at 64 px over gloo, by the trainer's loop and by a bare loop that
gathers its own batch, in alternating blocks of the same steps; the throughput of a block is that of both
processes, which wait for each other in each step.
"""

import json
import os
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks import targets
from benchmarks.common import parser_of, ratios, save, spread, turn
from benchmarks.loop import Stepper, ours
from benchmarks.subjects import CASES, CPU, Batches, Case, Stamps, make_trainer
from mptui.engine.ranks.group import join
from mptui.hardware.host import keep_freed_memory
from mptui.processes.rank_place import rank_place

RANKS, BLOCKS, STEPS, WARM_UP = 2, 12, 8, 3
CASE = CASES["resnet18"]


def bare(case: Case) -> Stepper:
    """Returns a step of a hand-tuned loop over this process's part of each batch."""
    part = Case(case.model, case.side, case.batch // RANKS, case.classes, steps=1 << 10, channels_last=False)
    model = DistributedDataParallel(part.network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4, fused=True)
    batches = iter(Batches(part, Stamps(part)))

    def step() -> None:
        images, labels = next(batches)
        F.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def rate(step: Stepper, steps: int) -> float:
    """Returns images per second of all ranks."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    dist.barrier()
    return steps * CASE.batch / (time.perf_counter() - started)


def rank(number: int, port: int, folder: str) -> None:
    """Measures in one of the processes; the first writes the figures."""
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(RANKS)}
    os.environ |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    keep_freed_memory()
    with ExitStack() as stack:
        ranks = join(rank_place(os.environ), CPU)
        stack.callback(ranks.close)
        trainer = make_trainer(CASE, Path(folder, str(number)), stack, batches=CASE.steps, ranks=ranks)
        sides = {"mptui": ours(trainer), "bare": bare(CASE)}
        for step in sides.values():
            rate(step, WARM_UP)
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for block in range(BLOCKS):
            for name in turn(sides, block):
                figures[name].append(rate(sides[name], STEPS))
    if number == 0:
        Path(folder, "figures.json").write_text(json.dumps(figures))


def measure() -> dict[str, Any]:
    """Measures images per second of both loops, and their ratio in each block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank, (port, folder), nprocs=RANKS)  # type: ignore[no-untyped-call]
        figures = json.loads(Path(folder, "figures.json").read_text())
    found = ratios(figures["mptui"], figures["bare"])
    print(f"  over the bare loop {found}")
    rates = {name: spread(values) for name, values in figures.items()}
    return {"ranks": RANKS, "blocks": BLOCKS, "images_per_s": rates, "ratio": found}


def main() -> None:
    """Measures and writes results/scaling.json."""
    parser_of(__doc__).parse_args()
    save("scaling", {"asked_at_least": targets.RANKS, **measure()})


if __name__ == "__main__":
    main()
