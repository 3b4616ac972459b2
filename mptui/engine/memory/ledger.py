"""The memory of a step before anything is allocated: the ledger by part, what fits, and what saves some."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError

from mptui import text as fmt
from mptui.config.keys import nested, with_values
from mptui.config.schema import ModelConfig, RunConfig, TrainingConfig
from mptui.engine.job import Parts, build_average
from mptui.engine.memory.tape import (
    SIZES,
    AllocationLog,
    NoStorage,
    StepMemory,
    StepTracer,
    UncountableError,
    autocast_as_there,
    no_storage,
    steady_deaths,
)
from mptui.engine.optim.averages import WeightAverage
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import FrozenLayers, build_optimizer, frozen_at_last, supports_fused
from mptui.engine.precision import DTYPES, Precision, apply_fp32_layers
from mptui.errors import ConfigError
from mptui.hardware.devices import CONTEXT_BYTES, USABLE
from mptui.models.latents import vae_bytes
from mptui.models.layers import blocks_of, has_batch_norm
from mptui.models.zoo import build, input_shape
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.tasks import TASKS
from mptui.tasks.build_task import build_task

# The memory of a training run on a device, before anything is allocated: the ledger of a step
# --------------------------------------------------------------------------------------------
# Weights, optimizer, averages, gradients, activations and temporaries are counted: see `step_trace`. What
# no tensor shows is estimated: the workspaces of the libraries as `WORKSPACE` times the largest activation,
# and the libraries themselves as `CONTEXT_BYTES`. Compiled code, which mostly saves less, counts as eager
# code, and a data set cached on the device is not included.

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
class Footprint(UpdateMemory):
    """Peak memory of a training step in bytes, by part; at the peak, only some gradients may exist.

    Attributes:
        batch_size: Samples of a micro-batch.
        activations: Tensors of the forward pass that are alive at the peak.
        working: Temporaries at the peak.
        workspace: Workspaces of the libraries, estimated.
        batches: The batch, and prefetched ones.
        context: The libraries.
        per_sample: Bytes of each further sample in a micro-batch.
        gradients_at_peak: The gradients that exist at the peak.
        by_module: `activations` by submodule.
        step: The step that all of it is counted in.
        beside: Bytes of each sample beside those of the step.
    """

    batch_size: int
    activations: int
    working: int
    workspace: int
    batches: int
    context: int
    per_sample: float
    gradients_at_peak: int
    by_module: dict[str, int]
    step: StepMemory = field(repr=False, compare=False)
    beside: float

    @property
    def parts(self) -> dict[str, int]:
        """What the peak is made of, by the names of these attributes."""
        return {
            "weights": self.weights,
            "gradients_at_peak": self.gradients_at_peak,
            "optimizer": self.optimizer,
            "average": self.average,
            "activations": self.activations,
            "working": self.working,
            "batches": self.batches,
            "workspace": self.workspace,
            "context": self.context,
        }

    @property
    def total(self) -> int:
        """Peak bytes on the device."""
        return sum(self.parts.values())

    @property
    def allocated(self) -> int:
        """Peak bytes of tensors and workspaces, as `torch.cuda.max_memory_allocated` counts them."""
        return self.total - self.context

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
    return with_values(config, {"training.batch_size": -(-config.training.batch_size // ranks)})


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
        **{**asdict(update), "weights": update.weights + vae_bytes(config.model)},
        batch_size=rows,
        activations=uses.get("activations", 0),
        working=uses.get("temporary", 0),
        workspace=int(workspace * rows),
        batches=uses.get("batch", 0) + BATCHES_AHEAD * image * rows,
        context=CONTEXT_BYTES.get(device, 0),
        per_sample=step.per_sample(rows) + workspace + BATCHES_AHEAD * image,
        gradients_at_peak=uses.get("gradients", 0),
        by_module={module: size for (use, module), size in at_peak.items() if use == "activations"},
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
        self._mode = NoStorage()
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
                batch = learnt.dummy_batch(torch.zeros(shape, device=network.device))
            tracer.run(batch, learnt)
            tracer.close()
            logs.append(log)
        for region in regions:
            region.remove()
    return StepMemory.from_logs(*logs)


# Keeps a run within `memory.budget_gib`: what is counted chooses how, before anything is allocated
# -------------------------------------------------------------------------------------------------


def kept_within(
    config: RunConfig, task: str, *, device: str, precision: str, classes: int, ranks: int = 1
) -> RunConfig:
    """Choose activation checkpointing and micro-batch of a run so that its memory is within its budget.

    What is set stays: checkpointing that is on, and `memory.micro_batch` as the most samples per pass. A
    network with BatchNorm is checkpointed before its batches are split, since that leaves its result the
    same, and others are split first, which takes less time.

    Args:
        config: The run; without a budget it is returned as it is.
        task: Its task.
        device: Type of its device.
        precision: The precision in use.
        classes: Number of classes of its data.
        ranks: Processes that share each batch.

    Raises:
        ConfigError: Not even one sample fits, or a network can't be counted on a device that has no limit.
    """
    budget = config.memory.budget_gib
    if budget is None:
        return config
    count = _Counts(of_one_rank(config, ranks), task, device, precision, classes)
    room = int(budget * USABLE * (1 << 30))
    try:
        rows, checkpointed = _chosen(count, room, checkpointed=config.memory.activation_checkpointing)
        if not rows:
            raise _nothing_fits(count, budget)
    except UncountableError as error:
        if device == "cuda":  # allocations are held to the budget there, and what doesn't fit is split
            return config
        raise ConfigError(
            f"memory.budget_gib: the memory of {config.model.name} can't be counted in advance",
            hint="leave it unset, or use another network",
        ) from error
    is_whole = rows >= count.config.training.batch_size
    return _in_pieces(config, None if is_whole else rows, checkpointed=checkpointed)


def _in_pieces(config: RunConfig, rows: int | None, *, checkpointed: bool) -> RunConfig:
    memory = {"memory.micro_batch": rows, "memory.activation_checkpointing": checkpointed}
    return with_values(config, memory)


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts a run, or one rank of it, with other micro-batches, with and without checkpointing."""

    config: RunConfig
    task: str
    device: str
    precision: str
    classes: int

    def at(self, rows: int, *, checkpointed: bool) -> Footprint:
        """Count passes of `rows` samples.

        Raises:
            ConfigError: The network has no blocks to checkpoint.
        """
        config = _in_pieces(self.config, rows, checkpointed=checkpointed)
        return footprint(
            config, self.task, device=self.device, precision=self.precision, classes=self.classes
        )

    @property
    def most(self) -> int:
        """The most samples per pass that the settings allow."""
        return rows_of(self.config)

    def largest(self, room: int, *, checkpointed: bool) -> int:
        """Return the most samples per pass that fit into `room` bytes; 0: none."""
        if self.at(self.most, checkpointed=checkpointed).total <= room:
            return self.most
        # of a split batch, the gradients of the other parts are there, too
        return min(self.most, self.at(1, checkpointed=checkpointed).largest_batch(room))


def _chosen(count: _Counts, room: int, *, checkpointed: bool) -> tuple[int, bool]:
    """Return the samples per pass, 0 if not even one fits, and whether blocks are checkpointed."""
    if checkpointed:
        return count.largest(room, checkpointed=True), True
    plain = count.largest(room, checkpointed=False)
    split = plain < count.most
    splits_badly = split and (not plain or count.at(1, checkpointed=False).has_batch_norm)
    if splits_badly:
        with suppress(ConfigError):  # it has no blocks
            more = count.largest(room, checkpointed=True)
            if more > plain:
                return more, True
    return plain, False


def _nothing_fits(count: _Counts, budget: float) -> ConfigError:
    least = count.at(1, checkpointed=count.config.memory.activation_checkpointing)
    with suppress(ConfigError):
        least = count.at(1, checkpointed=True)
    return ConfigError(
        f"memory.budget_gib = {budget:g}: one image at {count.config.data.image_size} px takes "
        f"{fmt.size(least.total)} in {count.precision}, and a tenth of the budget stays free",
        hint=f"see where it goes with mptui memory --card {budget:g}GiB; try 16 bits, a smaller "
        "data.image_size, or a smaller model",
    )


# What each setting that saves memory would save of a run: the levers of its ledger
# ---------------------------------------------------------------------------------

_PARTS = 4
"""Micro-batches that the lever splits a batch into."""
_TWO_STATES = 8
"""Bytes of optimizer state for each weight from which one with a single state saves memory."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A setting that saves memory.

    Attributes:
        setting: As for `--set`.
        effect: What else it changes.
        footprint: The memory of the run with it.
        any_batch: Whether the batch may then be of any size, since only parts of it are on the device.
    """

    setting: str
    effect: str
    footprint: Footprint
    any_batch: bool


def levers(config: RunConfig, task: str, *, device: str, precision: str, classes: int) -> Iterator[Lever]:
    """Count the memory of a run with each setting that saves some and isn't set, those first that cost least.

    Args:
        config: The run.
        task: Its task.
        device: Type of its device.
        precision: The precision in use.
        classes: Number of classes of its data.

    Raises:
        UncountableError: As `footprint`.
    """
    for setting, effect, changes in _candidates(config, precision):
        used = changes.pop("precision.mode", precision)
        try:
            changed = _with(config, changes)
            counted = footprint(changed, task, device=device, precision=used, classes=classes)
            split = "memory.micro_batch" in changes
            note = "; BatchNorm by part" if split and counted.has_batch_norm else ""
            yield Lever(setting, effect + note, counted, split)
        except (ConfigError, ValidationError):  # this network has no blocks, or the settings exclude it
            continue


def enough(
    config: RunConfig, task: str, *, device: str, precision: str, classes: int, room: int
) -> Lever | None:
    """Return the first lever with which a run fits into `room` bytes, with a margin; None: none, or it does.

    Raises:
        ConfigError, UncountableError: As `footprint`.
    """
    counted = footprint(config, task, device=device, precision=precision, classes=classes)
    if counted.total <= USABLE * room:
        return None  # something else has the memory
    found = levers(config, task, device=device, precision=precision, classes=classes)
    return next((lever for lever in found if lever.footprint.total <= USABLE * room), None)


def _candidates(config: RunConfig, precision: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    training, memory = config.training, config.memory
    if precision == "fp32":
        yield "precision.mode=bf16", "16-bit activations", {"precision.mode": "bf16"}
    if config.speed.fused is False:
        yield "speed.fused=true", "the same update in one kernel", {"speed.fused": True}
    if not memory.activation_checkpointing:
        effect = "the same result, a third slower"
        yield "memory.activation_checkpointing=true", effect, {"memory.activation_checkpointing": True}
    if (rows := rows_of(config)) > 1:
        part = -(-rows // _PARTS)
        effect = "the same batch in parts"
        yield f"memory.micro_batch={part}", effect, {"memory.micro_batch": part}
    if training.ema_decay is not None:
        yield "training.ema_decay=none", "no averaged weights", {"training.ema_decay": None}
    if OPTIMIZERS[training.optimizer].state_bytes >= _TWO_STATES:
        effect = "one state instead of two; needs another rate"
        yield "training.optimizer=lion", effect, _of_lion(config)


def _of_lion(config: RunConfig) -> dict[str, Any]:
    """Return the settings of lion, without those that it doesn't take."""
    other = dict.fromkeys(("training.nesterov", "training.betas", "training.eps"))
    return {"training.optimizer": "lion", **other}


def _with(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """Return a configuration with other values of some keys (`table.key`).

    Raises:
        ValidationError: They exclude each other.
    """
    document = config.model_dump()
    for table, values in nested(changes).items():
        document[table] |= values
    return RunConfig.model_validate(document)


# What the memory of a CUDA device belongs to when it is full
# -----------------------------------------------------------
# torch's allocator lists its blocks by address (`torch.cuda.memory_snapshot`). A block belongs to the tensors
# that begin in it; what belongs to none that the run keeps are activations, their gradients and temporaries.

GAPS = "free, in gaps"
REST = "activations and temporaries"
_ACTIVE = "active"


def kept_tensors(model: torch.nn.Module, parts: Parts) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that last from step to step, by what they are."""
    states = parts.optimizer.state.values()
    average = parts.average
    return {
        "weights": [*model.parameters(), *model.buffers()],
        "gradients": [each.grad for each in model.parameters() if each.grad is not None],
        "optimizer states": [
            value for state in states for value in state.values() if isinstance(value, torch.Tensor)
        ],
        "averaged weights": average.averages() if isinstance(average, WeightAverage) else [],
    }


def owners(
    segments: Iterable[Mapping[str, Any]], kept: Mapping[str, Iterable[torch.Tensor]]
) -> list[tuple[str, int]]:
    """Return what the allocator's memory belongs to, the largest first: names and bytes.

    Args:
        segments: Those of torch's snapshot, of one device.
        kept: The tensors of the run by what they are.
    """
    blocks = []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            blocks.append((address, block["size"], block["state"].startswith(_ACTIVE)))
            address += block["size"]
    blocks.sort()
    starts = [address for address, _, _ in blocks]
    names: dict[int, str] = {}
    for name, tensors in kept.items():
        for tensor in tensors:
            number = bisect_right(starts, tensor.untyped_storage().data_ptr()) - 1
            if number >= 0:
                names[number] = name
    sums: Counter[str] = Counter()
    for number, (_, size, is_active) in enumerate(blocks):
        sums[names.get(number, REST) if is_active else GAPS] += size
    return sums.most_common()


def owners_in_words(model: torch.nn.Module, parts: Parts, device: torch.device) -> str:
    """Describe what the memory of a device belongs to now; "" where its allocator doesn't tell."""
    if device.type != "cuda":
        return ""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    here = [each for each in segments if each["device"] == (device.index or 0)]
    return ", ".join(f"{fmt.size(size)} {name}" for name, size in owners(here, kept_tensors(model, parts)))
