"""Macro recall on classes of 1:50, with and without balanced class weights or samples, by several seeds.

    python -m benchmarks.imbalance [--seeds N] [--epochs N]   # a minute; writes results/imbalance.json

A network of three convolutions is trained by `mptui.train` on PNG images of four classes of `shapes`: 500 of
every second class and 10 of each other one. The figure is the macro recall after the last epoch on 100 other
images of each class.
"""

import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from PIL import Image
from torch import nn

import mptui
from benchmarks.common import parser_of, save
from mptui.data.open import CLASSES, Half, ShapesRequest
from mptui.registry.names import SampleKind

COMMON, RARE, VAL, SIDE = 500, 10, 100, 32
SIDES: dict[str, dict[str, Any]] = {
    "none": {},
    "class_weights": {"training.class_weights": "balanced"},
    "sampler": {"data.sampler": "balanced"},
}
FIXED: dict[str, Any] = {
    "device": "cpu",
    "precision": "fp32",
    "workers": 0,
    "lr": 0.1,
    "data.image_size": SIDE,
    "speed.channels_last": False,
    "speed.fused": True,
    "checkpoint.keep": 1,
    "guards.numerics": "off",
}


def draw(folder: Path) -> None:
    """Writes train/ and val/ with a folder for each class."""
    halves: dict[Half, tuple[int, int]] = {"train": (COMMON, RARE), "val": (VAL, VAL)}
    for half, counts in halves.items():
        for label, name in enumerate(CLASSES[:4]):
            (folder / half / name).mkdir(parents=True)
            for number in range(counts[label % 2]):
                index = label + number * len(CLASSES)
                image = ShapesRequest(0, half, index, SIDE, SampleKind.CLASS).read().image_HWC
                Image.fromarray(image).save(folder / half / name / f"{number}.png")


def network(num_classes: int) -> nn.Module:
    """Builds three strided convolutions and a classifier."""
    blocks = [
        nn.Sequential(nn.Conv2d(few, many, 3, 2, 1), nn.BatchNorm2d(many), nn.ReLU())
        for few, many in ((3, 16), (16, 32), (32, 64))
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes))


def main() -> None:
    """Trains every side with every seed, and prints and writes the recalls."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as made:
        data, runs = Path(made, "data"), Path(made, "runs")
        draw(data)
        for seed in range(options.seeds):
            for side, settings in SIDES.items():
                given = {"runs_dir": runs, "epochs": options.epochs, "seed": seed, **FIXED, **settings}
                found[side].append(mptui.train(network, data, **given).final["macro_recall"])
                print(seed, side, found[side][-1], flush=True)
    for side, recalls in found.items():
        print(f"{side:14} {mean(recalls):.3f}  {' '.join(f'{recall:.3f}' for recall in recalls)}")
    settings = {**FIXED, "epochs": options.epochs, "classes": CLASSES[:4], "images": [COMMON, RARE]}
    save("imbalance", {"settings": settings, "macro_recall": found})


if __name__ == "__main__":
    main()
