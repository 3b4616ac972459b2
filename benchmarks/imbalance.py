"""Macro recall on classes of 1:50, with and without balanced class weights or samples, by several seeds.

python -m benchmarks.imbalance [--seeds N] [--epochs N]   # half a minute; writes results/imbalance.json

A small network is trained on images of `shapes`, 200 of every second class and 4 of each other one, by a
plain loop with mptui's loss, order of samples and metrics.
"""

from statistics import mean

import numpy as np
import torch
from torch import nn

from benchmarks.common import parser_of, save
from mptui.config.schema import TrainingConfig
from mptui.data.core.batch import Batch, Window
from mptui.data.formats.synthetic import CLASSES, Half, ShapesRequest
from mptui.data.loading.sampler import EpochOrder
from mptui.registry.samples import SampleKind
from mptui.tasks.build_task import build_task

SIDE, BATCH, LR = 20, 64, 0.05
SIDES = ("none", "class_weights", "sampler")


def draw(half: Half, common: int, rare: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws images_NCHW and labels_N."""
    labels = [label for label in range(len(CLASSES)) for _ in range(rare if label % 2 else common)]
    images = [
        ShapesRequest(0, half, label + number * len(CLASSES), SIDE, SampleKind.CLASS).read().image_HWC
        for number, label in enumerate(labels)
    ]
    return torch.tensor(np.stack(images)).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor(labels)


def network() -> nn.Module:
    """Builds two strided convolutions and a classifier."""
    blocks = [
        nn.Sequential(nn.Conv2d(few, many, 3, 2, 1), nn.BatchNorm2d(many), nn.ReLU())
        for few, many in ((3, 16), (16, 32))
    ]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(CLASSES)))


def batch_of(images: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch(images, labels, len(labels), len(labels), np.arange(len(labels)))


def window_of(batch: Batch) -> Window:
    return Window(0, batch.size, batch.valid, 0.0, 0, 1, lambda _: batch, lambda _: batch.targets)


def train(side: str, seed: int, epochs: int) -> float:
    """Trains once; returns the macro recall on balanced validation images."""
    torch.manual_seed(seed)
    (images, labels), model = draw("train", 200, 4), network()
    training = TrainingConfig(class_weights="balanced" if side == "class_weights" else None)
    task = build_task("classification", CLASSES, training, counts=labels.bincount().tolist())
    known = labels.numpy() if side == "sampler" else None
    order = EpochOrder(len(labels), BATCH, True, True, seed, known)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, weight_decay=1e-4)
    steps = epochs * (len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(epochs):
        draws = torch.from_numpy(order.of(epoch)[: order.end(0)] % len(labels))
        for start in range(0, len(draws), BATCH):
            rows = draws[start : start + BATCH]
            mirrored = (torch.rand(len(rows)) < 0.5)[:, None, None, None]
            chosen = torch.where(mirrored, images[rows].flip(3), images[rows])
            batch = batch_of(chosen, labels[rows])
            optimizer.zero_grad()
            loss = task.loss(model(chosen), batch, task.window_weight(window_of(batch)), batch.size)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    metrics, seen = task.metrics(torch.device("cpu")), batch_of(*draw("val", 25, 25))
    with torch.no_grad():
        metrics.update(model.eval()(seen.images_BCHW), seen)
    return metrics.compute()["macro_recall"]


def main() -> None:
    """Trains every side with every seed, and prints and writes the recalls."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    found = {side: [train(side, seed, options.epochs) for seed in range(options.seeds)] for side in SIDES}
    for side, recalls in found.items():
        print(f"{side:14} {mean(recalls):.3f}  {' '.join(f'{recall:.3f}' for recall in recalls)}")
    save("imbalance", {"epochs": options.epochs, "macro_recall": found})


if __name__ == "__main__":
    main()
