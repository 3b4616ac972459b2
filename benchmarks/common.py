"""Shared parts of the benchmarks: networks, machine, rounds in ABBA order, medians, JSON output."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Network:
    """A network with its image side and batch size."""

    model: str
    side: int
    batch: int


RESNET18, RESNET50 = Network("resnet18", 64, 32), Network("resnet50", 64, 16)
"""Networks for automatic choices and for compilation."""


def parser_of(manual: str | None) -> argparse.ArgumentParser:
    """Returns an argument parser whose help text is the benchmark's module docstring."""
    return argparse.ArgumentParser(description=manual, formatter_class=argparse.RawDescriptionHelpFormatter)


def machine() -> dict[str, Any]:
    """Describes the machine and its software."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].partition(":")[2].strip() if lines else name
    return {
        "cpu": name,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def turn(sides: Iterable[str], number: int) -> list[str]:
    """Orders the sides of a round as A B, B A, A B and so on, which cancels a machine's drift."""
    return list(sides)[:: 1 if number % 2 == 0 else -1]


def rotate(sides: Sequence[str], number: int) -> list[str]:
    """Orders the sides of a round if the position in it matters, the first one most.

    Each round begins with the next side, and every other round runs backwards: after as many rounds as there
    are sides, each was first once.
    """
    step = 1 if number % 2 == 0 else -1
    return [sides[(number + step * place) % len(sides)] for place in range(len(sides))]


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measures each side once per round, in the order A B, B A, A B and so on."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in turn(sides, number):
            figures[name].append(sides[name]())
            print(f"  round {number + 1}  {name:<28} {figures[name][-1]:12.3f}", flush=True)
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Returns median, minimum and maximum of ours/theirs per round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def cpu_s() -> float:
    """Returns CPU seconds of this process and its live children."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def save(name: str, document: dict[str, Any]) -> None:
    """Writes `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **document}, indent=2) + "\n")
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
