"""Time to an accuracy: mptui without a setting, by `fast` and `speedrun`, beside an expert's loop and others.

    python -m benchmarks.time_to_accuracy DATA            # train/ and val/; results/accuracy-NAME.json
    python -m benchmarks.time_to_accuracy DATA --width 16 # of masks: a U-Net of this width in place of 64

DATA has class folders, or `images` and `masks`, in train/ and val/. Each side trains the same network from
random weights on the same images, in turns, and validates after each epoch: of classes a ResNet-18, of
masks a U-Net (smp has its own). `speedrun` has epochs of its own number, all others `--epochs`. Time counts
from the start of the process, with validations. The reference is the expert's accuracy after its last
epoch, the median of the seeds: the figure of a side is the time to its first validation at or above, and
its accuracy after the last epoch; of masks the accuracy is the foreground's IoU. Sides whose package is not
installed are left out: fastai's brings spaCy and more, so it needs an environment of its own, with mptui.
`benchmarks.learners` and `benchmarks.mask_learners` have the recipes of others,
`benchmarks.accuracy_picture` draws the curves.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common import machine, parser_of, rotate, save, spread

SPEEDRUN = "mptui speedrun"
OURS = {
    "mptui": (),
    "mptui fast": ("--profile", "fast"),
    SPEEDRUN: ("--profile", "speedrun"),
}
REFERENCE = "expert"

Curve = list[tuple[float, float]]
"""Seconds since the start of the process, and the accuracy, of each validation."""


@dataclass(frozen=True)
class Kind:
    """What differs between data of classes and of masks.

    Attributes:
        metric: The accuracy, as mptui and the learners name it.
        model: The network, for `mptui run --model`.
        side: Height and width of the images in pixels where none are given.
        learners: The module of the recipes of others.
        others: Their names.
    """

    metric: str
    model: str
    side: int
    learners: str
    others: tuple[str, ...]


CLASSES = Kind("acc1", "resnet18", 32, "benchmarks.learners", (REFERENCE, "timm", "torchvision", "fastai"))
MASKS = Kind("iou", "unet", 128, "benchmarks.mask_learners", (REFERENCE, "smp"))
PACKAGES = {"timm": "timm", "fastai": "fastai", "smp": "segmentation_models_pytorch"}
"""Side -> the package that it needs."""
SIDES = tuple(dict.fromkeys((*OURS, *CLASSES.others, *MASKS.others)))


def kind_of(data: Path) -> Kind:
    """Returns the kind of a folder: masks where images have a folder `masks` beside them."""
    return MASKS if (data / "train" / "masks").is_dir() else CLASSES


def shared_words(kind: Kind, given: argparse.Namespace) -> list[str]:
    """Returns the options that all learners of a kind have."""
    words = ["--side", str(given.side or kind.side), "--epochs", str(given.epochs)]
    return [*words, "--width", str(given.width)] if kind is MASKS else words


def ours(side: str, kind: Kind, given: argparse.Namespace, seed: int, *, folder: Path) -> Curve:
    """Trains by `mptui run`, and returns its validations."""
    name = f"{side.replace(' ', '-')}-{seed}"
    words = [*OURS[side], "--data", str(given.data), "--model", kind.model]
    words += [] if side == SPEEDRUN else ["--epochs", str(given.epochs)]
    words += ["--set", f"data.image_size={given.side or kind.side}", "--seed", str(seed)]
    words += ["--set", f"model.width={given.width}"] if kind is MASKS else []
    place = ["--runs-dir", str(folder), "--name", name]
    began = time.time()
    subprocess.run([sys.executable, "-m", "mptui", "run", "--quiet", *words, *place], check=True)
    events = map(json.loads, (folder / name / "events.jsonl").read_text().splitlines())
    return [
        (each["time"] - began, each["metrics"][kind.metric])
        for each in events
        if each["event"] == "validated"
    ]


def others(side: str, kind: Kind, given: argparse.Namespace, seed: int) -> Curve:
    """Trains by the recipe of somebody else, and returns its validations."""
    words = [str(given.data), *shared_words(kind, given), "--seed", str(seed)]
    began, found = time.time(), []
    with subprocess.Popen(
        [sys.executable, "-m", kind.learners, side, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found.append((time.time() - began, json.loads(line)[kind.metric]))
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
    parser.add_argument("--side", type=int, help="height and width of the images in pixels: 32, of masks 128")
    parser.add_argument("--width", type=int, default=64, help="channels of the first level of a U-Net")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="default: all of the kind of the data")
    given = parser.parse_args()
    kind = kind_of(given.data)
    known = (*OURS, *kind.others)
    there = [side for side in known if side not in PACKAGES or find_spec(PACKAGES[side]) is not None]
    sides = list(dict.fromkeys([REFERENCE, *(given.sides or there)]))
    if foreign := [side for side in sides if side not in known]:
        parser.error(f"{', '.join(foreign)}: not for {given.data}; of {', '.join(known)}")
    curves: dict[str, list[Curve]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, given.seeds + 1):
            for side in rotate(sides, seed):
                if side in OURS:
                    curve = ours(side, kind, given, seed, folder=Path(folder))
                else:
                    curve = others(side, kind, given, seed)
                curves[side].append(curve)
                print(f"  {side:<12} {curve[-1][1]:.3f} after {curve[-1][0]:.0f} s", flush=True)
    asked = {key: value for key, value in vars(given).items() if key != "data"}
    asked |= {"side": given.side or kind.side, "sides": sides}
    document = {"machine": machine(), "metric": kind.metric, "asked": asked, **figures(curves)}
    print(json.dumps(document["sides"], indent=1))
    save(f"accuracy-{given.data.resolve().name}", {**document, "curves": curves})


if __name__ == "__main__":
    main()
