"""A small diffusion model on a CPU: the time to a loss, the loss by precision, images and their quality.

    python -m benchmarks.ddpm DATA                       # results/ddpm-wide.json, ddpm-narrow.json
    python -m benchmarks.ddpm DATA --grid FILE.png       # results/ddpm-images.json

DATA has train/ and val/ with a folder for each class. A diffusion U-Net of depth 2 learns its images at 16 px
to predict the noise (cosine schedule). In each round, with a seed of its own, each precision trains it. The
loss is that on val/ after each epoch, with the averaged weights.

First, at a width of 32, fp32 and bf16: the seconds of training and validation until the loss is below
`--goal`. Then, at a width of 16 and for fewer epochs, fp16 as well, which most CPUs convolve in by a slow
kernel: ten times the time of fp32.

With `--grid`, a network of the classes, with v prediction and Min-SNR weights, is trained for `--grid-epochs`
instead. The file shows 100 of its images, a column for each of ten classes. A ResNet-18 of the same data then
gives features, and by these precision and recall of as many images as val/ has.

Both commands together take about 18 minutes of processor time.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import mptui
from benchmarks.common import parser_of, ratios, save, spread, turn
from mptui.data.pictures import grid
from mptui.lab.use.sample import GenerationRequest, image_quality, make_images, open_features
from mptui.lab.use.trained import open_trained

FIXED: dict[str, Any] = {
    "model": "diffusion_unet",
    "device": "cpu",
    "workers": 0,
    "batch_size": 32,
    "lr": 1e-3,
    "model.depth": 2,
    "data.image_size": 16,
    "speed.channels_last": True,
    "speed.fused": True,
    "checkpoint.keep": 1,
    "guards.numerics": "off",
    "sampling.count": 0,
}
WIDE, NARROW = {"model.width": 32}, {"model.width": 16}
CLASSES: dict[str, Any] = {
    **WIDE,
    "precision": "fp32",
    "model.class_conditional": True,
    "training.prediction": "v",
    "training.min_snr_gamma": 5.0,
}


CLASSIFIER: dict[str, Any] = {
    "model": "resnet18",
    "device": "cpu",
    "workers": 0,
    "batch_size": 32,
    "training.optimizer": "adamw",
    "lr": 1e-3,
    "precision": "fp32",
    "data.image_size": 32,
    "checkpoint.keep": 1,
    "guards.numerics": "off",
}
ENLARGED = 3
"""Factor of the grid's sides."""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", choices=("wide", "narrow"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--narrow-epochs", type=int, default=1)
    parser.add_argument("--goal", type=float, default=0.12)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--grid-epochs", type=int, default=40)
    parser.add_argument("--classifier-epochs", type=int, default=6)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.grid is not None:
            save("ddpm-images", _images(given, Path(folder)))
        elif given.only != "narrow":
            save("ddpm-wide", _measured(given, Path(folder), given.epochs, WIDE, ("fp32", "bf16")))
        if given.grid is None and given.only != "wide":
            formats = ("fp32", "bf16", "fp16")
            save("ddpm-narrow", _measured(given, Path(folder), given.narrow_epochs, NARROW, formats))


def _measured(
    given: argparse.Namespace,
    folder: Path,
    epochs: int,
    network: dict[str, Any],
    precisions: tuple[str, ...],
) -> dict[str, Any]:
    losses: dict[str, list[list[float]]] = {name: [] for name in precisions}
    seconds: dict[str, list[float]] = {name: [] for name in precisions}
    to_goal: dict[str, list[float | None]] = {name: [] for name in precisions}
    for seed in range(given.rounds):
        for name in turn(precisions, seed):
            settings = {**FIXED, **network, "seed": seed, "precision": name, "epochs": epochs}
            run = mptui.train(data=given.data, runs_dir=folder, **settings)
            found = _epochs(run.directory)
            losses[name].append([epoch["val_loss"] for epoch in found])
            seconds[name].append(sum(epoch["seconds"] for epoch in found))
            to_goal[name].append(_seconds_to(given.goal, found))
            print(f"  seed {seed}  {name}  {losses[name][-1]}  {seconds[name][-1]:.0f} s", flush=True)
    return {
        "settings": {**network, "epochs": epochs, "rounds": given.rounds},
        "val_loss": {name: spread([each[-1] for each in found]) for name, found in losses.items()},
        "over_fp32": {
            name: ratios([each[-1] for each in found], [each[-1] for each in losses["fp32"]])
            for name, found in losses.items()
            if name != "fp32"
        },
        "seconds": seconds,
        "seconds_to_goal": to_goal,
        "rounds": losses,
    }


def _epochs(run: Path) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [record for record in records if record["event"] == "epoch_finished"]


def _seconds_to(goal: float, epochs: list[dict[str, Any]]) -> float | None:
    total = 0.0
    for epoch in epochs:
        total += float(epoch["seconds"])
        if epoch["val_loss"] < goal:
            return round(total, 1)
    return None


def _images(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    settings = {"data": given.data, "runs_dir": folder, "progress": True}
    run = mptui.train(epochs=given.grid_epochs, **settings, **{**FIXED, **CLASSES})
    other = mptui.train(epochs=given.classifier_epochs, **settings, **CLASSIFIER)
    classifier = open_features(other.directory, "cpu", note=print, trust_code=False)
    trained = open_trained(run.directory, note=print)
    request = GenerationRequest(
        folder=folder / "images", count=given.count, steps=given.steps, seed=0, method="ancestral"
    )
    made = make_images(trained, request, on_progress=_unheard, note=print)
    quality = image_quality(trained, classifier, made.files, on_progress=_unheard, note=print)
    _save_grid(made.files[:100], given.grid)
    return {
        "settings": {**CLASSES, "epochs": given.grid_epochs, "steps": given.steps, "count": given.count},
        "seconds_of_training": sum(epoch["seconds"] for epoch in _epochs(run.directory)),
        "classifier_acc1": _epochs(other.directory)[-1]["val_metrics"]["acc1"],
        "images_per_second": given.count / made.seconds,
        **quality.made._asdict(),
        "training_images": quality.training._asdict(),
        "compared": quality.images,
    }


def _save_grid(files: list[Path], path: Path) -> None:
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    sheet = Image.fromarray(grid(pixels, columns=10))
    sheet.resize((ENLARGED * sheet.width, ENLARGED * sheet.height), Image.Resampling.NEAREST).save(path)
    print(f"written: {path}")


def _unheard(_done: int, _total: int) -> None:
    pass


if __name__ == "__main__":
    main()
