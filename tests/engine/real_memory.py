"""The storages of real steps, counted by torch's own engine."""

import numpy as np
import torch

from mptui.engine.memory.tape import AllocationLog
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import build_optimizer
from mptui.engine.precision import Precision
from mptui.models.layers import apply_activation_checkpointing
from mptui.models.zoo import build
from mptui.tasks.build_task import build_task


def network_without_values(config, task, classes=10):
    """Return the network of the real sizes; to draw its weights would take most of a test."""
    with torch.device("meta"):
        model = build(config.model, num_classes=classes, task=task, side=config.data.image_size)
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(_without_values(weight)))
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, _without_values(buffer))
    return model


def _without_values(like):
    return torch.empty(like.shape, dtype=like.dtype, device="cpu")


def really_alive(config, task, dtype, classes=10):
    """Return the most bytes of real storages in a real step, beside weights and optimizer."""
    side, size = config.data.image_size, config.training.batch_size
    model = network_without_values(config, task, classes)
    if config.memory.activation_checkpointing:
        apply_activation_checkpointing(model)
    learnt = build_task(task, [str(i) for i in range(classes)], config.training)
    optimizer = build_optimizer(model, config.training, torch.zeros(()), fused=True)
    updater = Updater(
        model,
        optimizer,
        Precision("fp32", torch.device("cpu")),
        lr=torch.zeros(()),
        rates=lambda applied: np.zeros(2, np.float32),
        clip_grad_norm=None,
        average=None,
    )
    updater.close()  # of its early sums of squares, 4 bytes for each weight
    log, one = AllocationLog(), torch.ones(())
    with log:
        batch = learnt.dummy_batch(torch.zeros(size, 3, side, side))
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            outputs = model(*batch.inputs)
            loss = learnt.loss(outputs, batch, batch.valid, size)
        torch.autograd.backward(loss, one)
        updater.step(loss.detach())
    return log.peak()


class RowsInTurn(torch.nn.Module):
    """An LSTM over the rows of an image, and attention between them."""

    def __init__(self, num_classes, bidirectional, layers):
        super().__init__()
        size = 64 * (1 + bidirectional)
        self.lstm = torch.nn.LSTM(96, 64, layers, batch_first=True, bidirectional=bidirectional)
        self.attention = torch.nn.MultiheadAttention(size, 4, batch_first=True, dropout=0.1)
        self.head = torch.nn.Linear(size, num_classes)

    def forward(self, images_BCHW):
        rows_BHN, _ = self.lstm(images_BCHW.permute(0, 2, 3, 1).flatten(2))
        mixed_BHN, _ = self.attention(rows_BHN, rows_BHN, rows_BHN)
        return self.head(mixed_BHN.mean(1))
