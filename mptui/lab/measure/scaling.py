"""Simulates training on many ranks in one process: memory, collectives and the duration of a step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import ceil, log2
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import FlopCounterMode

from mptui.config.schema import RunConfig
from mptui.engine.memory.ledger import Footprint, footprint
from mptui.engine.memory.tape import no_storage
from mptui.engine.optim.optimizers import FrozenLayers, frozen_at_last
from mptui.errors import ConfigError
from mptui.models.layers import blocks_of
from mptui.models.zoo import build, input_shape
from mptui.tasks.build_task import build_task
from mptui.torch_private import begin_fake_group, buckets_of

# Predicts the duration of a training step on several ranks, from that on one and a bandwidth
# -------------------------------------------------------------------------------------------
# Computation takes its time in proportion to floating-point operations. A rank has one link, on which
# collectives run one after another, beside the computation. Durations of collectives follow the usual model
# of bandwidth and latency (Thakur et al. 2005, "Optimization of Collective Communication Operations in
# MPICH"): each rank sends (n-1)/n of the bytes in an all-gather and in a reduce-scatter, and twice that in
# an all-reduce, in log2(n) hops, as NCCL's trees have. All ranks are equally fast.


@dataclass(frozen=True, slots=True)
class Link:
    """What connects `ranks` ranks: bytes per second and direction of each, and seconds per hop."""

    ranks: int
    bytes_per_s: float
    latency_s: float

    def gather_s(self, size: int) -> float:
        """Return the seconds of an all-gather to `size` bytes, or of a reduce-scatter of as many."""
        share = (self.ranks - 1) / self.ranks
        return share * size / self.bytes_per_s + ceil(log2(self.ranks)) * self.latency_s

    def reduce_s(self, size: int) -> float:
        """Return the seconds of an all-reduce of `size` bytes."""
        return 2 * self.gather_s(size)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together: their bytes, and the fraction of the step when they are ready."""

    size: int
    ready: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a sharded network.

    Attributes:
        share: Its fraction of the computation, forward and backward alike.
        gathered: Bytes of its weights, as gathered from all ranks.
        reduced: Bytes of its gradients, before they are scattered.
    """

    share: float
    gathered: int
    reduced: int


def replicated_step_s(step_s: float, buckets: Sequence[Bucket], link: Link) -> float:
    """Return the seconds of a step of DistributedDataParallel; buckets are reduced as they are ready."""
    free = 0.0
    for bucket in buckets:
        free = max(free, bucket.ready * step_s) + link.reduce_s(bucket.size)
    return max(step_s, free)


def sharded_step_s(step_s: float, forward: float, segments: Sequence[Segment], link: Link) -> float:
    """Return the seconds of a step of FSDP2.

    The weights of a segment are gathered while the one before it computes. The first segment, the root, keeps
    its weights until the backward pass has ended.

    Args:
        step_s: Seconds of a step on one rank.
        forward: Fraction of the step that is its forward pass.
        segments: Parts of the network in the order of the forward pass, the root first.
        link: The link of a rank.
    """
    free = began = done = 0.0

    def compute(segment: Segment, seconds: float, *, gather: bool = True) -> None:
        nonlocal free, began, done
        if gather:
            free = max(free, began) + link.gather_s(segment.gathered)
        began = max(done, free) if gather else done
        done = began + segment.share * seconds

    for segment in segments:
        compute(segment, forward * step_s)
    for segment in reversed(segments):
        compute(segment, (1 - forward) * step_s, gather=segment is not segments[0])
        free = max(free, done) + link.gather_s(segment.reduced)
    return max(done, free)


# Simulates training on many ranks in one process: memory, collectives and the duration of a step
# -----------------------------------------------------------------------------------------------
# The network passes one micro-batch forward and backward as tensors without storage (FakeTensorMode), which
# gives the order of gradients and the operations before each. `fully_shard` shards it over a process group
# that does no communication (torch's `fake` backend), which gives what a rank holds. Neither needs a GPU.

_WEIGHT_BYTES = 4
"""Weights are gathered in fp32, as `memory.shard` does."""
_SAMPLES = 2
"""BatchNorm needs at least 2 samples in training."""
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20
"""Bytes from which DistributedDataParallel starts to reduce: a small first bucket, then its default."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The course of a training step.

    Attributes:
        forward: Fraction of its operations in the forward pass.
        buckets: Gradients as DistributedDataParallel reduces them, in order.
        shares: Fraction of the forward pass outside of blocks before the first one, then of each block.
        order: Blocks in the order of the forward pass, as indices.
    """

    forward: float
    buckets: list[Bucket]
    shares: list[float]
    order: list[int]


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """What a rank holds of the weights outside of blocks, then of each block: numbers of values."""

    held: list[int]
    trained: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A way to train on a number of ranks: seconds, bytes; no speed where that of one device is unknown."""

    step_s: float | None = None
    efficiency: float | None = None
    samples_per_second: float | None = None
    memory_bytes: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    gathered_bytes: int
    """Weights and gradients of blocks that are whole for a moment."""
    collectives: int
    collective_bytes: int
    """Bytes of all collectives of a step, as each rank has them."""
    collective_s: float
    """Seconds of these on the link, most of them beside the computation."""


class Simulation:
    """Simulates a training on several ranks, each with the batch of one.

    Args:
        config: The run.
        task: Its task.
        device: Type of its device.
        precision: Its precision.
        classes: Number of classes of its data.

    Raises:
        ConfigError: There is no such network, or it does not suit the images.
        UncountableError: The memory of the network can't be estimated.
    """

    def __init__(self, config: RunConfig, task: str, *, device: str, precision: str, classes: int) -> None:
        self._config = config
        self._task = task
        self._classes = classes
        self.footprint: Footprint = footprint(
            config, task, device=device, precision=precision, classes=classes
        )

    @cached_property
    def trace(self) -> Trace:
        """The course of a step."""
        return self._traced()

    def replicated(self, link: Link, step_s: float | None = None) -> Prediction:
        """Predict DistributedDataParallel, where each rank has the whole network.

        Args:
            link: The link of a rank.
            step_s: Seconds of a step on one device; None: unknown.
        """
        whole, buckets = self.footprint, self.trace.buckets
        sizes = [bucket.size for bucket in buckets]
        found = self._prediction(
            weights=whole.weights,
            scale=1.0,
            gathered=0,
            sizes=sizes,
            collective_s=sum(map(link.reduce_s, sizes)),
        )
        if step_s is None:
            return found
        return self._with_speed(found, link, step_s, replicated_step_s(step_s, buckets, link))

    def sharded(self, link: Link, step_s: float | None = None) -> Prediction:
        """Predict FSDP2, where each block and the rest of the network are sharded; as `replicated`."""
        whole, shard = self._shard(link.ranks)
        parts = [0, *(1 + block for block in self.trace.order)]
        segments = [
            Segment(
                share,
                gathered=shard.held[part] * link.ranks * _WEIGHT_BYTES,
                reduced=shard.trained[part] * link.ranks * 4,
            )
            for share, part in zip(self.trace.shares, parts, strict=True)
        ]
        root, blocks = segments[0], segments[1:]
        at_once = max((one.gathered + next_.gathered for one, next_ in pairwise(blocks)), default=0)
        sizes = [
            root.gathered,
            *(2 * [segment.gathered for segment in blocks]),
            *(segment.reduced for segment in segments if segment.reduced),
        ]
        found = self._prediction(
            weights=self.footprint.weights - 4 * (sum(whole.held) - sum(shard.held)),
            scale=sum(shard.trained) / max(1, sum(whole.trained)),
            gathered=root.gathered + at_once + max(segment.reduced for segment in segments),
            sizes=sizes,
            collective_s=sum(map(link.gather_s, sizes)),
        )
        if step_s is None:
            return found
        return self._with_speed(
            found, link, step_s, sharded_step_s(step_s, self.trace.forward, segments, link)
        )

    def _prediction(
        self, *, weights: int, scale: float, gathered: int, sizes: Sequence[int], collective_s: float
    ) -> Prediction:
        whole = self.footprint
        gradients, optimizer, average = (
            int(size * scale) for size in (whole.gradients, whole.optimizer, whole.average)
        )
        activations = whole.activations + whole.working + whole.workspace + whole.batches
        return Prediction(
            memory_bytes=weights + gradients + optimizer + average + activations + gathered + whole.context,
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer + average,
            activations_bytes=activations,
            gathered_bytes=gathered,
            collectives=len(sizes),
            collective_bytes=sum(sizes),
            collective_s=collective_s,
        )

    def _with_speed(self, found: Prediction, link: Link, alone_s: float, step_s: float) -> Prediction:
        samples = self._config.training.batch_size * link.ranks
        return replace(found, step_s=step_s, efficiency=alone_s / step_s, samples_per_second=samples / step_s)

    def _network(self) -> torch.nn.Module:
        side, bands = int(self._config.data.image_size or 0), self._config.data.channels
        network = build(
            self._config.model, num_classes=self._classes, task=self._task, side=side, bands=bands
        )
        FrozenLayers(network, frozen_at_last(self._config.training))
        return network

    def _traced(self) -> Trace:
        side, training = int(self._config.data.image_size or 0), self._config.training
        task = build_task(self._task, [str(number) for number in range(self._classes)], training)
        with no_storage(), FlopCounterMode(display=False) as counter:
            network = self._network()
            blocks = _blocks(network)
            entered: dict[int, int] = {}
            ready: list[tuple[torch.Tensor, int]] = []

            def enter(block: torch.nn.Module, _inputs: Any) -> None:  # noqa: ANN401 - a hook
                entered.setdefault(blocks.index(block), counter.get_total_flops())

            for block in blocks:
                block.register_forward_pre_hook(enter)
            for parameter in network.parameters():
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        lambda weight: ready.append((weight.grad, counter.get_total_flops()))
                    )
            images = torch.zeros(_SAMPLES, *input_shape(self._config.model, self._config.data.channels, side))
            batch = task.dummy_batch(images)
            loss = task.loss(network(*batch.inputs), batch, batch.valid, batch.size)
            forward = counter.get_total_flops()
            torch.autograd.backward(loss)
            total = counter.get_total_flops()
            buckets = buckets_of([gradient for gradient, _ in ready], [_FIRST_BUCKET, _BUCKET])
            marks = [0, *entered.values(), forward]
            return Trace(
                forward=forward / total,
                buckets=[
                    Bucket(sum(ready[each][0].nbytes for each in bucket), ready[bucket[-1]][1] / total)
                    for bucket in buckets
                ],
                shares=[(after - before) / forward for before, after in pairwise(marks)],
                order=list(entered),
            )

    def _shard(self, ranks: int) -> tuple[HeldWeights, HeldWeights]:
        """Return what one process holds, and rank 0 of `ranks`.

        That rank has the most, as dimension 0 of each weight is split.
        """
        with no_storage():
            network = self._network()
        _to_meta(network)
        blocks = _blocks(network)
        whole = _held(network, blocks)
        with _fake_group(ranks):
            mesh = init_device_mesh("cpu", (ranks,))
            for block in blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)
            return whole, _held(network, blocks)


def _held(network: torch.nn.Module, blocks: list[torch.nn.Module]) -> HeldWeights:
    inside = [list(block.parameters()) for block in blocks]
    of_blocks = {id(weight) for weights in inside for weight in weights}
    parts = [[weight for weight in network.parameters() if id(weight) not in of_blocks], *inside]
    return HeldWeights(
        held=[sum(_local(weight) for weight in part) for part in parts],
        trained=[sum(_local(weight) for weight in part if weight.requires_grad) for part in parts],
    )


def _to_meta(network: torch.nn.Module) -> None:
    """Replace the weights by ones that `fully_shard` splits quickly into many."""
    for module in network.modules():
        for name, weight in module.named_parameters(recurse=False):
            empty = torch.empty(weight.shape, device="meta")
            setattr(module, name, torch.nn.Parameter(empty, requires_grad=weight.requires_grad))


def _local(weight: torch.nn.Parameter) -> int:
    return (weight.to_local() if isinstance(weight, DTensor) else weight).numel()


def _blocks(network: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the blocks of a network; without any, all of it is gathered at once."""
    with suppress(ConfigError):
        return blocks_of(network)
    return []


@contextmanager
def _fake_group(ranks: int) -> Iterator[None]:
    begin_fake_group(ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
