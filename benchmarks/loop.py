"""`mptui run` beside a bare loop: same model, batch, dtype and threads, data resident on the device.

    python -m benchmarks.loop                # ResNet-18 at 64 px, a small U-Net at 128 px, the tiny network
    python -m benchmarks.loop --only tiny    # the host's work a step, in microseconds

Of the two networks each figure is a fresh process: `mptui run --json` tells its `samples_per_second`; the
bare loop is the ten lines of a tutorial with the fused optimizer and channels last, timed with its warm-up
cut. The tiny network is all host's work: the trainer's step with its default logging and journal beside the
bare loop's over the same window, in one process, on one thread, in blocks that alternate.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.common import alternate, ratios, save
from mptui.config.schema import ModelConfig, RunConfig
from mptui.data.loader import Loader
from mptui.data.types import Decoded
from mptui.engine.control import Mailbox
from mptui.engine.parts import Job
from mptui.engine.saver import Saver
from mptui.engine.trainer import Trainer
from mptui.models.zoo import build
from mptui.runs.journal import Journal
from mptui.tasks.registry import build_task


@dataclass(frozen=True)
class Case:
    """One network and what it is trained on."""

    model: str
    task: str
    side: int
    batch: int
    classes: int
    steps: int

    @property
    def samples(self) -> int:
        # one epoch: no checkpoint is written beside the steps that are timed
        return self.steps * self.batch


CASES = {
    case.model: case
    for case in (
        Case("resnet18", "classification", side=64, batch=32, classes=8, steps=30),
        Case("unet", "segmentation", side=128, batch=4, classes=4, steps=30),
    )
}
UNET_WIDTH = 16
WARM_UP = 5
TINY_BLOCKS = 60
TINY_STEPS = 100
TINY_BATCH = 32
TINY_CLASSES = 10
CPU = torch.device("cpu")


def mptui_rate(case: Case) -> float:
    """Images a second of `mptui run`, as its summary tells."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [
                *(sys.executable, "-m", "mptui", "run", "--json", "--runs-dir", folder),
                *("--model", case.model, "--data", "shapes", "--batch-size", str(case.batch)),
                *("--max-steps", str(case.steps), "--epochs", "100", "--lr", "0.01", "--precision", "fp32"),
                *("--set", f"data.samples={case.samples}", "--set", f"data.image_size={case.side}"),
                *("--set", "data.cache=device", "--set", "data.augment=none"),
                *("--set", f"model.width={UNET_WIDTH}"),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    return float(json.loads(answer.stdout)["samples_per_second"])


def bare_rate(case: Case) -> float:
    """Images a second of the bare loop, in a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.loop", "--bare", case.model],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(answer.stdout)


def bare_loop(case: Case) -> float:
    """Images a second of the loop itself: resident normalised images, fused SGD, channels last."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = ModelConfig(name=case.model, width=UNET_WIDTH)
    model = build(config, num_classes=case.classes, task=case.task, side=case.side)
    model = model.to(device=device).to(memory_format=torch.channels_last)
    images = torch.randn(case.samples, 3, case.side, case.side, device=device)
    images = images.to(memory_format=torch.channels_last)
    mask = (case.side, case.side) if case.task == "segmentation" else ()
    targets = torch.randint(case.classes, (case.samples, *mask), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    seconds = []
    for _ in range(case.steps):
        started = time.perf_counter()
        rows = torch.randperm(case.samples, device=device)[: case.batch]
        outputs = model(images[rows])
        loss = F.cross_entropy(outputs, targets[rows])
        if case.task == "segmentation":
            loss = loss + dice_loss(outputs, targets[rows], case.classes)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return case.batch / statistics.median(seconds[WARM_UP:])


def dice_loss(outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> torch.Tensor:
    """The soft Dice loss of the U-Net recipe, over the foreground classes."""
    p = outputs.softmax(1)[:, 1:]
    truth = F.one_hot(targets, classes).permute(0, 3, 1, 2)[:, 1:].float()
    overlap = 2 * (p * truth).sum((2, 3)) + 1
    return (1 - overlap / (p.sum((2, 3)) + truth.sum((2, 3)) + 1)).mean()


@dataclass(frozen=True)
class Noise:
    """An 8x8 image of noise."""

    index: int

    @property
    def name(self) -> str:
        return str(self.index)

    def read(self, side_hint: int | None = None) -> Decoded:
        image = np.random.default_rng(self.index).integers(0, 255, (8, 8, 3), dtype=np.uint8)
        return Decoded(image, self.index % TINY_CLASSES)


@dataclass(frozen=True)
class Noises:
    """A split of them."""

    count: int

    def __len__(self) -> int:
        return self.count

    def request(self, index: int) -> Noise:
        return Noise(index)


def tiny_network() -> torch.nn.Module:
    """Two layers: all of its step is the host's work."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(192, 32), torch.nn.ReLU(), torch.nn.Linear(32, TINY_CLASSES)
    )


def tiny_loader(batches: int, *, train: bool) -> Loader:
    """What both sides read from."""
    loader = Loader(
        Noises(TINY_BATCH * batches),
        task="classification",
        batch_size=TINY_BATCH,
        side=8,
        num_classes=TINY_CLASSES,
        device=CPU,
        train=train,
        augment=False,
        seed=0,
        channels_last=False,
        cache="device",
    )
    loader.prepare()
    return loader


def tiny_trainer(folder: Path, train: Loader, val: Loader) -> Trainer:
    """The trainer with journal and default logging."""
    config = RunConfig.model_validate({"training": {"epochs": 10_000, "lr": 0.01, "batch_size": TINY_BATCH}})
    journal = Journal(folder)
    job = Job(
        config=config,
        model=tiny_network(),
        task=build_task("classification", [str(i) for i in range(TINY_CLASSES)], config.training),
        num_classes=TINY_CLASSES,
        device=CPU,
        precision="fp32",
        train_loader=train,
        val_loader=val,
    )
    saver = Saver(folder, config.checkpoint, journal.write)
    return Trainer(job, emit=journal.write, mailbox=Mailbox(), saver=saver)


def measure_tiny() -> dict[str, Any]:
    """The host's work a step over the bare loop: thread CPU time, in blocks of steps that alternate."""
    torch.set_num_threads(1)  # nothing here is large enough for a second one
    model = tiny_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        tiny_loader(2, train=True) as train,
        tiny_loader(1, train=False) as val,
    ):
        trainer = tiny_trainer(Path(folder), train, val)
        window = next(iter(train.windows(0, 1)))

        def bare() -> None:
            for batch in window:
                torch.autograd.backward(F.cross_entropy(model(batch.images_BCHW), batch.targets))
            optimizer.step()
            optimizer.zero_grad()

        def mptui() -> None:
            trainer._step(window)
            if trainer.mailbox or trainer.reporter.due(time.perf_counter()):
                trainer.reporter.flush()

        sides = {"mptui": mptui, "bare": bare}
        figures: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(TINY_BLOCKS):
            for name in list(sides) if number % 2 else list(sides)[::-1]:
                figures[name].append(_microseconds(sides[name]))
    over = [a - b for a, b in zip(figures["mptui"], figures["bare"], strict=True)]
    result = {name: statistics.median(values) for name, values in figures.items()}
    quartiles = statistics.quantiles(over, n=4)
    print(f"  {result}; over the bare loop {quartiles[1]:.1f} us ({quartiles[0]:.1f} to {quartiles[2]:.1f})")
    return {"blocks": TINY_BLOCKS, "median_us": result, "over_bare_us_quartiles": quartiles}


def _microseconds(step: Callable[[], None]) -> float:
    started = time.thread_time()
    for _ in range(TINY_STEPS):
        step()
    return (time.thread_time() - started) / TINY_STEPS * 1e6


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """The ratio of images a second, `mptui run` over the bare loop."""
    figures = alternate({"mptui": lambda: mptui_rate(case), "bare": lambda: bare_rate(case)}, rounds)
    ratio = ratios(figures["mptui"], figures["bare"])
    print(f"  mptui over bare: {ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})")
    return {**figures, "ratio": ratio}


def main() -> None:
    """Measure, and write results/loop.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*CASES, "tiny"])
    parser.add_argument("--bare", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        print(bare_loop(CASES[arguments.bare]))
        return
    document: dict[str, Any] = {"rounds": arguments.rounds}
    for name in [arguments.only] if arguments.only else [*CASES, "tiny"]:
        print(name)
        document[name] = measure_tiny() if name == "tiny" else measure(CASES[name], arguments.rounds)
    save(f"loop-{arguments.only}" if arguments.only else "loop", document)


if __name__ == "__main__":
    main()
