"""What goes wrong in runs whose settings change, and the data and code of a person's own that they have."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mptui.engine.trainer import Trainer
from mptui.runs.session.watchdog import NAME as STACKS
from tests.runs.live_runs import CHANGED_AFTER, Fault, Ran

FAULT_AFTER = CHANGED_AFTER + 2
"""Forward passes before a fault: a change whose first steps fail is undone."""
LONGEST_S = 30
"""Longest wait in seconds for what must happen."""
AHEAD = 40
"""Samples that are read ahead with much prefetching, and not with little."""


def faulty_outputs(change: Callable[[torch.Tensor], torch.Tensor], count: int) -> Fault:
    """Return a fault that changes the outputs of `count` forward passes in training."""

    def fault(trainer: Trainer, ran: Ran) -> None:
        model = trainer.context.model

        def hook(_: torch.nn.Module, inputs: object, outputs: torch.Tensor) -> torch.Tensor:
            passes = len(ran.rows) - FAULT_AFTER
            is_faulty = model.training and torch.is_grad_enabled() and 0 < passes <= count
            return change(outputs) if is_faulty else outputs

        model.register_forward_hook(hook)

    return fault


def nan_outputs(count: int) -> Fault:
    """Return a fault that makes the outputs of `count` forward passes NaN."""
    return faulty_outputs(lambda outputs: outputs * torch.nan, count)


def nan_gradient() -> Fault:
    """Return a fault that makes the gradient of one backward pass NaN, and no number before it."""
    return faulty_outputs(lambda outputs: outputs + torch.sqrt(outputs * 0) * 0, 1)


def little_memory(trainer: Trainer, ran: Ran) -> None:
    """Run out of memory with more than 4 samples."""

    def check(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if len(ran.rows) > FAULT_AFTER and len(inputs[0]) > 4:
            raise torch.OutOfMemoryError("no room")

    trainer.context.model.register_forward_pre_hook(check)


def image_files(folder: Path) -> dict[str, object]:
    """Write images with masks; return the settings of a run on them."""
    for half, count in (("train", 32), ("val", 8)):
        for name in ("images", "masks"):
            (folder / half / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (16, 16), (7 * number,) * 3).save(folder / half / "images" / f"{number}.png")
            Image.fromarray(np.eye(16, dtype=np.uint8)).save(folder / half / "masks" / f"{number}.png")
    return {"data.name": None, "data.samples": None, "data.path": str(folder), "data.cache": "off"}


def damaged_files(trainer: Trainer, ran: Ran) -> None:
    """Damage three files of the training set."""
    folder = Path(str(trainer.context.job.config.data.path)) / "train" / "images"

    def damage(*_: object) -> None:
        if len(ran.rows) == FAULT_AFTER:
            for number in range(3):
                (folder / f"{number}.png").write_bytes(b"no picture")

    trainer.context.model.register_forward_hook(damage)


def noted_reads(folder: Path) -> dict[str, object]:
    """Write a data set that notes what is read; return the settings of a run on it."""
    code = """
import numpy
class Data:
    classes = ["background", "thing"]
    def __init__(self, train): self.train = train
    def __len__(self): return 64 if self.train else 8
    def __getitem__(self, index):
        with open(__file__ + ".reads", "a") as file:
            file.write("read\\n" if self.train else "")
        return numpy.full((16, 16, 3), index, numpy.uint8), numpy.eye(16, dtype=numpy.uint8)
"""
    found = _module(folder, "noting_reads", code)
    return found | {"data.name": "noting_reads:Data", "data.samples": None, "data.cache": "off"}


def read_ahead(trainer: Trainer, ran: Ran) -> None:
    """Note how many samples have been read before the change, and in the first step after it."""
    config = trainer.context.job.config
    log = Path(str(config.code.folder)) / "noting_reads.py.reads"

    def count() -> int:
        return log.read_text().count("read")

    def note(*_: object) -> None:
        if len(ran.rows) == CHANGED_AFTER:
            ran.noted.append(count())
        if len(ran.rows) == CHANGED_AFTER + 1:
            ends = time.monotonic() + LONGEST_S
            is_changed = trainer.context.job.config.data.prefetch != config.data.prefetch
            while is_changed and count() < ran.noted[0] + AHEAD and time.monotonic() < ends:
                time.sleep(0.01)
            ran.noted.append(count())

    trainer.context.model.register_forward_pre_hook(note)


def stuck_network(folder: Path) -> dict[str, object]:
    """Write a network that waits in a step until stacks are written; return the settings of a run of it."""
    code = f"""
import pathlib, time, torch
class Net(torch.nn.Conv2d):
    def __init__(self, num_classes):
        super().__init__(3, num_classes, 3, padding=1)
        self.calls = 0
    def forward(self, images):
        self.calls += self.training
        ends = time.monotonic() + ({LONGEST_S} if self.calls == 5 else 0)
        while time.monotonic() < ends and not {{*pathlib.Path({str(folder)!r}).rglob({STACKS!r})}}:
            time.sleep(0.01)
        return super().forward(images)
"""
    unlike = {"model.width": None, "model.depth": None, "model.task": "segmentation"}
    return _module(folder, "stuck_network", code) | unlike | {"model.name": "stuck_network:Net"}


def _module(folder: Path, name: str, code: str) -> dict[str, object]:
    """Write a module of a person's own; return the setting that finds it."""
    (folder / f"{name}.py").write_text(code)
    sys.modules.pop(name, None)
    return {"code.folder": str(folder)}
