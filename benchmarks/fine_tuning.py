"""Fine-tuning against training from scratch on few images.

    python -m benchmarks.fine_tuning DATA --rounds 3     # results/fine_tuning.json

DATA has train/ and val/ with a folder for each class. A ResNet-18 is pretrained on the classes after the
first `--classes`. Those first ones, with `--images` training images in all, are then learnt from random
weights, with the pretrained backbone frozen, and by the profile `finetune`, for the same number of epochs.
The two sets must differ in their number of classes: else the pretrained head is kept. Sides other than
`finetune` take the learning rate of `--rates` that is the best for them. The figure is the accuracy on val/
after the last epoch, with other random weights, order and images in each round.
"""

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import mptui
from benchmarks.common import machine, parser_of, save, spread

FIXED: dict[str, Any] = {
    "model": "resnet18",
    "device": "cpu",
    "precision": "fp32",
    "workers": 0,
    "batch_size": 20,
    "data.image_size": 32,
    "data.crop_scale": [0.7, 1.0],
    "speed.channels_last": False,
    "speed.fused": True,
    "checkpoint.keep": 1,
    "guards.numerics": "off",
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--pretrain-epochs", type=int, default=12)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.05])
    with tempfile.TemporaryDirectory() as folder:
        save("fine_tuning", _measured(parser.parse_args(), Path(folder)))


def _measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    names = sorted(path.name for path in (given.data / "train").iterdir())
    source, target = names[given.classes :], names[: given.classes]
    runs = folder / "runs"
    _link(given.data, folder / "source", source, each=None, seed=0)
    pretrained = mptui.train(
        data=folder / "source", runs_dir=runs, lr=0.05, epochs=given.pretrain_epochs, **FIXED
    )
    weights = {"weights": str(next(pretrained.directory.glob("checkpoints/best/model.safetensors")))}
    print("pretrained", pretrained.summary["final"], flush=True)
    rates = [{"lr": rate} for rate in given.rates]
    sides: dict[str, list[dict[str, Any]]] = {
        "scratch": rates,
        "frozen backbone": [{**each, **weights, "training.freeze": "backbone"} for each in rates],
        "finetune": [{"profile": "finetune", **weights}],
    }
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for seed in range(given.rounds):
        data = folder / f"target{seed}"
        _link(given.data, data, target, each=given.images // len(target), seed=seed)
        for side, settings in sides.items():
            each = {"data": data, "runs_dir": runs, "epochs": given.epochs, "seed": seed, **FIXED}
            found[side].append([mptui.train(**{**each, **own}).summary["final"]["acc1"] for own in settings])
            print(seed, side, found[side][-1], flush=True)
    best = {side: max(zip(*accuracies, strict=True), key=sum) for side, accuracies in found.items()}
    return {
        "machine": machine(),
        "settings": {key: str(value) for key, value in vars(given).items() if key != "data"},
        "pretrained": {"classes": source, "acc1": pretrained.summary["final"]["acc1"]},
        "classes": target,
        "acc1": {side: spread(accuracies) for side, accuracies in best.items()},
        "rounds": found,
    }


def _link(data: Path, to: Path, names: list[str], *, each: int | None, seed: int) -> None:
    """Link classes, with `each` of their training images, chosen at random; None: all."""
    for part in ("train", "val"):
        for name in names:
            files = sorted((data / part / name).iterdir())
            if part == "train" and each is not None:
                files = random.Random(seed).sample(files, each)
            (to / part / name).mkdir(parents=True)
            for file in files:
                (to / part / name / file.name).symlink_to(file.resolve())


if __name__ == "__main__":
    main()
