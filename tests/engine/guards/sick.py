"""Faulty runs: batches poisoned or dropped at given positions, and faulty layers."""

import math
from collections.abc import Callable, Collection
from pathlib import Path

import torch

from mptui.data.batch import Batch
from mptui.data.loader import Loader
from mptui.engine.trainer import Trainer
from tests.engine.blots import CLASSES, SIDE
from tests.engine.small import Recorder, build_trainer, config, end, losses

Place = tuple[int, int]
"""Epoch (from 0) and position of a batch's first sample in the epoch's order."""


def poison(loader: Loader, places: Collection[Place], value: float = torch.nan) -> None:
    """Put `value` into one pixel of each batch that begins at one of `places`, at every load."""
    make = loader._batch

    def poisoned(
        images: torch.Tensor, targets: torch.Tensor, indices: object, valid: int, *, place: Place
    ) -> Batch:
        batch = make(images, targets, indices, valid, place=place)  # type: ignore[arg-type]
        if place in places:
            batch.images_BCHW = batch.images_BCHW.clone()
            batch.images_BCHW[0, 0, 0, 0] = value
        return batch

    loader._batch = poisoned  # type: ignore[method-assign]


def leave_out(trainer: Trainer, windows_at: Collection[Place]) -> None:
    """Return an order without the windows that begin at these places."""
    loader = trainer.context.job.train_loader
    whole = loader.windows

    def windows(epoch: int, accumulate: int, start_sample: int = 0):
        start = start_sample
        for window in whole(epoch, accumulate, start_sample):
            if (epoch, start) not in windows_at:
                trainer.state.cursor.sample = start
                yield window
            start = window.next_sample

    loader.windows = windows  # type: ignore[method-assign]


def limit_memory(trainer: Trainer, samples: Callable[[], int]) -> None:
    """Make the network's forward run out of memory with more than `samples()` per batch."""

    def check(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if len(inputs[0]) > samples():
            raise torch.OutOfMemoryError(f"no room for {len(inputs[0])} samples")

    trainer.context.model.register_forward_pre_hook(check)


def bits(trainer: Trainer) -> dict[str, bytes]:
    """Return every weight and buffer, every tensor of the optimizer and of the EMA."""
    named = {f"model {name}": t for name, t in trainer.context.model.state_dict().items()}
    names = {p: name for name, p in trainer.context.model.named_parameters()}
    for p, state in trainer.context.parts.optimizer.state.items():
        named |= {f"{key} {names[p]}": t for key, t in state.items() if isinstance(t, torch.Tensor)}  # type: ignore[index]
    if trainer.context.parts.average is not None:
        named |= {f"average {name}": t for name, t in trainer.context.parts.average.state_dict().items()}
    return {name: t.detach().cpu().contiguous().numpy().tobytes() for name, t in named.items()}


class Gain(torch.nn.Module):
    """Multiplies by a constant."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


def trained(
    folder: Path,
    model: torch.nn.Module,
    *,
    precision: str = "fp16",
    fallbacks: tuple[str, ...] = ("bf16", "fp32"),
    precision_table: dict[str, object] | None = None,
    **tables: dict[str, object],
) -> tuple[Trainer, Recorder]:
    """Run `model` to the end; return its events."""
    given: dict[str, dict[str, object]] = {"training": {"lr": 0.01}, "precision": precision_table or {}}
    run = config(**{**given, **tables})
    trainer, events = build_trainer(run, folder, precision=precision, model=model, fallbacks=fallbacks)
    try:
        trainer.train()
    finally:
        end(trainer)
    return trainer, events


def assert_finite(trainer: Trainer, events: Recorder) -> None:
    assert all(t.isfinite().all() for t in trainer.context.model.state_dict().values())
    assert math.isfinite(losses(events)[-1])


def gain_net(gain=1e5, seed=0, norm=True):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        Gain(gain),
        torch.nn.BatchNorm2d(8) if norm else torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * SIDE * SIDE, len(CLASSES)),
    )


class _Times(torch.autograd.Function):
    """The identity, with its gradient multiplied by `gain`."""

    @staticmethod
    def forward(ctx, x, gain):
        ctx.gain = gain
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.gain, None


class Steep(torch.nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return _Times.apply(x, self.gain)
