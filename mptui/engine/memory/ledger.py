"""The memory of a training run on a device, before anything is allocated: the ledger of a step.

Weights, optimizer, averages, gradients, activations and temporaries are counted: see `step_trace`. What no
tensor shows is estimated: the workspaces of the libraries as `WORKSPACE` times the largest activation, and
the libraries themselves as `CONTEXT_BYTES`. Compiled code, which mostly saves less, counts as eager code, and
a data set cached on the device is not included.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mptui.config.schema import ModelConfig, RunConfig, TrainingConfig
from mptui.engine.job import build_average
from mptui.engine.memory.allocations import AllocationLog
from mptui.engine.memory.step_trace import (
    SIZES,
    StepMemory,
    StepTracer,
    autocast_as_there,
    no_storage,
    steady_deaths,
)
from mptui.engine.optim.ema import WeightAverage
from mptui.engine.optim.freezing import FrozenLayers, frozen_at_last
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizer import build_optimizer, supports_fused
from mptui.engine.precision.amp import DTYPES, Precision
from mptui.engine.precision.fp32_layers import apply_fp32_layers
from mptui.hardware.devices import CONTEXT_BYTES
from mptui.models.activation_checkpointing import blocks_of
from mptui.models.latent.frozen_vae import vae_bytes
from mptui.models.layers import has_batch_norm
from mptui.models.zoo import build, input_shape
from mptui.registry.tasks import TASKS
from mptui.tasks.build_task import build_task

WORKSPACE = 1.0
"""Workspaces of convolutions, and memory that the allocator can't reuse, in largest activations."""

BATCHES_AHEAD = 1
"""Prefetched batches on the device, beside the current one."""

_LOCK = Lock()


@dataclass(frozen=True, slots=True)
class UpdateMemory:
    """Bytes of what lasts from step to step, and of an update of the weights.

    Attributes:
        parameters: Number of parameters of the network.
        weights: Bytes of parameters and buffers, and of the statistics that a refused step goes back to.
        gradients: Bytes of the gradients of what is trained.
        optimizer: Bytes of the optimizer's state.
        average: Bytes of averaged weights.
        temporary: Most bytes that the update takes for a moment.
        has_batch_norm: Whether the network has BatchNorm, whose statistics are those of a micro-batch.
    """

    parameters: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    temporary: int
    has_batch_norm: bool


@dataclass(frozen=True)
class Footprint:
    """Peak memory of a training step in bytes, by part.

    Attributes:
        batch_size: Samples of a micro-batch.
        parameters: Number of parameters of the network.
        weights: Parameters and buffers, and the statistics that a refused step goes back to.
        gradients: All gradients; at the peak, only some of them may exist.
        optimizer: State of the optimizer.
        average: Averaged weights.
        activations: Tensors of the forward pass that are alive at the peak.
        working: Temporaries at the peak.
        workspace: Workspaces of the libraries, estimated.
        batches: The batch, and prefetched ones.
        context: The libraries.
        per_sample: Bytes of each further sample in a micro-batch.
        gradients_at_peak: The gradients that exist at the peak.
        by_module: `activations` by submodule.
        has_batch_norm: Whether the network has BatchNorm, whose statistics are those of a micro-batch.
        step: The step that all of it is counted in.
        beside: Bytes of each sample beside those of the step.
    """

    batch_size: int
    parameters: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    working: int
    workspace: int
    batches: int
    context: int
    per_sample: float
    gradients_at_peak: int
    by_module: dict[str, int]
    has_batch_norm: bool
    step: StepMemory = field(repr=False, compare=False)
    beside: float

    @property
    def allocated(self) -> int:
        """Peak bytes of tensors and workspaces, as `torch.cuda.max_memory_allocated` counts them."""
        parts = self.weights, self.gradients_at_peak, self.optimizer, self.average
        return sum(parts) + self.activations + self.working + self.workspace + self.batches

    @property
    def total(self) -> int:
        """Peak bytes on the device."""
        return self.allocated + self.context

    def largest_batch(self, free: int) -> int:
        """Return the largest micro-batch whose peak fits in `free` bytes."""
        lasting = self.weights + self.optimizer + self.average + self.context
        return self.step.largest_batch(free - lasting, self.beside)


def rows_of(config: RunConfig) -> int:
    """Return the samples of a pass; where their number is determined by trial, those of the batch."""
    batch, limit = config.training.batch_size, config.memory.micro_batch
    return min(batch, limit) if isinstance(limit, int) else batch


def of_one_rank(config: RunConfig, ranks: int) -> RunConfig:
    """Return the run with the share of its batch that one of several processes trains."""
    share = config.training.model_copy(update={"batch_size": -(-config.training.batch_size // ranks)})
    return config.model_copy(update={"training": share})


def footprint(config: RunConfig, task: str, *, device: str, precision: str, classes: int) -> Footprint:
    """Count the memory of a run of `config` on a device of type `device`, in `precision`.

    The device need not exist: autocast behaves as there. Counts share networks, and wait for one another.

    Args:
        config: The run.
        task: Its task.
        device: Type of its device.
        precision: The precision in use.
        classes: Number of classes of its data.

    Raises:
        ConfigError: There is no such network, or it does not support this task or image size.
        UncountableError: The network can't be counted.
    """
    training, memory, data = config.training, config.memory, config.data
    rows = rows_of(config)
    frozen = frozen_at_last(training)
    network = _Network(
        config.model.model_dump_json(),
        task,
        classes,
        int(data.image_size or 0),
        data.channels,
        "cuda" if device == "rocm" else device,
        tuple(frozen) if isinstance(frozen, list) else frozen,
    )
    with _LOCK:
        update = _update_memory(network, _settings(training, _UPDATE), fused=config.speed.fused is not False)
        step = _pass_memory(
            network,
            _settings(
                training, set(TASKS[task].settings) - {"class_weights"}
            ),  # which would need the classes
            "bf16" if precision == "fp16" else precision,  # as many bytes, of the same operations
            tuple(config.precision.fp32_layers),
            checkpointed=memory.activation_checkpointing,
            accumulating=training.accumulate > 1 or rows < training.batch_size,
        ).then("temporary", update.temporary)
    at_peak = step.at_peak(rows)
    uses = {use: sum(size for (of, _), size in at_peak.items() if of == use) for use, _ in at_peak}
    image = math.prod(network.shape) * 4
    workspace = WORKSPACE * step.largest("activations")
    return Footprint(
        batch_size=rows,
        parameters=update.parameters,
        weights=update.weights + vae_bytes(config.model),
        gradients=update.gradients,
        optimizer=update.optimizer,
        average=update.average,
        activations=uses.get("activations", 0),
        working=uses.get("temporary", 0),
        workspace=int(workspace * rows),
        batches=uses.get("batch", 0) + BATCHES_AHEAD * image * rows,
        context=CONTEXT_BYTES.get(device, 0),
        per_sample=step.per_sample(rows) + workspace + BATCHES_AHEAD * image,
        gradients_at_peak=uses.get("gradients", 0),
        by_module={module: size for (use, module), size in at_peak.items() if use == "activations"},
        has_batch_norm=update.has_batch_norm,
        step=step,
        beside=workspace + BATCHES_AHEAD * image,
    )


@dataclass(frozen=True, slots=True)
class _Network:
    """What a network without storage is built from.

    Attributes:
        settings: The table [model] as JSON, since it may hold lists, which have no hash.
    """

    settings: str
    task: str
    classes: int
    side: int
    bands: int
    device: str
    frozen: Literal["backbone"] | tuple[str, ...] | None

    @property
    def model(self) -> ModelConfig:
        """The table [model]."""
        return ModelConfig.model_validate_json(self.settings)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of its input, without the batch."""
        return input_shape(self.model, self.bands, self.side)


class _WithoutStorage:
    """A network of tensors without storage, to count in; `use` leaves it as it was."""

    def __init__(self, network: _Network) -> None:
        self._mode = FakeTensorMode(allow_fallback_kernels=False)
        with no_storage(self._mode), torch.device(network.device):
            self.model = build(
                network.model,
                num_classes=network.classes,
                task=network.task,
                side=network.side,
                bands=network.bands,
            )
        frozen = network.frozen
        FrozenLayers(self.model, list(frozen) if isinstance(frozen, tuple) else frozen)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @contextmanager
    def use(self) -> Iterator[torch.nn.Module]:
        try:
            with no_storage(self._mode):
                yield self.model
        finally:
            self.clear_gradients()

    def make_gradients(self) -> list[torch.Tensor]:
        gradients = [torch.zeros_like(parameter) for parameter in self.trained]
        for parameter, gradient in zip(self.trained, gradients, strict=True):
            parameter.grad = gradient
        return gradients

    def clear_gradients(self) -> None:
        for parameter in self.trained:
            parameter.grad = None


_built = lru_cache(maxsize=4)(_WithoutStorage)


def _settings(training: TrainingConfig, keys: set[str]) -> TrainingConfig:
    """Return the training settings of these keys, so that others share a count."""
    return TrainingConfig(**{key: getattr(training, key) for key in keys})


_UPDATE = {"optimizer", "momentum", "ema_decay", "clip_grad_norm"}
"""Settings that the memory of an update depends on."""


@lru_cache(maxsize=64)
def _update_memory(network: _Network, training: TrainingConfig, *, fused: bool) -> UpdateMemory:
    """Count an update of the weights: the second one, since some optimizers make their state in the first."""
    device, made = torch.device(network.device), _built(network)
    with made.use() as model, torch.no_grad():
        lr = torch.zeros((), device=device)
        fused = fused and supports_fused(training.optimizer, device)
        optimizer = build_optimizer(model, training, lr, fused=fused)
        average = build_average(model, training, optimizer, None)
        updater = Updater(
            model,
            optimizer,
            Precision("fp32", device),
            lr=lr,
            rates=lambda applied: np.zeros(2, np.float32),
            clip_grad_norm=training.clip_grad_norm,
            average=average,
        )
        for _ in range(2):
            made.make_gradients()
            log = AllocationLog()
            with log:
                updater.step(lr)
        updater.close()
        states = [value for state in optimizer.state.values() for value in state.values()]
        return UpdateMemory(
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            weights=_bytes((*model.parameters(), *model.buffers()))
            + _bytes(row.accepted for row in updater.buffers.rows),
            gradients=_bytes(made.trained),
            optimizer=_bytes(states),
            average=_bytes(average.averages()) if isinstance(average, WeightAverage) else 0,
            temporary=log.peak(),
            has_batch_norm=has_batch_norm(model),
        )


def _bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the storages of these tensors; values of other types have none."""
    storages = [value.untyped_storage() for value in values if isinstance(value, torch.Tensor)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


@lru_cache(maxsize=64)
def _pass_memory(
    network: _Network,
    training: TrainingConfig,
    precision: str,
    fp32_layers: tuple[str, ...],
    *,
    checkpointed: bool,
    accumulating: bool,
) -> StepMemory:
    """Count a forward and a backward pass; `accumulating`: other micro-batches have left their gradients."""
    autocast = partial(autocast_as_there, network.device, DTYPES.get(precision))
    made, logs = _built(network), []
    with made.use() as model, steady_deaths():
        learnt = build_task(network.task, [str(number) for number in range(network.classes)], training)
        regions = apply_fp32_layers(model, list(fp32_layers), torch.device(network.device))
        for size in SIZES:
            log = AllocationLog()
            tracer = StepTracer(model, log, autocast, blocks_of(model) if checkpointed else [])
            made.clear_gradients()
            if accumulating:
                for gradient in made.make_gradients():
                    log.note(gradient, "gradients")
            shape = size, *network.shape
            with log.on("batch"), log:
                batch = learnt.made_up_batch(torch.zeros(shape, device=network.device))
            tracer.run(batch, learnt)
            tracer.close()
            logs.append(log)
        for region in regions:
            region.remove()
    return StepMemory.from_logs(*logs)
