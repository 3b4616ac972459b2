"""Fine-tuning against training from scratch on few images.

    python -m benchmarks.fine_tuning DATA     # results/fine_tuning.json

DATA has train/ and val/ with a folder for each class. In each round `--images` training images, equally many
of each class, are the target. A ResNet-18 is pretrained on the other training images of all classes but the
first `--unseen`, so that no image is in both sets, some classes are new, and the head is for another number
of classes. The target is then learnt from random weights, with the pretrained backbone frozen, by the profile
`finetune`, and by the rates of others (`OTHERS`), for the same number of epochs. The first two take the
learning rate of `--rates` that is the best for them. The figure is the accuracy on val/, all classes, after
the last epoch.
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
_EACH = {"training.clip_grad_norm": 1.0, "training.warmup_epochs": 1.0, "training.lr_scaling": "sqrt"}
OTHERS: dict[str, dict[str, Any]] = {
    "LightlyTrain": {
        **_EACH,
        "training.optimizer": "adamw",
        "lr": 3e-4,
        "training.lr_batch_size": 16,
        "training.weight_decay": 1e-4,
        "training.clip_grad_norm": 3.0,
    },
    "AutoGluon": {
        **_EACH,
        "training.optimizer": "adamw",
        "lr": 1e-4,
        "training.lr_batch_size": 128,
        "training.layer_decay": 0.9,
        "training.weight_decay": 1e-3,
    },
    "BiT": {
        "training.optimizer": "sgd",
        "lr": 0.003,
        "training.weight_decay": 0.0,
        "training.warmup_epochs": 1.0,
    },
}
"""The recipes by their documentation, with a cosine and their rate at our batch; BiT's is not scaled."""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--unseen", type=int, default=2)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--pretrain-epochs", type=int, default=20)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.05])
    with tempfile.TemporaryDirectory() as folder:
        save("fine_tuning", _measured(parser.parse_args(), Path(folder)))


def _measured(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found: dict[str, list[list[float]]] = {"pretrained": []}
    for seed in range(given.rounds):
        target, source = _link(given, folder / str(seed), seed)
        fixed = {"runs_dir": folder / "runs", "seed": seed, **FIXED}
        pretrained = mptui.train(data=source, lr=0.02, epochs=given.pretrain_epochs, **fixed)
        found["pretrained"].append([pretrained.summary["final"]["acc1"]])
        for side, settings in _sides(pretrained.directory, given.rates).items():
            each = [
                mptui.train(data=target, **{**fixed, "epochs": given.epochs, **own}).summary["final"]["acc1"]
                for own in settings
            ]
            found.setdefault(side, []).append(each)
            print(seed, side, each, flush=True)
    best = {side: max(zip(*accuracies, strict=True), key=sum) for side, accuracies in found.items()}
    return {
        "machine": machine(),
        "settings": {key: value for key, value in vars(given).items() if key != "data"},
        "acc1": {side: spread(accuracies) for side, accuracies in best.items()},
        "rounds": found,
    }


def _sides(pretrained: Path, rates: list[float]) -> dict[str, list[dict[str, Any]]]:
    weights = {"weights": str(pretrained / "checkpoints/best/model.safetensors")}
    return {
        "scratch": [{"lr": rate} for rate in rates],
        "frozen backbone": [{"lr": rate, **weights, "training.freeze": "backbone"} for rate in rates],
        "finetune": [{"profile": "finetune", **weights}],
        "a third of its rate": [
            {"profile": "finetune", "lr": 1e-3 / 3, "training.lr_batch_size": 64, **weights}
        ],
        **{name: [{**recipe, **weights}] for name, recipe in OTHERS.items()},
    }


def _link(given: argparse.Namespace, to: Path, seed: int) -> tuple[Path, Path]:
    """Link the images of the target and of the source; return their folders."""
    target, source = to / "target", to / "source"
    names = sorted(path.name for path in (given.data / "train").iterdir())
    for number, name in enumerate(names):
        files = sorted((given.data / "train" / name).iterdir())
        random.Random(f"{seed} {name}").shuffle(files)
        val = sorted((given.data / "val" / name).iterdir())
        each = given.images // len(names)
        parts = {target / "train": files[:each], target / "val": val}
        if number >= given.unseen:
            parts |= {source / "train": files[each:], source / "val": val}
        for part, chosen in parts.items():
            (part / name).mkdir(parents=True)
            for file in chosen:
                (part / name / file.name).symlink_to(file.resolve())
    return target, source


if __name__ == "__main__":
    main()
