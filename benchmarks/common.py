"""What the benchmarks share: networks, the machine, rounds in ABBA order, medians, the JSON they leave."""

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
    """A network at the side of its images and its batch."""

    model: str
    side: int
    batch: int


RESNET18, RESNET50 = Network("resnet18", 64, 32), Network("resnet50", 64, 16)
"""Those that a run is asked to choose and to compile for."""


def parser_of(manual: str | None) -> argparse.ArgumentParser:
    """A parser of the arguments of a benchmark, whose module's docstring is its manual."""
    return argparse.ArgumentParser(description=manual, formatter_class=argparse.RawDescriptionHelpFormatter)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
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
    """The sides in the order of a round: A B, B A, A B and so on, so that a machine's drift favours none."""
    return list(sides)[:: 1 if number % 2 == 0 else -1]


def rotate(sides: Sequence[str], number: int) -> list[str]:
    """The sides in the order of a round where a place in it counts, and being the first one most.

    Each round begins with the next side, and every other one goes backwards from there: after as many rounds
    as there are sides, each was the first once.
    """
    step = 1 if number % 2 == 0 else -1
    return [sides[(number + step * place) % len(sides)] for place in range(len(sides))]


def alternate(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each side once a round, in the order A B, B A, A B and so on."""
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in turn(sides, number):
            figures[name].append(sides[name]())
            print(f"  round {number + 1}  {name:<28} {figures[name][-1]:12.3f}", flush=True)
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest of ours/theirs, round by round."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def cpu_s() -> float:
    """CPU seconds of this process and its children, all alive."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


def save(name: str, document: dict[str, Any]) -> None:
    """Write `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **document}, indent=2) + "\n")
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
