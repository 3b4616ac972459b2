"""Recipes of others for images with masks: each trains a network and prints a line a validation.

    python -m benchmarks.mask_learners expert DATA --side 128 --width 16 --epochs 10 --seed 1

expert: what a person who knows the field writes in 40 lines, all images in memory; the U-Net is mptui's.
smp: a network, the loss and the optimizer of segmentation_models_pytorch's examples, from random weights,
with turns and flips; it is installed for this alone. DATA has train/ and val/ with images/ and masks/ in
each; what is not 0 in a mask is foreground. All are validated on the views of mptui's validation, by its
metric.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.learners import DEVICE, HALF
from mptui.data.batch import Batch
from mptui.data.decode import read_rgb
from mptui.data.masks import opened_mask
from mptui.data.pictures import BACKGROUND
from mptui.data.transforms import IMAGENET, Geometry, cut_image, cut_mask, resized
from mptui.data.types import Decoded
from mptui.models.unet import UNet
from mptui.registry.names import SampleKind
from mptui.tasks.segmentation import Overlap

CLASSES = (BACKGROUND, "foreground")
WHOLE = np.array([0.0, 0.0, 1.0, 1.0])
AS_IT_IS = np.zeros(3, dtype=np.bool_)

Samples = tuple[Tensor, Tensor]
"""images_BCHW, normalised, and masks_BHW, int64."""


def told(epoch: int, model: nn.Module, held: Samples) -> None:
    """Validates, and prints the epoch and the foreground's IoU as a line of JSON."""
    model.eval()
    overlap = Overlap(CLASSES, DEVICE)
    with torch.inference_mode(), HALF:
        for images, masks in zip(*(torch.split(each, 32) for each in held), strict=True):
            outputs = model(images.to(DEVICE, memory_format=torch.channels_last))
            count = len(images)
            overlap.update(outputs, Batch(images, masks.to(DEVICE), count, masks.numel(), np.arange(count)))
    print(json.dumps({"epoch": epoch, "iou": overlap.compute()["iou"]}), flush=True)


def expert(given: argparse.Namespace) -> None:
    """Turns and flips, AdamW and one cycle, cross-entropy and Dice, bf16 where native, channels last."""
    images, masks = samples_of(given.data / "train", given.side)
    held = samples_of(given.data / "val", given.side)
    model = UNet(len(CLASSES), width=given.width).to(DEVICE).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.rate, weight_decay=0.01)
    steps = max(1, len(images) // given.batch)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, given.rate, total_steps=given.epochs * steps)
    for epoch in range(1, given.epochs + 1):
        model.train()
        for chosen in torch.split(torch.randperm(len(images))[: steps * given.batch], given.batch):
            views, targets = turned(images[chosen], masks[chosen])
            with HALF:
                outputs = model(views.to(DEVICE, memory_format=torch.channels_last)).float()
            targets = targets.to(DEVICE)
            loss = functional.cross_entropy(outputs, targets) + dice_loss(outputs.softmax(1)[:, 1], targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            cycle.step()
        told(epoch, model, held)


def turned(images: Tensor, masks: Tensor) -> Samples:
    """Turns each sample by a random multiple of 90° and mirrors half of them."""
    pairs = []
    for image, mask, quarters, mirrored in zip(
        images, masks, torch.randint(4, (len(images),)), torch.rand(len(images)) < 0.5, strict=True
    ):
        pair = [each.rot90(int(quarters), (-2, -1)) for each in (image, mask)]
        pairs.append([each.flip(-1) for each in pair] if mirrored else pair)
    turned_images, turned_masks = zip(*pairs, strict=True)
    return torch.stack(turned_images), torch.stack(turned_masks)


def dice_loss(foreground: Tensor, masks: Tensor) -> Tensor:
    """Returns 1 - Dice of the foreground's probabilities, over all pixels of the batch."""
    overlap = (foreground * masks).sum()
    return 1 - (2 * overlap + 1) / (foreground.sum() + masks.sum() + 1)


def smp_example(given: argparse.Namespace) -> None:
    """A U-Net on a ResNet-34, Dice and cross-entropy, Adam at 2e-4 with a cosine, a batch of 16."""
    import segmentation_models_pytorch as smp

    images, masks = samples_of(given.data / "train", given.side)
    held = samples_of(given.data / "val", given.side)
    model = smp.Unet("resnet34", encoder_weights=None, classes=len(CLASSES)).to(DEVICE)
    overlap = smp.losses.DiceLoss("multiclass", classes=[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    steps = max(1, len(images) // 16)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.epochs * steps, eta_min=1e-5)
    for epoch in range(1, given.epochs + 1):
        model.train()
        for chosen in torch.split(torch.randperm(len(images))[: steps * 16], 16):
            views, targets = turned(images[chosen], masks[chosen])
            outputs, targets = model(views.to(DEVICE)), targets.to(DEVICE)
            loss = functional.cross_entropy(outputs, targets) + overlap(outputs, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        told(epoch, model, held)


def samples_of(folder: Path, side: int) -> Samples:
    """Reads the views of mptui's validation of a half of the data."""
    geometry = Geometry.for_validation(SampleKind.MASK, side)
    images, masks = [], []
    for path in sorted((folder / "images").iterdir()):
        with opened_mask(str(folder / "masks" / f"{path.stem}.png")) as mask:
            pair = resized(Decoded(read_rgb(str(path)), 0, np.asarray(mask.convert("L"))), geometry.resize)
        assert pair.mask_HW is not None
        images.append(cut_image(pair.image_HWC, WHOLE, AS_IT_IS, side))
        masks.append(cut_mask(pair.mask_HW, WHOLE, AS_IT_IS, side) != 0)
    mean, std = torch.tensor(IMAGENET.mean), torch.tensor(IMAGENET.std)
    scaled = (torch.from_numpy(np.stack(images)).float() / 255 - mean) / std
    return scaled.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(np.stack(masks)).long()


LEARNERS = {"expert": expert, "smp": smp_example}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("learner", choices=LEARNERS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8, help="of the expert")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest of the expert's one cycle")
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    LEARNERS[given.learner](given)


if __name__ == "__main__":
    main()
