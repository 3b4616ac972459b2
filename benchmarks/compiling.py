"""Cost of torch.compile before the first step, with an empty and a warm cache, and its speedup.

    python -m benchmarks.compiling                      # results/compiling.json
    python -m benchmarks.compiling --case resnet50 --rounds 3
    python -m benchmarks.compiling --blocks             # regional compilation against the whole network

A round is four fresh processes of `mptui run`: compiled with an empty cache folder, compiled again with
that cache, and, alternating with the second, uncompiled. Start time is from the beginning of training to
the end of its first step; validation adds another compilation.

With `--blocks`, a bare loop compiles a ViT whole, or block by block with shared code: torch's recipe
(https://docs.pytorch.org/tutorials/recipes/regional_compilation.html). Starts are measured in fresh
processes, steps alternate within one. Of `torch.compiler.nested_compile_region` only the gradients are
checked: on a CPU with torch 2.15 Inductor's gradients for it are wrong, without any warning.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import RESNET18, RESNET50, Network, parser_of, ratios, save, spread, turn
from mptui.events import PhaseChanged
from mptui.hardware.host import keep_freed_memory
from mptui.runs.store.journal import read_journal

if TYPE_CHECKING:
    import torch

STEPS = 40
BARE_STEPS = 16
PAIRS = 24
CACHE = "TORCHINDUCTOR_CACHE_DIR"


CASES = {"resnet18": RESNET18, "resnet50": RESNET50, "vit": Network("vit_b_16", 64, 8)}


def one_run(case: Network, cache: Path, *, compiled: bool) -> dict[str, float]:
    """Trains in a fresh process; returns seconds to the first step, of validation compiles, and per step."""
    with tempfile.TemporaryDirectory() as runs:
        flags = ["--model", case.model, "--batch-size", str(case.batch), "--max-steps", str(STEPS)]
        settings = {
            "data.image_size": case.side,
            "data.samples": case.batch * STEPS,
            "data.cache": "device",
            "data.augment": "none",
            "precision.mode": "fp32",
            "speed.channels_last": "true",
            "speed.fused": "true",
            "guards.numerics": "off",
        }
        flags += [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
        flags += ["--compile" if compiled else "--no-compile", "--runs-dir", runs, "--name", "run", "--json"]
        environ = {name: value for name, value in os.environ.items() if name != CACHE}
        told = subprocess.run(
            [sys.executable, "-m", "mptui", "run", *flags],
            env={**environ, "XDG_CACHE_HOME": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        )
        summary = json.loads(told.stdout)
        events = list(read_journal(Path(runs) / "run"))
    phases = [event for event in events if isinstance(event, PhaseChanged)]
    validation = [
        after.time - before.time
        for before, after in pairwise(phases)
        if before.phase == "compiling" and "validation" in before.detail
    ]
    return {
        "start_s": summary["time"]["first_step_s"],
        "validation_s": sum(validation),
        "step_s": case.batch / summary["samples_per_second"],
    }


def measure(case: Network, rounds: int) -> dict[str, Any]:
    """Measures starts with an empty and a warm cache, and steps compiled and not, in the order A B B A."""
    figures: dict[str, list[dict[str, float]]] = {"first": [], "again": [], "eager": []}
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            order = ["first", "again", "eager"] if number % 2 == 0 else ["eager", "first", "again"]
            for name in order:
                figures[name].append(one_run(case, cache, compiled=name != "eager"))
                print(f"  round {number + 1}  {name:<6} {figures[name][-1]}", flush=True)
    start = _ratios(figures["again"], figures["first"], "start_s")
    validation = _ratios(figures["again"], figures["first"], "validation_s")
    step = _ratios(figures["eager"], figures["again"], "step_s")
    print(f"  second start over first: {start}; of the validation: {validation}; eager step: {step}")
    return {**figures, "second_start": start, "second_validation": validation, "eager_over_compiled": step}


def _ratios(ours: list[dict[str, float]], theirs: list[dict[str, float]], name: str) -> dict[str, float]:
    return ratios([each[name] for each in ours], [each[name] for each in theirs])


class Bare:
    """A bare training loop for a ViT, with one way of compilation or none."""

    def __init__(self, how: str) -> None:
        import torch
        import torchvision

        case = CASES["vit"]
        torch.manual_seed(0)
        self.model = torchvision.models.vit_b_16(num_classes=10, image_size=case.side)
        torch.nn.init.normal_(self.model.heads.head.weight, std=0.02)  # initially zero, with zero gradients
        self._images = torch.randn(case.batch, 3, case.side, case.side)
        self._labels = torch.randint(10, (case.batch,))
        blocks = list(self.model.encoder.layers)
        if how == "blocks":
            for block in blocks:
                block.compile()
                block._compiled_call_impl = _in_one_layout(block._compiled_call_impl)
            return
        if how == "nested":
            kind = type(blocks[0])
            kind.forward = torch.compiler.nested_compile_region(kind.forward)
        if how != "eager":
            self.model.compile()

    def step(self) -> float:
        """Returns the seconds of a forward and a backward pass."""
        import torch
        from torch.nn import functional as F

        started = time.perf_counter()
        self.model.zero_grad()
        torch.autograd.backward(F.cross_entropy(self.model(self._images), self._labels))
        return time.perf_counter() - started

    def gradients(self) -> "torch.Tensor":
        """Returns all gradients of the last step, concatenated."""
        import torch

        weights = self.model.parameters()
        return torch.cat([(torch.zeros_like(w) if w.grad is None else w.grad).flatten() for w in weights])


def _in_one_layout(compiled: Any) -> Any:  # noqa: ANN401 - what a block is called with
    """Makes the first block's input contiguous; permuted, it would be compiled separately."""
    return lambda tokens: compiled(tokens.contiguous())


def bare_start(how: str) -> dict[str, float]:
    """Measures seconds of the first compiled step and of a later one, peak memory, gradients.

    `gradient_error` is the L2 distance from the eager gradients, relative to their norm.
    """
    loop = Bare(how)
    told = {"start_s": loop.step(), "step_s": statistics.median(loop.step() for _ in range(BARE_STEPS))}
    told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    eager = Bare("eager")
    eager.step()
    right = eager.gradients()
    return {**told, "gradient_error": float((loop.gradients() - right).norm() / right.norm())}


def bare_steps() -> dict[str, float]:
    """Measures in this process: step time of each way relative to the whole network, alternating."""
    loops = {how: Bare(how) for how in ("whole", "blocks", "eager")}
    for loop in loops.values():
        loop.step()
        loop.step()
    seconds: dict[str, list[float]] = {how: [] for how in loops}
    for number in range(PAIRS):
        for how in turn(loops, number):
            seconds[how].append(loops[how].step())
            loops[how].model.zero_grad()
    return {
        how: statistics.median(a / b for a, b in zip(seconds[how], seconds["whole"], strict=True))
        for how in ("blocks", "eager")
    }


def measure_blocks(rounds: int) -> dict[str, Any]:
    """Compares whole and blocks: starts with empty and warm caches, and steps; nested regions once."""
    starts: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as kept:
        for number in range(rounds):
            for how in turn(("whole", "blocks"), number):
                with tempfile.TemporaryDirectory() as cache:
                    for start in ("first", "again"):
                        starts.setdefault(f"{how} {start}", []).append(_bare(how, cache))
        steps = [_bare("steps", kept) for _ in range(rounds)]
        starts["nested first"] = [_bare("nested", kept)]
    return told_of_blocks(starts, steps)


def _bare(what: str, cache: str) -> dict[str, float]:
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.compiling", "--bare", what],
        env={**os.environ, CACHE: cache},
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    print(f"  {what} {figures}", flush=True)
    return figures


def told_of_blocks(
    starts: Mapping[str, list[dict[str, float]]], steps: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Returns the figures with the ratios that the page shows."""
    return {
        **starts,
        "steps_over_whole": steps,
        "blocks_over_whole": {
            start: _ratios(starts[f"blocks {start}"], starts[f"whole {start}"], "start_s")
            for start in ("first", "again")
        },
        "blocks_over_whole_step": spread([each["blocks"] for each in steps]),
        "eager_over_whole_step": spread([each["eager"] for each in steps]),
        "blocks_over_whole_memory": _ratios(starts["blocks again"], starts["whole again"], "peak_mib"),
        "gradient_error": {
            how: max(each["gradient_error"] for each in starts[f"{how} first"])
            for how in ("whole", "blocks", "nested")
        },
    }


def main() -> None:
    """Measures and writes results/compiling.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=list(CASES))
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--bare", choices=["whole", "blocks", "nested", "steps"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        keep_freed_memory()
        print(json.dumps(bare_steps() if arguments.bare == "steps" else bare_start(arguments.bare)))
        return
    document: dict[str, Any] = {"rounds": arguments.rounds}
    if arguments.blocks:
        save("compiling-blocks", {**document, "vit": measure_blocks(arguments.rounds)})
        return
    for name in [arguments.case] if arguments.case else [n for n in CASES if n != "vit"]:
        print(name)
        document[name] = measure(CASES[name], arguments.rounds)
    save(f"compiling-{arguments.case}" if arguments.case else "compiling", document)


if __name__ == "__main__":
    main()
