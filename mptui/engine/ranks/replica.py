"""DDP, FSDP2."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from mptui.config.schema import RunConfig
from mptui.data.batch import Batch, Window
from mptui.data.sampler import Share
from mptui.engine.compile import eagerly
from mptui.engine.precision import Precision
from mptui.engine.ranks.group import Ranks, lost, shard_of
from mptui.engine.reporting.step_time import StepClock
from mptui.errors import ConfigError
from mptui.models.layers import blocks_of

# The network as one process of several trains it: each has all weights, and gradients are summed
# -----------------------------------------------------------------------------------------------
# `Replica` is that of a process that is alone. Synchronized BatchNorm is torch's own: each layer gathers
# the statistics of all ranks in the forward pass and sums their gradients in the backward pass, so all take
# the same number of passes.


class Replica:
    """The network of a process that trains alone.

    Attributes:
        network: What a training step calls.
    """

    tied_by = ""
    """The setting by which ranks wait for each other in each pass, so that none can leave a step or repeat it
    without the others; empty: there is none."""

    def __init__(self, network: torch.nn.Module) -> None:
        self.network = network

    def begin(self, window: Window, limit: int | None, clock: StepClock) -> None:
        """Begin a step that `clock` measures.

        Args:
            window: Its samples.
            limit: The most samples of a micro-batch; None: a batch is one.
            clock: Is told when this rank has all its own gradients, and waits for those of the others.
        """

    def synchronize(self, last: bool) -> None:
        """Say before a forward pass whether it is the window's last, whose backward pass sums gradients."""

    def fill_up(self, precision: Precision) -> list[torch.Tensor]:
        """Take the passes that other ranks have more of the window, with made-up samples.

        Returns:
            Their losses, 0.
        """
        return []

    def total(self, losses: list[torch.Tensor]) -> torch.Tensor:
        """Return the sum of the window's losses, 0-dim."""
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def sums_done(self) -> None:
        """Note that the sums of the step are done: those of the next one come next."""

    def make_up(self) -> None:
        """Take part in what is left of the others' sums of this step, which is not completed."""

    def renew(self) -> None:
        """Prepare for other steps after one that was not completed."""

    def full_weights(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this rank computes with all weights, without the others.

        All ranks enter it. Between two steps; gradients inside of it are dropped.
        """
        return contextlib.nullcontext()

    def close(self) -> None:
        """Let go of the network; all ranks do."""


class RankReplica(Replica):
    """The network of one rank of several; one with fewer passes than the others makes up for them.

    Args:
        network: The network, on its device.
        ranks: The ranks.
        dummy: Returns a batch of dummy samples.
        batch_size: Samples of a batch of all ranks.
    """

    _clock: StepClock
    """Measures the step under way."""

    def __init__(
        self, network: torch.nn.Module, ranks: Ranks, dummy: Callable[[], Batch], batch_size: int
    ) -> None:
        super().__init__(network)
        self._bare = network
        self._ranks = ranks
        self._dummy = dummy
        self._batch_size = batch_size
        self._share = Share(ranks.rank, ranks.world_size)
        self._short = 0
        self._norms = [each for each in network.modules() if isinstance(each, torch.nn.SyncBatchNorm)]
        self.tied_by = "training.sync_batch_norm" if self._norms else ""

    @override
    def begin(self, window: Window, limit: int | None, clock: StepClock) -> None:
        self._short = self._passes_short(window, limit)
        self._clock = clock

    @override
    def synchronize(self, last: bool) -> None:
        self._sum_after(last and not self._short)

    @abstractmethod
    def _sum_after(self, summed: bool) -> None:
        """Say whether the next backward pass sums gradients; they add up on each rank otherwise."""

    @override
    def fill_up(self, precision: Precision) -> list[torch.Tensor]:
        losses = []
        while self._short:
            self._short -= 1
            self.synchronize(last=True)
            batch = self._dummy()
            with precision.forward_context(), eagerly(self._bare):  # no code is compiled for its few rows
                loss = self.network(*batch.inputs).float().sum() * 0.0
            precision.backward(loss)
            losses.append(loss.detach())
        return losses

    def _passes_short(self, window: Window, limit: int | None) -> int:
        """Return how many passes this rank has to make up in a window of micro-batches of `limit` samples."""
        if not self.tied_by:
            return int(not window.batches)
        short = 0
        for first in range(0, window.size, self._batch_size):
            batch = range(min(self._batch_size, window.size - first))
            of_short = len(batch) < self._batch_size
            own = len(self._share.of(batch, short=of_short))
            most = self._share.largest(len(batch), short=of_short)
            short += -(-most // (limit or most)) - -(-own // (limit or most))
        return short

    @override
    def total(self, losses: list[torch.Tensor]) -> torch.Tensor:
        """Over all ranks."""
        return self._ranks.sum_(super().total(losses).clone())

    @contextlib.contextmanager
    @override
    def full_weights(self) -> Iterator[None]:
        """BatchNorm normalizes by the samples of this rank."""
        for norm in self._norms:
            norm.process_group = dist.GroupMember.NON_GROUP_MEMBER
        try:
            yield
        finally:
            for norm in self._norms:
                norm.process_group = None  # all ranks


class SummedReplica(RankReplica):
    """The network of one rank, by `torch.nn.parallel.DistributedDataParallel`.

    The loss of a micro-batch is its share of that of the whole window of all ranks, so gradients are summed:
    the mean that DDP takes by itself would be wrong for shares of different size.

    Args:
        network: The network, on its device; its weights and buffers become those of rank 0.
        ranks: The ranks.
        dummy: Returns a batch of dummy samples.
        batch_size: Samples of a batch of all ranks.
        device: The device.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        ranks: Ranks,
        dummy: Callable[[], Batch],
        batch_size: int,
        *,
        device: torch.device,
    ) -> None:
        super().__init__(network, ranks, dummy, batch_size)
        self._device = device
        self._sent = 0
        self._entered = False
        self.network = self._parallel = self._built()

    def _built(self) -> DistributedDataParallel:
        self._ranks.sync_status()
        with lost():
            parallel = DistributedDataParallel(
                self._bare,
                device_ids=[self._device] if self._device.type == "cuda" else None,
                process_group=self._ranks.device_group,
                gradient_as_bucket_view=True,  # or each gradient is copied out of its bucket, too
            )
        # buffers are those of rank 0 now; each rank goes on with its own, and those of rank 0 count
        parallel.broadcast_buffers = False
        parallel.register_comm_hook(None, self._summed)
        return parallel

    def _summed(self, _state: None, bucket: GradBucket) -> Future[torch.Tensor]:
        """Sum a bucket of gradients over all ranks, while the backward pass goes on."""
        if bucket.is_last():
            self._clock.sums_begin()
        self._sent += 1
        return self._sum(bucket).then(lambda done: done.value()[0])

    def _sum(self, bucket: GradBucket) -> Future[list[torch.Tensor]]:
        self._ranks.arrive()
        work = dist.all_reduce(bucket.buffer(), group=self._ranks.device_group, async_op=True)
        assert work is not None, "it is asynchronous"
        return work.get_future()

    def _sum_after(self, summed: bool) -> None:
        # outside of DDP's `no_sync`, or inside of it
        self._entered = True
        self._parallel.require_backward_grad_sync = summed

    @override
    def sums_done(self) -> None:
        self._sent = 0
        self._entered = False

    @override
    def make_up(self) -> None:
        """Zeros for each bucket that is left, as torch's `Join` does for DDP."""
        reducer = self._parallel.reducer
        with lost():
            if not self._entered:
                reducer._rebuild_buckets()  # as the others do once, in a forward pass
            for bucket in reducer._get_zeros_like_grad_buckets()[self._sent :]:
                self._sum(bucket).wait()

    @override
    def renew(self) -> None:
        """DDP can't be used again after a backward pass that did not end."""
        self.close()
        self.sums_done()
        self.network = self._parallel = self._built()

    @override
    def close(self) -> None:
        self._ranks.sync_status()  # a rank that failed keeps all from it: all have it still, or none
        self._parallel._remove_autograd_hooks()  # type: ignore[no-untyped-call]


# The network of one rank that holds only its shards of the weights: FSDP2 of PyTorch
# -----------------------------------------------------------------------------------
# Zhao et al. 2023, "PyTorch FSDP"; https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
# A block's weights are gathered before it computes and freed after it, forward and backward; its gradients
# are summed to the rank that holds the weight.
#
# Weights are sharded, gathered and summed in fp32, and autocast chooses the format of each operation, as
# without sharding. torch's `MixedPrecisionPolicy` would gather them in 16 bits, with half the
# communication. Where the norms, which need fp32, are groups of their own, outputs and gradients are the
# same bits, but a block then takes twice as many operations (`benchmarks.shard_formats`); and the format is
# fixed by the first step, whereas a run may change it: by a switch or after a divergence.


def placed(model: nn.Module, config: RunConfig, ranks: Ranks, device: torch.device) -> nn.Module:
    """Return `model` on `device`; with memory.shard, this rank's shards of it, moved block by block.

    Sharded weights and buffers become those of rank 0.

    Raises:
        ConfigError: A weight has no rows to share.
        RankError: The other ranks can't be reached.
    """
    if not config.memory.shard or ranks.is_alone:
        return model.to(device)
    scalars = [name for name, parameter in model.named_parameters() if parameter.ndim == 0]
    if scalars:
        raise ConfigError(
            f"memory.shard: {scalars[0]} is a single number, which has no parts",
            hint="make it a tensor of shape (1,), or set memory.shard=false",
        )
    ranks.broadcast_buffers(_by_way_of(device, model))
    assert ranks.device_group is not None, "there are several ranks"
    mesh = DeviceMesh.from_group(ranks.device_group, device.type)
    for block in _blocks(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)  # its backward pass begins at once
    for module in _sharded(model):
        # a loss is a share of that of all ranks: sums, no means (and gloo has no other operation)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return model


def in_format(model: nn.Module, *, channels_last: bool) -> nn.Module:
    """Return `model` with the weights in this memory format; shards are contiguous rows."""
    if isinstance(model, FSDPModule):
        return model
    return model.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def _by_way_of(device: torch.device, model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield a copy on `device` of each tensor of `model`, and copy back what has become of it."""
    for tensor in (*model.parameters(), *model.buffers()):
        there = tensor.detach().to(device, copy=True)
        yield there
        with torch.no_grad():
            tensor.copy_(there)


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the parts that are gathered one at a time; without any, the network is gathered as a whole."""
    names = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    if len(set(names)) < len(names):  # weights of several layers must be gathered together
        return []
    with contextlib.suppress(ConfigError):
        return [block for block in blocks_of(model) if not isinstance(block, nn.ModuleList | nn.ModuleDict)]
    return []


def _sharded(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


class ShardedReplica(RankReplica):
    """The network of one rank, from `placed`.

    In each pass the ranks gather each block's weights together, so all take the same number of passes.

    Args:
        network: The network.
        ranks: The ranks.
        dummy: Returns a batch of dummy samples.
        batch_size: Samples of a batch of all ranks.
    """

    def __init__(self, network: nn.Module, ranks: Ranks, dummy: Callable[[], Batch], batch_size: int) -> None:
        super().__init__(network, ranks, dummy, batch_size)
        assert isinstance(network, FSDPModule), "from placed"
        self._root = network
        self.tied_by = "memory.shard"
        self._held = [(parameter, shard_of(parameter)) for parameter in network.parameters()]
        self._root.set_requires_gradient_sync(True)
        self._sums = True

    def _sum_after(self, summed: bool) -> None:
        if summed != self._sums:
            self._root.set_requires_gradient_sync(summed)
            self._sums = summed

    @override
    def sums_done(self) -> None:
        """Hand the gradients of the shards over to the optimizer."""
        for parameter, own in self._held:
            grad, parameter.grad = parameter.grad, None
            own.grad = None if grad is None else shard_of(grad)

    @contextlib.contextmanager
    @override
    def full_weights(self) -> Iterator[None]:
        self._ranks.sync_status()
        root, modules = self._root, _sharded(self.network)
        root.set_reshard_after_forward(False)
        root.set_reshard_after_backward(False)
        root.set_requires_gradient_sync(False)
        try:
            with lost():
                for module in modules:
                    module.unshard()
            with super().full_weights():
                yield
        finally:
            root.reset_iter_state()  # also frees the weights, and drops their gradients
            for module in modules:
                module.set_reshard_after_forward(module is not root, recurse=False)
            root.set_reshard_after_backward(True)
            root.set_requires_gradient_sync(True)
            self._sums = True
