"""How much memory a training step will take, counted before anything is allocated.

The network is built of tensors without storage (torch's FakeTensorMode) and run forward twice, at two batch
sizes. What autograd keeps for the backward pass is the activations' memory: affine in the batch, so that two
counts tell it for every batch. The rest follows from the number of weights. A fraction of a second.

What it can't know is left out or rounded: the allocator's and the convolutions' scratch memory is taken as
twice the largest kept activation, what a device's libraries take beside all tensors as `CONTEXT_BYTES`, and
compiled code, which mostly keeps less, is counted as eager code. A data set kept on the device comes on top.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mptui.config.schema import ModelConfig, RunConfig, TrainingConfig
from mptui.data.core.batch import Batch
from mptui.engine.precision.amp import DTYPES
from mptui.models.zoo import build
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.tasks import TASKS
from mptui.tasks.base import Task
from mptui.tasks.build_task import build_task

CONTEXT_BYTES = {"cuda": 640 << 20, "cpu": 100 << 20}
"""A CUDA context with its libraries; on a CPU the compiled kernels and what the allocator holds back."""

BATCHES_AHEAD = 1
"""Batches on the device beside the one in use, which is among the activations."""

_CLASSES = 10
_COUNTED = 2, 4
"""Batch sizes of the two counts; BatchNorm trains with no fewer than 2 samples."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a network keeps: bytes of its weights and buffers, and of a forward pass at a batch of n."""

    weights: int
    buffers: int
    activations: tuple[float, float]
    """Fixed, and for each sample."""
    largest: float
    """The largest single activation, for each sample."""


@dataclass(frozen=True)
class Footprint:
    """Bytes at the peak of a training step, part by part."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    working: int
    batches: int
    context: int
    per_sample: float
    """How much one more sample in a micro-batch adds."""

    @cached_property
    def total(self) -> int:
        """The peak: all of it at once, as in the first layers of the backward pass."""
        parts = self.weights, self.gradients, self.optimizer, self.average
        return sum(parts) + self.activations + self.working + self.batches + self.context

    def largest_batch(self, batch_size: int, free: int) -> int:
        """The largest micro-batch whose peak is within `free` bytes, given that this is of `batch_size`."""
        return max(0, batch_size + int((free - self.total) // self.per_sample))


def footprint(config: RunConfig, task: str, *, device: str, precision: str) -> Footprint:
    """Count what a run of `config` will take on a device of type `device`, computing in `precision`.

    Autocast's choices are those of CUDA where torch has it, else those of a CPU.

    Raises:
        ConfigError: There is no such network, or not for this task or size of image.
    """
    training, side = config.training, int(config.data.image_size or 0)
    like = device if device == "cuda" and torch.cuda.is_available() else "cpu"
    kept = _kept(config.model, task, side, precision, like, _loss_of(training, task))
    batch = training.batch_size
    fixed, each = kept.activations
    image = 3 * side * side * 4
    return Footprint(
        weights=kept.weights + kept.buffers,
        gradients=kept.weights,
        optimizer=kept.weights // 4 * OPTIMIZERS[training.optimizer].state_bytes,
        average=kept.weights if training.ema_decay else 0,
        activations=int(fixed + each * batch),
        working=int(2 * kept.largest * batch),
        batches=BATCHES_AHEAD * batch * image,
        context=CONTEXT_BYTES.get(device, 0),
        per_sample=each + 2 * kept.largest + BATCHES_AHEAD * image,
    )


def _loss_of(training: TrainingConfig, task: str) -> TrainingConfig:
    """All of a training table that the loss depends on, so that other tables share the count."""
    return TrainingConfig(**{key: getattr(training, key) for key in TASKS[task].settings})


@lru_cache(maxsize=64)
def _kept(
    model: ModelConfig, task: str, side: int, precision: str, device: str, training: TrainingConfig
) -> ModelMemory:
    learnt = build_task(task, [str(number) for number in range(_CLASSES)], training)
    with FakeTensorMode(), _NoValues(), torch.device(device):  # type: ignore[no-untyped-call]
        network = build(model, num_classes=_CLASSES, task=task, side=side)
        parameters, buffers = list(network.parameters()), list(network.buffers())
        counts = [
            _forward(
                network,
                learnt.made_up_batch(torch.zeros((size, 3, side, side), device=device)),
                learnt,
                precision,
                device,
            )
            for size in _COUNTED
        ]
    few, many = counts
    grown = (many - few) / (_COUNTED[1] - _COUNTED[0])
    each = float(grown.sum())
    return ModelMemory(
        weights=sum(p.numel() * p.element_size() for p in parameters),
        buffers=sum(b.numel() * b.element_size() for b in buffers),
        activations=(float(few.sum()) - each * _COUNTED[0], each),
        largest=float(grown.max()),
    )


def _forward(
    network: torch.nn.Module,
    batch: Batch,
    task: Task,
    precision: str,
    device: str,
) -> npt.NDArray[np.float64]:
    """Bytes of each tensor that autograd keeps of a forward pass and its loss, in the order it keeps them."""
    own = {p.untyped_storage()._cdata for p in (*network.parameters(), *network.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    dtype = DTYPES.get(precision)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device, dtype=dtype, enabled=dtype is not None),
    ):
        outputs = network(*batch.inputs)
        loss = task.loss(outputs, batch, batch.valid, batch.size)
    del loss
    return np.array([storage.nbytes() for storage in kept.values()], dtype=np.float64)


class _NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets code that reads a value (whether a random weight is out of range) find a zero."""

    def __torch_dispatch__(  # type: ignore[no-untyped-def] # its types are torch's own
        self,
        func,  # noqa: ANN001
        types,  # noqa: ANN001
        args=(),  # noqa: ANN001
        kwargs=None,  # noqa: ANN001
    ) -> Any:  # noqa: ANN401
        return 0 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **(kwargs or {}))
