"""Time to an accuracy: mptui without a setting and by `fast`, beside an expert's loop, timm and torchvision.

    python -m benchmarks.time_to_accuracy DATA     # class folders train/ and val/; results/accuracy-NAME.json

Each side trains a ResNet-18 from random weights on the same images, in turns, for the same number of epochs,
and validates after each. Time counts from the start of the process, with validations. The reference is the
expert's accuracy after its last epoch, the median of the seeds: the figure of a side is the time to its
first validation at or above, and its accuracy after the last epoch. `benchmarks.learners` has the recipes of
others.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import machine, parser_of, rotate, save, spread

OURS = {"mptui": (), "mptui fast": ("--profile", "fast")}
OTHERS = ("expert", "timm", "torchvision")
SIDES = (*OURS, *OTHERS)
REFERENCE = "expert"

Curve = list[tuple[float, float]]
"""Seconds since the start of the process, and top-1 accuracy, of each validation."""


def ours(side: str, given: argparse.Namespace, seed: int, folder: Path) -> Curve:
    """Trains by `mptui run`, and returns its validations."""
    name = f"{side.replace(' ', '-')}-{seed}"
    words = [*OURS[side], "--data", str(given.data), "--model", "resnet18", "--epochs", str(given.epochs)]
    words += ["--set", f"data.image_size={given.side}", "--seed", str(seed)]
    command = [
        sys.executable,
        "-m",
        "mptui",
        "run",
        "--quiet",
        *words,
        "--runs-dir",
        str(folder),
        "--name",
        name,
    ]
    began = time.time()
    subprocess.run(command, check=True)
    events = map(json.loads, (folder / name / "events.jsonl").read_text().splitlines())
    return [
        (each["time"] - began, each["metrics"]["acc1"]) for each in events if each["event"] == "validated"
    ]


def others(side: str, given: argparse.Namespace, seed: int) -> Curve:
    """Trains by the recipe of somebody else, and returns its validations."""
    words = [str(given.data), "--side", str(given.side), "--epochs", str(given.epochs), "--seed", str(seed)]
    began, found = time.time(), []
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.learners", side, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found.append((time.time() - began, json.loads(line)["acc1"]))
    if process.returncode:
        raise SystemExit(f"{side} ended with {process.returncode}")
    return found


def reached_s(curve: Curve, accuracy: float) -> float | None:
    """Returns the seconds to the first validation at or above an accuracy; None: it was not reached."""
    return next((seconds for seconds, found in curve if found >= accuracy), None)


def figures(curves: dict[str, list[Curve]]) -> dict[str, Any]:
    """Returns the reference, and of each side its time to it, its accuracy at the end and its duration."""
    ends = {side: [curve[-1] for curve in each] for side, each in curves.items()}
    reference = statistics.median(accuracy for _, accuracy in ends[REFERENCE])
    found: dict[str, Any] = {"reference": reference, "sides": {}}
    for side, each in curves.items():
        times = [reached_s(curve, reference) for curve in each]
        found["sides"][side] = {
            "reached": sum(seconds is not None for seconds in times),
            "seconds": statistics.median(float("inf") if s is None else s for s in times),
            "accuracy": spread([accuracy for _, accuracy in ends[side]]),
            "all_seconds": spread([seconds for seconds, _ in ends[side]]),
        }
        if found["sides"][side]["seconds"] == float("inf"):
            found["sides"][side]["seconds"] = None  # most seeds did not reach it
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--side", type=int, default=32, help="height and width of the images in pixels")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    given = parser.parse_args()
    sides = list(dict.fromkeys([REFERENCE, *given.sides]))
    curves: dict[str, list[Curve]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, given.seeds + 1):
            for side in rotate(sides, seed):
                curve = ours(side, given, seed, Path(folder)) if side in OURS else others(side, given, seed)
                curves[side].append(curve)
                print(f"  {side:<12} {curve[-1][1]:.3f} after {curve[-1][0]:.0f} s", flush=True)
    asked = {key: value for key, value in vars(given).items() if key != "data"}
    document = {"machine": machine(), "asked": asked, **figures(curves), "curves": curves}
    print(json.dumps(document["sides"], indent=1))
    save(f"accuracy-{given.data.resolve().name}", document)


if __name__ == "__main__":
    main()
