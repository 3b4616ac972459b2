"""The largest micro-batch that fits, found by trying before the run starts.

A try is a forward and a backward pass, as training does them, over copies of the first samples. Nothing of
the run moves: weights, optimizer, random numbers and buffers are bit for bit what they were.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from mptui.data.core.batch import Batch, Window
from mptui.engine.compile.policy import eagerly
from mptui.engine.guards.oom_errors import forget_peak, is_out_of_memory, is_too_few_for_norm, release
from mptui.errors import MemoryExhaustedError

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer

MARGIN = 0.1
"""Share of the samples that would just fit which is left unused, for what grows later on."""


def find_micro_batch(trainer: "Trainer") -> int | None:
    """Samples at once that fit with a margin; None: a whole batch does.

    Raises:
        MemoryExhaustedError: Not even one sample fits.
    """
    whole = trainer.job.config.training.batch_size
    cursor = trainer.cursor
    with trainer.job.train_loader.window_at(cursor.epoch, 1, cursor.sample) as window:
        batch = next(iter(window))
        most = largest(lambda count: _fits(trainer, window, batch, count), math.ceil(whole / (1 - MARGIN)))
    forget_peak(trainer.device)
    if most == 0:
        raise MemoryExhaustedError(
            "out of memory: not even one sample at a time fits",
            hint="try --precision bf16 or fp16, a smaller data.image_size, or a smaller model",
        )
    # as 0.9 has no exact binary form, and 10 x 0.9 is to be 9
    found = max(1, math.floor(most * (1 - MARGIN) + 1e-9))
    return None if found >= whole else found


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest count from 1 to `most` that fits, if all smaller ones do; 0 where none does."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _fits(trainer: "Trainer", window: Window, batch: Batch, count: int) -> bool:
    cuda = [trainer.device] if trainer.device.type == "cuda" else []
    fits = True
    with torch.random.fork_rng(devices=cuda):
        try:
            _pass(trainer, batch, count)
        except Exception as error:
            if not (is_out_of_memory(error) or is_too_few_for_norm(error)):
                raise
            fits = False
        trainer.parts.updater.forget()
    if not fits:
        release(trainer.device)
    return fits


def _pass(trainer: "Trainer", batch: Batch, count: int) -> None:
    """A forward and a backward pass over `count` rows."""
    rows = torch.arange(count, device=trainer.device) % batch.size
    copies = batch.rows(rows, size=count, valid=batch.valid)
    with trainer.parts.precision.forward_context(), eagerly(trainer.model):
        outputs = trainer.model(*copies.inputs)
        loss = trainer.task.loss(outputs, copies, max(1, batch.valid), count)
    trainer.parts.precision.backward(loss)
