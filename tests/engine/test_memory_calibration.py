"""The count of the memory against malloc, in plain loops of torch: 20 networks, within 10 %."""

import ctypes
import gc

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mptui.config.schema import RunConfig
from mptui.engine.memory.ledger import footprint
from mptui.models.layers import blocks_of
from mptui.models.zoo import build
from mptui.registry.models import MODELS, ModelSpec
from mptui.tasks.build_task import build_task
from tests.engine.real_memory import RowsInTurn

SIDE, BATCH = 64, 16
FIELDS = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keep",
)


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


class Malloc(torch.utils._python_dispatch.TorchDispatchMode):
    """Reads glibc's count of the allocated bytes after each operation."""

    def __init__(self):
        super().__init__()
        self._libc = ctypes.CDLL("libc.so.6")
        self._libc.mallinfo2.restype = Mallinfo
        self._libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD, which else grows
        self.peak = 0

    def used(self):
        found = self._libc.mallinfo2()
        return found.uordblks + found.hblkhd

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        self.peak = max(self.peak, self.used())
        return outputs


class Rows(RowsInTurn):
    def __init__(self, num_classes, bidirectional=False, layers=1):
        torch.nn.Module.__init__(self)
        size = 64 * (1 + bidirectional)
        self.lstm = torch.nn.LSTM(3 * SIDE, 64, layers, batch_first=True, bidirectional=bidirectional)
        self.attention = torch.nn.MultiheadAttention(size, 4, batch_first=True, dropout=0.1)
        self.head = torch.nn.Linear(size, num_classes)


class Tied(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3 * SIDE**2, 256), torch.nn.Linear(256, 256)
        self.third, self.head = torch.nn.Linear(256, 256), torch.nn.Linear(256, num_classes)
        self.third.weight = self.second.weight

    def forward(self, images_BCHW):
        return self.head(F.relu(self.third(F.relu(self.second(F.relu(self.first(images_BCHW.flatten(1))))))))


class Frozen(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        layers = []
        for inputs, outputs in ((3, 32), (32, 64)):
            convolution = torch.nn.Conv2d(inputs, outputs, 3, padding=1)
            layers += [convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]
        self.body = torch.nn.Sequential(*layers).requires_grad_(False)
        self.tail, self.head = torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.Linear(64, num_classes)

    def forward(self, images_BCHW):
        return self.head(F.relu(self.tail(self.body(images_BCHW))).mean((2, 3)))


class Recurrent(torch.nn.Module):
    def __init__(self, kind, num_classes):
        super().__init__()
        self.rows, self.head = kind(3 * SIDE, 128, batch_first=True), torch.nn.Linear(128, num_classes)

    def forward(self, images_BCHW):
        return self.head(self.rows(images_BCHW.permute(0, 2, 3, 1).flatten(2))[0].mean(1))


OWN = {
    "lstm_attention": Rows,
    "lstm_attention_twice": lambda num_classes: Rows(num_classes, bidirectional=True, layers=2),
    "lstm": lambda num_classes: Recurrent(torch.nn.LSTM, num_classes),
    "gru": lambda num_classes: Recurrent(torch.nn.GRU, num_classes),
    "tied": Tied,
    "frozen": Frozen,
}


def config_of(model, training, memory, sizes):
    return RunConfig.model_validate(
        {
            "model": {"name": model, **sizes},
            "data": {"image_size": SIDE},
            "training": {"batch_size": BATCH, "optimizer": "sgd", "momentum": 0.9, **training},
            "memory": memory,
        }
    )


def optimizer_of(network, training):
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    if training.optimizer == "adamw":
        return torch.optim.AdamW(weights, fused=True)
    return torch.optim.SGD(weights, 0.1, momentum=training.momentum or 0.0)


def floats_of(network):
    tensors = (*network.parameters(), *network.buffers())
    return [tensor.detach() for tensor in tensors if tensor.is_floating_point()]


def allocated(config, task, classes):
    """Return the most bytes that malloc has given in a step of a plain loop, without the batch."""
    malloc, training = Malloc(), config.training
    images = torch.randn(BATCH, 3, SIDE, SIDE)
    learnt = build_task(task, [str(number) for number in range(classes)], training)
    batch = learnt.dummy_batch(images)
    gc.collect()
    before = malloc.used()
    network = build(config.model, num_classes=classes, task=task, side=SIDE).train()
    if config.memory.activation_checkpointing:
        for block in blocks_of(network):
            block.forward = recomputed(block.forward)
    optimizer = optimizer_of(network, training)
    average = [value.clone() for value in floats_of(network)] if training.ema_decay else []
    for _ in range(2):  # the optimizer has its state from the first step on
        malloc.peak = 0
        optimizer.zero_grad(set_to_none=True)
        for _ in range(training.accumulate):
            gc.collect()
            with malloc:
                learnt.loss(network(*batch.inputs), batch, batch.valid, BATCH).backward()
        with malloc, torch.no_grad():
            optimizer.step()
            if average:  # by a difference, as the run's
                difference = torch._foreach_sub(floats_of(network), average)
                torch._foreach_mul_(difference, 0.1)
                torch._foreach_add_(average, difference)
                del difference
    return malloc.peak - before


def recomputed(forward):
    return lambda *inputs: checkpoint(forward, *inputs, use_reentrant=False)


ADAMW = {"optimizer": "adamw", "momentum": None}
RUNS = [
    ("resnet18", "classification", 10, {}, {}, {}),
    ("mobilenet_v2", "classification", 10, {}, {}, {}),
    ("resnet18", "classification", 10, ADAMW, {}, {}),
    ("resnet18", "classification", 1000, ADAMW, {}, {}),
    ("resnet18", "classification", 10, {"ema_decay": 0.99}, {}, {}),
    ("resnet18", "classification", 10, {"accumulate": 3}, {}, {}),
    ("resnet18", "classification", 10, {}, {"activation_checkpointing": True}, {}),
    ("vit_b_16", "classification", 10, ADAMW, {}, {}),
    ("unet", "segmentation", 10, ADAMW, {}, {"width": 8}),
    ("unet", "segmentation", 2, ADAMW, {}, {"width": 8}),
    ("unet", "segmentation", 150, ADAMW, {}, {"width": 8}),
    ("unet", "segmentation", 150, {}, {"activation_checkpointing": True}, {"width": 8}),
    ("diffusion_unet", "diffusion", 1, ADAMW, {}, {"width": 8, "depth": 1}),
    ("diffusion_unet", "diffusion", 1, ADAMW, {"activation_checkpointing": True}, {"width": 8, "depth": 1}),
    *((name, "classification", 10, ADAMW, {}, {}) for name in OWN),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "task", "classes", "training", "memory", "sizes"), RUNS)
def test_the_count_is_within_a_tenth_of_malloc(monkeypatch, model, task, classes, training, memory, sizes):
    assert len(RUNS) == 20
    if model in OWN:
        name = f"calibration_{model}"  # networks of a name are built once
        own = OWN[model]
        spec = ModelSpec(task=task, build=lambda num_classes, side: own(num_classes))
        monkeypatch.setitem(MODELS, name, spec)
        model = name
    config = config_of(model, training, memory, sizes)
    counted = footprint(config, task, device="cpu", precision="fp32", classes=classes)
    found = counted.allocated - counted.workspace - counted.batches
    allocated(config, task, classes)  # the libraries keep buffers from their first use on
    assert found == pytest.approx(allocated(config, task, classes), rel=0.1)
