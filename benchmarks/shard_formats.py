"""Sharded weights that are gathered in 16 bits, beside fp32 as memory.shard gathers them, in two processes.

    python -m benchmarks.shard_formats       # results/shard_formats.json

Each of two GPUs (NCCL) trains a ResNet-50 at 224 px under autocast in bf16, by two bare loops in alternating
blocks of the same steps; without two GPUs, two processes of a CPU train a tiny one over gloo, which tells
nothing but that it runs. Both shard each residual block by FSDP2. One gathers its weights in fp32. The other
has torch's `MixedPrecisionPolicy`: weights of convolutions come in bf16, those of the norms in fp32, in a
group of their own, so that half the bytes come in twice as many operations; both sum gradients in fp32.
"""

import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.multiprocessing.spawn import spawn

from benchmarks.common import parser_of, ratios, save, spread, turn
from benchmarks.loop import Stepper
from benchmarks.subjects import Case
from mptui.hardware.host import keep_freed_memory
from mptui.models.layers import blocks_of

RANKS, BLOCKS, STEPS, WARM_UP = 2, 12, 8, 5
IN_16_BITS = MixedPrecisionPolicy(
    param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
)


def case_of(kind: str) -> Case:
    """Returns what a rank trains on: on a GPU as large as usual, on a CPU as small as possible."""
    if kind == "cuda":
        return Case("resnet50", side=224, batch=64, classes=1000, steps=STEPS)
    return Case("resnet18", side=8, batch=2, classes=8, steps=STEPS)


def sharded(network: nn.Module, mesh: DeviceMesh, *, in_16_bits: bool) -> nn.Module:
    """Returns `network`, each of its blocks and the rest sharded."""
    policy = IN_16_BITS if in_16_bits else MixedPrecisionPolicy()
    for part in (*blocks_of(network), network):
        modules = part.modules()
        norms: list[nn.Module] = [each for each in modules if type(each) is nn.BatchNorm2d]  # not yet sharded
        if in_16_bits and norms:
            fully_shard(norms, mesh=mesh)
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=part is not network)
    return network


def stepper(case: Case, mesh: DeviceMesh, *, in_16_bits: bool) -> Stepper:
    """Returns a step of a bare loop."""
    model = sharded(case.network().to(mesh.device_type), mesh, in_16_bits=in_16_bits)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    images = torch.randn(case.batch, 3, case.side, case.side, device=mesh.device_type)
    labels = torch.arange(case.batch, device=mesh.device_type) % case.classes

    def step() -> None:
        with torch.autocast(mesh.device_type, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def rank(number: int, port: int, kind: str, folder: str) -> None:
    """Measures in one of the processes; the first writes the figures."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    keep_freed_memory()
    if kind == "cuda":
        torch.cuda.set_device(number)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", rank=number, world_size=RANKS)
    mesh, case = init_device_mesh(kind, (RANKS,)), case_of(kind)
    sides = {name: stepper(case, mesh, in_16_bits=name == "16 bits") for name in ("16 bits", "fp32")}

    def rate(step: Stepper, steps: int) -> float:
        dist.barrier()
        started = time.perf_counter()
        for _ in range(steps):
            step()
        torch.get_device_module(kind).synchronize()
        dist.barrier()
        return steps * RANKS * case.batch / (time.perf_counter() - started)

    for step in sides.values():
        rate(step, WARM_UP)
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(BLOCKS):
        for name in turn(sides, block):
            figures[name].append(rate(sides[name], STEPS))
    if number == 0:
        Path(folder, "figures.json").write_text(json.dumps(figures))
    dist.destroy_process_group()


def measure() -> dict[str, Any]:
    """Measures images per second of both, and their ratio in each block."""
    kind = "cuda" if torch.cuda.device_count() >= RANKS else "cpu"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        spawn(rank, (port, kind, folder), nprocs=RANKS)  # type: ignore[no-untyped-call]
        figures = json.loads(Path(folder, "figures.json").read_text())
    gain = ratios(figures["16 bits"], figures["fp32"])
    print(f"  16 bits over fp32 on {kind} {gain}")
    rates = {name: spread(values) for name, values in figures.items()}
    return {"device": kind, "images_per_s": rates, "ratio": gain}


def main() -> None:
    """Measures and writes results/shard_formats.json."""
    parser_of(__doc__).parse_args()
    save("shard_formats", measure())


if __name__ == "__main__":
    main()
