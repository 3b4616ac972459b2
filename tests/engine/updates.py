"""Single updates of a trainer, and the reads of the host in them."""

import torch
import torch.nn.functional as F

from tests.engine.blots import CLASSES, SIDE

FINITE = torch.zeros(())
"""A finite loss, so that the gradients may be the loss scale's fault."""


def micro_batch(number):
    numbers = torch.Generator().manual_seed(number)
    images = torch.randn(4, 3, SIDE, SIDE, generator=numbers)
    return images, torch.randint(len(CLASSES), (4,), generator=numbers)


def backward(trainer, number, share=1.0, bad=None):
    """Compute the gradients of a micro-batch, as the trainer does; `bad` corrupts them in one of two ways."""
    images, targets = micro_batch(number)
    if bad == "nan image":
        images[0, 0, 0, 0] = torch.nan
    with trainer.context.parts.precision.forward_context():
        loss = F.cross_entropy(trainer.context.model(images).float(), targets) * share
    trainer.context.parts.precision.backward(loss * 3e38 * 3e38 if bad == "overflowing loss" else loss)


def take_step(trainer, number, bad=None):
    """Run one window with the configured number of micro-batches; the first of them is the bad one."""
    count = trainer.context.job.config.training.accumulate
    for micro in range(count):
        backward(trainer, number * 10 + micro, 1 / count, bad if micro == 0 else None)
    trainer.context.parts.updater.step(FINITE)
