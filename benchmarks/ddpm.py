"""A small diffusion model on a CPU: the time to a loss, and the loss by precision.

    python -m benchmarks.ddpm DATA     # results/ddpm.json

DATA has train/ and val/ with a folder for each class. A diffusion U-Net of width 32 and depth 2 learns its
images at 16 px to predict the noise (cosine schedule). In each round, with a seed of its own, each precision
trains it for `--epochs`. The figures are the loss on val/ after each epoch, with the averaged weights, and
the seconds of training and validation until that loss is below `--goal`. For fp16, which most CPUs only
emulate, take `--precisions fp32 fp16 --epochs 1`.

With `--grid FILE.png`, a network of the classes, with v prediction and Min-SNR weights, is then trained for
`--grid-epochs`; the file shows 100 of its images, a column for each of ten classes.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mptui
from benchmarks.common import machine, parser_of, save, spread
from mptui.lab.use.generation import GenerationRequest, make_images
from mptui.lab.use.trained import open_trained

FIXED: dict[str, Any] = {
    "model": "diffusion_unet",
    "device": "cpu",
    "workers": 0,
    "batch_size": 32,
    "lr": 1e-3,
    "model.width": 32,
    "model.depth": 2,
    "data.image_size": 16,
    "speed.channels_last": True,
    "speed.fused": True,
    "checkpoint.keep": 1,
    "guards.numerics": "off",
    "sampling.count": 0,
}
CLASSES: dict[str, Any] = {
    "precision": "fp32",
    "model.class_conditional": True,
    "training.prediction": "v",
    "training.min_snr_gamma": 5.0,
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--goal", type=float, default=0.12)
    parser.add_argument("--grid", type=Path)
    parser.add_argument("--grid-epochs", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.rounds:
            save("ddpm", _measured(given, Path(folder)))
        if given.grid is not None:
            _draw(given, Path(folder))


def _measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    losses: dict[str, list[list[float]]] = {name: [] for name in given.precisions}
    seconds: dict[str, list[float | None]] = {name: [] for name in given.precisions}
    for seed in range(given.rounds):
        for name in given.precisions:
            run = mptui.train(
                data=given.data, runs_dir=folder, seed=seed, precision=name, epochs=given.epochs, **FIXED
            )
            epochs = _epochs(run.directory)
            losses[name].append([epoch["val_loss"] for epoch in epochs])
            seconds[name].append(_seconds_to(given.goal, epochs))
            print(seed, name, [round(loss, 4) for loss in losses[name][-1]], seconds[name][-1], flush=True)
    return {
        "machine": machine(),
        "settings": {key: getattr(given, key) for key in ("rounds", "epochs", "goal")},
        "val_loss": {name: spread([each[-1] for each in found]) for name, found in losses.items()},
        "seconds_to_goal": seconds,
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


def _draw(given: argparse.Namespace, folder: Path) -> None:
    run = mptui.train(
        data=given.data, runs_dir=folder, epochs=given.grid_epochs, progress=True, **{**FIXED, **CLASSES}
    )
    request = GenerationRequest(folder=folder / "images", count=100, steps=50, seed=0, method="ancestral")
    trained = open_trained(run.directory, note=print)
    made = make_images(trained, request, on_progress=lambda done, total: None, note=print)
    shutil.copy(made.grid, given.grid)
    print(f"written: {given.grid}; {100 / made.seconds:.1f} images/s in {request.steps} steps")


if __name__ == "__main__":
    main()
