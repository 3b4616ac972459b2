"""Finds the largest micro-batch that fits in memory, by trial before the run starts.

A trial is a forward and a backward pass, as in training, over copies of the first samples, and an update
that is refused. The state of the run is unchanged: weights, optimizer, random state and buffers stay bit for
bit the same.
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from mptui.data.core.batch import Batch, Window
from mptui.engine.compile.policy import eagerly
from mptui.engine.context import TrainContext
from mptui.engine.guards.oom_errors import forget_peak, is_out_of_memory, is_too_few_for_norm, release
from mptui.errors import MemoryExhaustedError

MARGIN = 0.1
"""Share of the largest micro-batch that is left unused, as headroom for later growth."""


def find_micro_batch(context: TrainContext) -> int | None:
    """Find the largest micro-batch that fits with a margin; None: a whole batch fits.

    Raises:
        MemoryExhaustedError: Not even one sample fits.
    """
    whole = context.job.train_loader.share_size
    cursor = context.state.cursor
    with context.job.train_loader.window_at(cursor.epoch, 1, cursor.sample) as window:
        wanted = math.ceil(whole / (1 - MARGIN))
        batch = next(iter(window), None)  # of few samples, one of several processes may read none
        most = wanted if batch is None else largest(partial(_fits, context, window, batch), wanted)
    forget_peak(context.device)
    most = min(context.ranks.gather(most))
    if most == 0:
        raise MemoryExhaustedError(
            "out of memory with a micro-batch of one sample",
            hint="try --precision bf16 or fp16, a smaller data.image_size, or a smaller model",
        )
    # 0.9 has no exact binary form, and 10 x 0.9 must give 9
    found = max(min(most, 2), math.floor(most * (1 - MARGIN) + 1e-9))  # BatchNorm may need two
    return None if found >= whole else found


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest count from 1 to `most` that fits, by bisection; 0 if none does."""
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


def _fits(context: TrainContext, window: Window, batch: Batch, count: int) -> bool:
    cuda = [context.device] if context.device.type == "cuda" else []
    fits = True
    with torch.random.fork_rng(devices=cuda):
        try:
            _pass(context, batch, count)
        except Exception as error:
            if not (is_out_of_memory(error) or is_too_few_for_norm(error)):
                raise
            fits = is_too_few_for_norm(error)  # one sample has room, though BatchNorm can't be trained on it
        context.parts.updater.forget()
    if not fits:
        release(context.device)
    return fits


def _pass(context: TrainContext, batch: Batch, count: int) -> None:
    """Run a forward and a backward pass over `count` rows."""
    rows = torch.arange(count, device=context.device) % batch.size
    copies = batch.rows(rows, size=count, valid=batch.valid)
    with context.parts.precision.forward_context(), eagerly(context.model):
        outputs = context.model(*copies.inputs)
        loss = context.task.loss(outputs, copies, max(1, batch.valid), count)
    context.parts.precision.backward(loss)
    if context.ranks.is_alone:  # an update meets other ranks, which may try another size
        context.parts.updater.try_refused()
