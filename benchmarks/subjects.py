"""Training cases of the benchmarks: networks, and data resident on the device."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.floors import synchronize
from mptui.config.schema import ModelConfig, RunConfig
from mptui.data.loader import Loader
from mptui.data.sampler import Share
from mptui.data.types import Dataset, Decoded
from mptui.engine.checkpoint.saver import NonPrimarySaver, Saver
from mptui.engine.job import Job
from mptui.engine.mailbox import Mailbox
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.sync import RanksMailbox
from mptui.engine.reporting.observers import observers
from mptui.engine.trainer import Trainer
from mptui.models.zoo import build
from mptui.registry.tasks import TASKS
from mptui.runs.store.journal import Journal
from mptui.tasks.build_task import build_task
from tests.made.loaders import built_loader

CPU = torch.device("cpu")
TINY = "tiny"
WAKING = 12
"""Untimed steps after a process was stopped.

Its memory is cold and its other threads catch up, so these steps scatter more than later ones; a process that
trains without interruption has no such steps.
"""
TINY_SIDE, TINY_BATCH, TINY_CLASSES = 8, 32, 10


@dataclass(frozen=True)
class Case:
    """A network, its data and its settings: the same for every side that is compared."""

    model: str
    side: int
    batch: int
    classes: int
    steps: int
    warm_up: int = 5
    width: int = 16
    """Width of a U-Net."""
    device: str = "cpu"
    precision: str = "fp32"
    tf32: bool = True
    channels_last: bool = True
    compile: str = "off"
    resident: bool = True
    """Whether `mptui run` keeps its data on the device, or in its loader processes."""
    folder: str = ""
    """Folder of photos by class to read instead, decoded and augmented by the loader."""
    block: int = 0
    """Timed steps until the process stops itself for `benchmarks.relay`; 0: never."""

    @property
    def task(self) -> str:
        return "segmentation" if self.model == "unet" else "classification"

    @property
    def samples(self) -> int:
        # one epoch: no checkpoint is written during the timed steps
        return self.steps * self.batch

    def network(self) -> torch.nn.Module:
        """Builds the network with random weights, on torch's default device."""
        if self.model == TINY:
            return tiny_network()
        config = ModelConfig(name=self.model, width=self.width)
        return build(config, num_classes=self.classes, task=self.task, side=self.side)

    def criterion(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Returns the loss of the recipe, as in a hand-written loop."""
        if self.task == "classification":
            return F.cross_entropy
        return lambda outputs, targets: F.cross_entropy(outputs, targets) + _dice_loss(outputs, targets)


CASES = {
    case.model: case
    for case in (
        Case("resnet18", side=64, batch=32, classes=8, steps=30),
        Case("unet", side=128, batch=4, classes=4, steps=30),
        Case(TINY, side=TINY_SIDE, batch=TINY_BATCH, classes=TINY_CLASSES, steps=6_000, warm_up=1_000),
    )
}

ON_GPU = {
    case.model: case
    for case in (
        Case("resnet50", side=224, batch=256, classes=1000, steps=100, warm_up=20),
        Case("unet", side=512, batch=16, classes=4, steps=100, warm_up=20, width=64),
        CASES[TINY],
    )
}


def _dice_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Computes the soft Dice loss of the U-Net recipe over the foreground classes."""
    p = outputs.float().softmax(1)[:, 1:]
    truth = F.one_hot(targets, outputs.shape[1]).permute(0, 3, 1, 2)[:, 1:].float()
    overlap = 2 * (p * truth).sum((2, 3)) + 1
    return (1 - overlap / (p.sum((2, 3)) + truth.sum((2, 3)) + 1)).mean()


class Clock:
    """Stops `time.perf_counter` and `time.monotonic` while the process is stopped.

    Otherwise periodic work (`mptui run` probes its numerics every half minute) would come many times as
    often as in a run that is never stopped.
    """

    def __init__(self) -> None:
        self._now = time.monotonic
        self._left_out = 0.0
        for name in ("perf_counter", "monotonic"):
            setattr(time, name, self._without(getattr(time, name)))

    def _without(self, clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() - self._left_out

    def stop(self) -> None:
        """Stops this process until it gets SIGCONT."""
        since = self._now()
        # to this very thread, which would otherwise continue until another one has met the signal
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._left_out += self._now() - since


class Stamps:
    """Measures the time from the first step after warm-up to the last, at the requests for batches.

    A framework that requests some batches ahead does so at both ends: the span has as many steps.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._requests = 0
        self._wall = self._cpu = 0.0
        self._clock = Clock() if case.block else None
        self.figures: dict[str, Any] = {}

    def request(self) -> None:
        """Records that another batch is requested."""
        done, self._requests = self._requests - self._case.warm_up, self._requests + 1
        last, block = self._requests == self._case.steps, self._case.block
        if done < 0:
            return
        if not block:
            if done == 0:
                self._begin()
            elif last:
                self._note(done)
            return
        into = done % (WAKING + block)
        if into == 0:
            if done:
                self._note(block)
            if self._clock is not None and not last:
                self._clock.stop()
        elif into == WAKING:
            self._begin()

    def _begin(self) -> None:
        synchronize(torch.device(self._case.device))
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def _note(self, steps: int) -> None:
        synchronize(torch.device(self._case.device))
        taken = {"wall": time.perf_counter() - self._wall, "cpu": time.process_time() - self._cpu}
        for clock, seconds in taken.items():
            self.figures[f"{clock}_s"] = seconds / steps
            self.figures.setdefault(f"{clock}_blocks_s", []).append(seconds / steps)


class Batches(torch.utils.data.IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """An epoch of random images on the device, already normalized: a batch is a gather."""

    def __init__(self, case: Case, stamps: Stamps) -> None:
        self._case, self._stamps = case, stamps
        device, side = torch.device(case.device), case.side
        # limited to what fits on the device with the training: an epoch repeats them
        self._kept = min(case.samples, max(case.batch, (1 << 30) // (12 * side**2)))
        # contiguous rows, which gather faster than a view in another layout
        shape = (side, side, 3) if case.channels_last else (3, side, side)
        self._images = torch.randn(self._kept, *shape, device=device)
        mask = (side, side) if case.task == "segmentation" else ()
        self._targets = torch.randint(case.classes, (self._kept, *mask), device=device)

    def __len__(self) -> int:
        return self._case.steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(self._case.samples, device=self._images.device) % self._kept
        for rows in torch.split(order, self._case.batch):
            self._stamps.request()
            images = self._images.index_select(0, rows)
            if self._case.channels_last:
                images = images.permute(0, 3, 1, 2)
            yield images, self._targets.index_select(0, rows)


@dataclass(frozen=True)
class Noise:
    """An image of noise, with a label or a mask."""

    index: int
    side: int
    classes: int
    masked: bool = False

    @property
    def name(self) -> str:
        return str(self.index)

    def read(self, side_hint: int | None = None) -> Decoded:
        rng = np.random.default_rng(self.index)
        image = rng.integers(0, 255, (self.side, self.side, 3), dtype=np.uint8)
        if self.masked:
            return Decoded(
                image, mask_HW=rng.integers(self.classes, size=(self.side, self.side), dtype=np.int16)
            )
        return Decoded(image, self.index % self.classes)


@dataclass(frozen=True)
class Noises:
    """A split of `Noise` samples."""

    count: int
    side: int
    classes: int
    masked: bool = False

    def __len__(self) -> int:
        return self.count

    def request(self, index: int) -> Noise:
        return Noise(index, self.side, self.classes, self.masked)


def dataset(case: Case) -> Dataset:
    """Returns the data set for `mptui run`, as large as that of the other sides."""
    masked = case.task == "segmentation"
    train, val = (
        Noises(count, case.side, case.classes, masked)
        for count in (case.samples, min(case.samples, case.batch))
    )
    classes = tuple(f"class {number}" for number in range(case.classes))
    return Dataset("noise", TASKS[case.task].sample, classes, train, val, sides=(case.side,) * 3)


def tiny_network() -> torch.nn.Module:
    """Builds two layers whose step is nothing but host work."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(192, 32), torch.nn.ReLU(), torch.nn.Linear(32, TINY_CLASSES)
    )


def make_trainer(
    case: Case, folder: Path, stack: ExitStack, *, batches: int = 2, ranks: Ranks | None = None
) -> Trainer:
    """Builds a trainer with journal and default logging, over `batches` batches on the device."""
    ranks = ranks or Ranks.alone()
    config = RunConfig.model_validate(
        {"training": {"epochs": 10_000, "lr": 0.001, "batch_size": case.batch}, "speed": {"fused": True}}
    )

    def loader(train: bool) -> Loader:
        made = built_loader(
            Noises(batches * case.batch, case.side, case.classes),
            kind=TASKS[case.task].sample,
            batch_size=case.batch,
            side=case.side,
            num_classes=case.classes,
            device=CPU,
            train=train,
            augment=False,
            seed=0,
            channels_last=False,
            cache="device",
            share=Share(ranks.rank, ranks.world_size),
        )
        made.prepare()
        return made

    folder.mkdir()
    journal = Journal(folder)
    saver = (Saver if ranks.is_first else NonPrimarySaver)(folder, lambda: config.checkpoint, journal.write)
    stack.callback(saver.close)
    job = Job(
        config=config,
        model=case.network(),
        task=build_task(case.task, [str(i) for i in range(case.classes)], config.training),
        num_classes=case.classes,
        device=CPU,
        precision=case.precision,
        train_loader=loader(True),
        val_loader=loader(False),
        ranks=ranks,
    )
    mailbox = Mailbox() if ranks.is_alone else RanksMailbox(ranks, Mailbox())
    trainer = Trainer(job, emit=journal.write, mailbox=mailbox, saver=saver, observers=observers())
    stack.callback(trainer.close)
    return trainer
