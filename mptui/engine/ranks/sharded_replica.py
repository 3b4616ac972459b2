"""The network of one rank that holds only its shards of the weights: FSDP2 of PyTorch.

Zhao et al. 2023, "PyTorch FSDP"; https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html.
A block's weights are gathered before it computes and freed after it, forward and backward; its gradients are
summed to the rank that holds the weight.

Weights are sharded, gathered and summed in fp32, and autocast chooses the format of each operation, as
without sharding. torch's `MixedPrecisionPolicy` would gather them in 16 bits, with half the communication.
Where the norms, which need fp32, are groups of their own, outputs and gradients are the same bits, but a
block then takes twice as many operations (`benchmarks.shard_formats`); and the format is fixed by the first
step, whereas a run may change it: by a switch or after a divergence.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from mptui.config.schema import RunConfig
from mptui.data.core.batch import Batch
from mptui.engine.ranks.group import Ranks
from mptui.engine.ranks.rank_failure import lost
from mptui.engine.ranks.replica import RankReplica
from mptui.engine.ranks.shards import shard_of
from mptui.errors import ConfigError
from mptui.models.activation_checkpointing import blocks_of


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
    ranks.spread(_by_way_of(device, model))
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
        made_up: Returns a batch with made-up samples.
        batch_size: Samples of a batch of all ranks.
    """

    def __init__(
        self, network: nn.Module, ranks: Ranks, made_up: Callable[[], Batch], batch_size: int
    ) -> None:
        super().__init__(network, ranks, made_up, batch_size)
        assert isinstance(network, FSDPModule), "from placed"
        self._root, self.tied_by = network, "memory.shard"
        self._held = [(parameter, shard_of(parameter)) for parameter in network.parameters()]
        self._root.set_requires_gradient_sync(True)
        self._sums = True

    def _sum_after(self, summed: bool) -> None:
        if summed != self._sums:
            self._root.set_requires_gradient_sync(summed)
            self._sums = summed

    def sums_done(self) -> None:
        """See `Replica.sums_done`: hand the gradients of the shards over to the optimizer."""
        for parameter, own in self._held:
            grad, parameter.grad = parameter.grad, None
            own.grad = None if grad is None else shard_of(grad)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """See `Replica.whole`."""
        self._ranks.meet()
        root, modules = self._root, _sharded(self.network)
        root.set_reshard_after_forward(False)
        root.set_reshard_after_backward(False)
        root.set_requires_gradient_sync(False)
        try:
            with lost():
                for module in modules:
                    module.unshard()
            with super().whole():
                yield
        finally:
            root.reset_iter_state()  # also frees the weights, and drops their gradients
            for module in modules:
                module.set_reshard_after_forward(module is not root, recurse=False)
            root.set_reshard_after_backward(True)
            root.set_requires_gradient_sync(True)
            self._sums = True
