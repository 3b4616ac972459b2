"""Estimates the memory of a training step before anything is allocated.

The network is built of tensors without storage (torch's FakeTensorMode) and run forward at two batch sizes.
The tensors that autograd saves for the backward pass are the activations: their size is affine in the batch,
so that two counts give it for every batch. The rest follows from the number of weights. It takes a fraction
of a second.

Some parts are approximations: workspaces of the allocator and of convolutions count as twice the largest
saved activation, the libraries of a device as `CONTEXT_BYTES`, and compiled code, which mostly saves less, as
eager code. A data set cached on the device is not included.

With activation checkpointing, the inputs of blocks are saved, and in the backward pass the activations of one
block at a time: the peak is the largest of these moments.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mptui.config.schema import ModelConfig, RunConfig, TrainingConfig
from mptui.data.core.batch import Batch
from mptui.engine.optim.freezing import FrozenLayers, frozen_at_last
from mptui.engine.optim.param_groups import hidden_matrices
from mptui.engine.precision.amp import DTYPES
from mptui.models.activation_checkpointing import blocks_of
from mptui.models.zoo import build
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.tasks import TASKS
from mptui.tasks.base import Task
from mptui.tasks.build_task import build_task

CONTEXT_BYTES = {"cuda": 640 << 20, "cpu": 100 << 20}
"""A CUDA context with its libraries; on a CPU compiled kernels and memory that the allocator retains."""

BATCHES_AHEAD = 1
"""Prefetched batches on the device, beside the current one, which counts as activations."""

_CLASSES = 10
_COUNTED = 2, 4
"""Batch sizes of the two counts; BatchNorm needs at least 2 samples in training."""


_INTEGERS = {torch.int32, torch.int64}


class UncountableError(Exception):
    """The memory of a network can't be estimated: its layers depend on values of tensors."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes of a network's weights, buffers and saved activations."""

    weights: int
    trained: int
    """The part of the weights that is trained."""
    matrices: int
    """Of this part, matrices of hidden layers."""
    buffers: int
    activations: tuple[float, float]
    """Fixed part, and part per sample."""
    largest: float
    """The largest single activation, per sample."""


@dataclass(frozen=True)
class Footprint:
    """Peak memory of a training step in bytes, by part."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    working: int
    batches: int
    context: int
    parameters: int
    """Number of parameters of the network."""
    per_sample: float
    """Bytes of each further sample in a micro-batch."""

    @cached_property
    def total(self) -> int:
        """Peak bytes: the sum of all parts, which coexist at the start of the backward pass."""
        parts = self.weights, self.gradients, self.optimizer, self.average
        return sum(parts) + self.activations + self.working + self.batches + self.context

    def largest_batch(self, batch_size: int, free: int) -> int:
        """Return the largest micro-batch whose peak fits in `free` bytes; `batch_size`: of this estimate."""
        return max(0, batch_size + int((free - self.total) // self.per_sample))


def footprint(config: RunConfig, task: str, *, device: str, precision: str) -> Footprint:
    """Estimate the memory of a run of `config` on a device of type `device`, in `precision`.

    Autocast behaves as on CUDA if that is the device and available, else as on a CPU.

    Raises:
        ConfigError: There is no such network, or it does not support this task or image size.
        UncountableError: The network can't be counted.
    """
    training, side = config.training, int(config.data.image_size or 0)
    like = device if device == "cuda" and torch.cuda.is_available() else "cpu"
    frozen = frozen_at_last(training)
    layers = tuple(frozen) if isinstance(frozen, list) else frozen
    bands = config.data.channels
    settings = config.model, task, side, bands, precision, like, _loss_of(training, task), layers
    kept = _kept(*settings, config.memory.activation_checkpointing)
    batch = training.batch_size
    fixed, each = kept.activations
    image = bands * side * side * 4
    return Footprint(
        weights=kept.weights + kept.buffers,
        gradients=kept.trained,
        optimizer=OPTIMIZERS[training.optimizer].state_of(kept.trained // 4, kept.matrices // 4),
        average=kept.trained if training.ema_decay else 0,
        activations=int(fixed + each * batch),
        working=int(2 * kept.largest * batch),
        batches=BATCHES_AHEAD * batch * image,
        context=CONTEXT_BYTES.get(device, 0),
        parameters=kept.weights // 4,
        per_sample=each + 2 * kept.largest + BATCHES_AHEAD * image,
    )


def _loss_of(training: TrainingConfig, task: str) -> TrainingConfig:
    """Return the training settings that the memory of the loss depends on, so that others share the count."""
    keys = set(TASKS[task].settings) - {"class_weights"}  # which would need the classes
    return TrainingConfig(**{key: getattr(training, key) for key in keys})


@lru_cache(maxsize=64)
def _kept(
    model: ModelConfig,
    task: str,
    side: int,
    bands: int,
    precision: str,
    device: str,
    training: TrainingConfig,
    layers: Literal["backbone"] | tuple[str, ...] | None,
    checkpointed: bool,
) -> ModelMemory:
    learnt = build_task(task, [str(number) for number in range(_CLASSES)], training)
    with FakeTensorMode(), NoValues(), torch.device(device):  # type: ignore[no-untyped-call]
        try:
            network = build(model, num_classes=_CLASSES, task=task, side=side, bands=bands)
        except DynamicOutputShapeException as error:
            raise UncountableError from error
        FrozenLayers(network, list(layers) if isinstance(layers, tuple) else layers)
        parameters, buffers = list(network.parameters()), list(network.buffers())
        blocks = blocks_of(network) if checkpointed else []
        few, many = (
            _forward(
                network,
                learnt.made_up_batch(torch.zeros((size, bands, side, side), device=device)),
                learnt,
                precision,
                device,
                blocks,
            )
            for size in _COUNTED
        )
    moments = [_affine(*sizes) for sizes in zip(few.moments(), many.moments(), strict=True)]
    return ModelMemory(
        weights=sum(p.numel() * p.element_size() for p in parameters),
        trained=sum(p.numel() * p.element_size() for p in parameters if p.requires_grad),
        matrices=sum(p.numel() * p.element_size() for p in hidden_matrices(network) if p.requires_grad),
        buffers=sum(b.numel() * b.element_size() for b in buffers),
        activations=max(moments, key=lambda moment: moment[1]),
        largest=max(
            _affine(*sizes)[1] for sizes in zip(chain(*few.sizes()), chain(*many.sizes()), strict=True)
        ),
    )


def _affine(few: float, many: float) -> tuple[float, float]:
    """Return the fixed part, and the part per sample, of a size that is counted at two batch sizes."""
    each = (many - few) / (_COUNTED[1] - _COUNTED[0])
    return few - each * _COUNTED[0], each


@dataclass(slots=True)
class _Saved:
    """Tensors that autograd saves, in order: outside of checkpointed blocks, and inside each."""

    own: set[int]
    """Storages that are not counted: weights and buffers."""
    outside: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    inside: list[dict[int, torch.UntypedStorage]] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    """For each block: how many are saved outside when it ends."""
    in_block: bool = False

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own and storage._cdata not in self.outside:
            (self.inside[-1] if self.in_block else self.outside)[storage._cdata] = storage
        return tensor

    def enter(self, _block: torch.nn.Module, inputs: Any, named: Any) -> None:  # noqa: ANN401 - a hook
        for value in tree_leaves((inputs, named)):
            if isinstance(value, torch.Tensor):
                self.keep(value)
        self.inside.append({})
        self.before.append(len(self.outside))
        self.in_block = True

    def leave(self, _block: torch.nn.Module, _inputs: Any, _outputs: Any) -> None:  # noqa: ANN401 - a hook
        self.in_block = False

    def sizes(self) -> list[list[int]]:
        """Return the bytes of each tensor: those outside, then those inside each block."""
        return [[storage.nbytes() for storage in part.values()] for part in (self.outside, *self.inside)]

    def moments(self) -> list[int]:
        """Return the bytes at the end of the forward pass, and in the backward pass of each block."""
        outside, *inside = self.sizes()
        return [
            sum(outside),
            *(sum(outside[:before]) + sum(block) for before, block in zip(self.before, inside, strict=True)),
        ]


def _forward(
    network: torch.nn.Module,
    batch: Batch,
    task: Task,
    precision: str,
    device: str,
    blocks: Sequence[torch.nn.Module],
) -> _Saved:
    """Return what autograd saves in a forward pass and its loss, where `blocks` are checkpointed."""
    saved = _Saved({p.untyped_storage()._cdata for p in (*network.parameters(), *network.buffers())})
    dtype = DTYPES.get(precision)
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(saved.enter, with_kwargs=True).remove)
            stack.callback(block.register_forward_hook(saved.leave).remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda tensor: tensor))
        stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
        outputs = network(*batch.inputs)
        loss = task.loss(outputs, batch, batch.valid, batch.size)
    del loss
    return saved


class NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Returns zero to code that reads a value of a fake tensor, e.g. to check the range of a weight.

    An integer may be a number of layers or channels (of RegNets), so that none is made up.
    """

    def __torch_dispatch__(  # type: ignore[no-untyped-def] # its types are torch's own
        self,
        func,  # noqa: ANN001
        types,  # noqa: ANN001
        args=(),  # noqa: ANN001
        kwargs=None,  # noqa: ANN001
    ) -> Any:  # noqa: ANN401
        if func is not torch.ops.aten._local_scalar_dense.default:
            return func(*args, **(kwargs or {}))
        if args[0].dtype in _INTEGERS:
            raise DynamicOutputShapeException(func)
        return 0
