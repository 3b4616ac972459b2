"""What torch.compile costs before the first step, the first time and every time after, and what it gains.

    python -m benchmarks.compiling                      # results/compiling.json
    python -m benchmarks.compiling --case resnet50 --rounds 3
    python -m benchmarks.compiling --blocks             # whole networks against repeated blocks

A round is four fresh processes of `mptui run`: compiled with an empty cache folder, compiled again with what
that one kept, and, alternated with the second, uncompiled. A start counts from the beginning of training to
the end of its first step; the validation compiles once more. With `--blocks`: a bare loop in fresh processes,
which compiles the network whole or each of its repeated blocks.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.common import RESNET18, RESNET50, Network, ratios, save, turn
from mptui.events import PhaseChanged
from mptui.runs.journal import read_journal

STEPS = 40
CACHE = "TORCHINDUCTOR_CACHE_DIR"


CASES = {"resnet18": RESNET18, "resnet50": RESNET50, "vit": Network("vit_b_16", 64, 8)}


def one_run(case: Network, cache: Path, *, compiled: bool) -> dict[str, float]:
    """A run in a process of its own; its seconds to the first step, in validation compiles, and a step."""
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
    """Starts with an empty and with a kept cache, and steps compiled and not, in the order A B B A."""
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


def bare_start(case: Network, how: str) -> dict[str, float]:
    """A bare loop in this process: seconds of the first compiled step, and of one after it."""
    import torch
    import torchvision
    from torch.nn import functional as F

    torch.manual_seed(0)
    extra = {"image_size": case.side} if case.model.startswith("vit") else {}
    model = getattr(torchvision.models, case.model)(num_classes=10, **extra)
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(case.batch, 3, case.side, case.side).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (case.batch,))

    def step() -> float:
        started = time.perf_counter()
        model.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(images), labels))
        return time.perf_counter() - started

    if how == "whole":
        model.compile()
    elif how == "blocks":
        torch._dynamo.config.recompile_limit = 64
        for module in model.modules():
            if type(module).__name__ in {"EncoderBlock", "Bottleneck", "BasicBlock"}:
                module.compile()
    first = step()
    return {"start_s": first, "step_s": statistics.median(step() for _ in range(10))}


def measure_blocks(name: str, rounds: int) -> dict[str, Any]:
    """Whole against blocks, with empty and with kept caches."""
    figures: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds):
        for how in turn(("whole", "blocks"), number):
            with tempfile.TemporaryDirectory() as cache:
                for start in ("first", "again"):
                    child = subprocess.run(
                        [sys.executable, "-m", "benchmarks.compiling", "--bare", how, "--case", name],
                        env={**os.environ, CACHE: cache},
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    figures.setdefault(f"{how} {start}", []).append(json.loads(child.stdout.splitlines()[-1]))
                    print(
                        f"  round {number + 1}  {how} {start:<6} {figures[f'{how} {start}'][-1]}", flush=True
                    )
    return {
        **figures,
        "blocks_over_whole": {
            start: _ratios(figures[f"blocks {start}"], figures[f"whole {start}"], "start_s")
            for start in ("first", "again")
        },
        "blocks_over_whole_step": _ratios(figures["blocks again"], figures["whole again"], "step_s"),
    }


def main() -> None:
    """Measure, and write results/compiling.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=list(CASES))
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--bare", choices=["whole", "blocks"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        print(json.dumps(bare_start(CASES[arguments.case], arguments.bare)))
        return
    document: dict[str, Any] = {"rounds": arguments.rounds}
    for name in [arguments.case] if arguments.case else [n for n in CASES if arguments.blocks or n != "vit"]:
        print(name)
        document[name] = (
            measure_blocks(name, arguments.rounds)
            if arguments.blocks
            else measure(CASES[name], arguments.rounds)
        )
    title = "compiling-blocks" if arguments.blocks else "compiling"
    save(f"{title}-{arguments.case}" if arguments.case else title, document)


if __name__ == "__main__":
    main()
