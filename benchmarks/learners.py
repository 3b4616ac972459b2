"""Recipes of others for images in class folders: each trains a ResNet-18 and prints a line a validation.

    python -m benchmarks.learners expert DATA --side 32 --epochs 10 --seed 1

expert: what a person who knows the field writes in 40 lines, all images in memory. timm: the parts and the
defaults of its train script. torchvision: those of its reference for classification, but for as many workers.
fastai: `fit_one_cycle` with its defaults; its package brings spaCy and many others, so that it has an
environment of its own (it runs beside torch 2.14, with fastprogress below 1.1).
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import datasets, models, transforms

from mptui.hardware.devices import find_machine, select_device

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FORMATS = select_device("auto", find_machine(with_torch=True)).native
HALF = torch.autocast(DEVICE.type, torch.bfloat16, enabled=FORMATS.get("bf16") == "native")
"""Emulated, it is slower than FP32."""

Batches = Iterable[tuple[Tensor, Tensor]]


def told(epoch: int, model: nn.Module, batches: Batches) -> None:
    """Validates, and prints the epoch and its top-1 accuracy as a line of JSON."""
    model.eval()
    hits = count = 0
    with torch.inference_mode(), HALF:
        for images, labels in batches:
            found = model(images.to(DEVICE, memory_format=torch.channels_last)).argmax(1)
            hits += int((found == labels.to(DEVICE)).sum())
            count += len(labels)
    print(json.dumps({"epoch": epoch, "acc1": hits / count}), flush=True)


def expert(given: argparse.Namespace) -> None:
    """Pad and crop, flips, SGD with Nesterov and one cycle, bf16 where it is native, channels last."""
    side, batch = given.side, 64
    fixed = transforms.Compose(
        [
            transforms.Resize(side),
            transforms.CenterCrop(side),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    images, labels = _tensors(given.data / "train", fixed)
    held_images, held_labels = _tensors(given.data / "val", fixed)
    held = [*zip(torch.split(held_images, 256), torch.split(held_labels, 256), strict=True)]
    pad = side // 8
    padded = functional.pad(images, (pad, pad, pad, pad), mode="reflect")
    model = models.resnet18(num_classes=int(labels.max()) + 1).to(DEVICE, memory_format=torch.channels_last)
    steps = max(1, len(labels) // batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=given.epochs * steps)
    for epoch in range(1, given.epochs + 1):
        model.train()
        for chosen in torch.split(torch.randperm(len(labels))[: steps * batch], batch):
            rows, columns = torch.randint(0, 2 * pad + 1, (2, len(chosen), 1)) + torch.arange(side)
            views = padded[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
                0, 3, 1, 2
            )
            turned = torch.rand(len(chosen), 1, 1, 1) < 0.5
            views = torch.where(turned, views.flip(3), views)
            with HALF:
                outputs = model(views.to(DEVICE, memory_format=torch.channels_last))
                loss = functional.cross_entropy(outputs, labels[chosen].to(DEVICE))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            cycle.step()
        told(epoch, model, held)


def timm_script(given: argparse.Namespace) -> None:
    """`train.py` of timm: a batch of 128, SGD at 0.1 for 256, five epochs of warm-up, label smoothing."""
    import timm
    from timm.data import create_dataset, create_loader
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2

    size = {"input_size": (3, given.side, given.side), "num_workers": given.workers, "device": DEVICE}
    loader, held = (
        create_loader(
            create_dataset("", str(given.data / part)), batch_size=128, is_training=part == "train", **size
        )
        for part in ("train", "val")
    )
    model = timm.create_model("resnet18", num_classes=len(loader.dataset.reader.class_to_idx)).to(DEVICE)
    rate = 0.1 * 128 / 256
    optimizer = create_optimizer_v2(model, "sgd", lr=rate, momentum=0.9, weight_decay=2e-5)
    schedule, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=given.epochs, warmup_epochs=5, warmup_lr=1e-5
    )
    smooth = LabelSmoothingCrossEntropy(0.1)
    for epoch in range(given.epochs):
        schedule.step(epoch)
        _an_epoch(model, optimizer, smooth, loader)
        told(epoch + 1, model, held)


def torchvision_reference(given: argparse.Namespace) -> None:
    """`references/classification/train.py`: a batch of 32, SGD at 0.1, a tenth of it each 30 epochs."""
    ends = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    views = transforms.Compose(
        [transforms.RandomResizedCrop(given.side), transforms.RandomHorizontalFlip(), *ends]
    )
    fixed = transforms.Compose(
        [transforms.Resize(round(given.side * 256 / 224)), transforms.CenterCrop(given.side), *ends]
    )
    loader, held = (
        torch.utils.data.DataLoader(
            datasets.ImageFolder(given.data / part, transform),
            batch_size=32,
            shuffle=part == "train",
            num_workers=given.workers,
        )
        for part, transform in (("train", views), ("val", fixed))
    )
    model = models.resnet18(num_classes=len(loader.dataset.classes)).to(DEVICE)  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 30, gamma=0.1)
    for epoch in range(given.epochs):
        _an_epoch(model, optimizer, nn.CrossEntropyLoss(), loader)
        schedule.step()
        told(epoch + 1, model, held)


def fastai_one_cycle(given: argparse.Namespace) -> None:
    """`fit_one_cycle` of fastai: a batch of 64, Adam with decoupled decay, one cycle to 0.001, its views."""
    from fastai.vision.all import (
        Callback,
        ImageDataLoaders,
        Learner,
        Normalize,
        Resize,
        accuracy,
        aug_transforms,
    )

    class Tells(Callback):  # type: ignore[misc] # it has no types
        order = 60  # after the recorder

        def after_epoch(self) -> None:
            print(json.dumps({"epoch": self.epoch + 1, "acc1": self.recorder.values[-1][-1]}), flush=True)

    loaders = ImageDataLoaders.from_folder(
        given.data,
        train="train",
        valid="val",
        item_tfms=Resize(given.side),
        batch_tfms=[*aug_transforms(), Normalize.from_stats(MEAN, STD)],
        num_workers=given.workers,
        device=DEVICE,
    )
    learner = Learner(loaders, models.resnet18(num_classes=loaders.c), metrics=accuracy, cbs=Tells())
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(given.epochs)


def _an_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loss: nn.Module, batches: Batches) -> None:
    model.train()
    for images, labels in batches:
        optimizer.zero_grad()
        loss(model(images.to(DEVICE)), labels.to(DEVICE)).backward()
        optimizer.step()


def _tensors(folder: Path, transform: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    found = datasets.ImageFolder(folder, transform)
    return torch.stack([image for image, _ in found]), torch.tensor(found.targets)


LEARNERS = {
    "expert": expert,
    "timm": timm_script,
    "torchvision": torchvision_reference,
    "fastai": fastai_one_cycle,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("learner", choices=LEARNERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    LEARNERS[given.learner](given)


if __name__ == "__main__":
    main()
