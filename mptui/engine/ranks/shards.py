"""The parts of sharded weights: each rank holds and updates its own rows of every weight (FSDP2).

A sharded network has its parameters as `DTensor`s, and so have the state dictionaries of network, optimizer
and average. The optimizer itself, the average and the norm see plain tensors, the shards of this rank: their
kernels are those of a network that is whole. Without sharding, each function here returns what it is given.
"""

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def shard_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor that this rank holds; of a parameter the same object each time."""
    # to_local() makes a new view of a parameter each time; an optimizer knows its weights by their identity
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def as_shard(own: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return `own`, which belongs to this rank's shard of a parameter, as a part of the whole tensor.

    What has one value for all of a parameter (0-dim) is returned as it is.
    """
    if not isinstance(parameter, DTensor) or own.ndim == 0:
        return own
    return DTensor.from_local(
        own.detach(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of a tensor; all ranks take part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_shards(
    tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return tensors of a checkpoint as the state of sharded parameters has them, on their device.

    Args:
        tensors: Whole tensors or the shards of this rank, named as a parameter or `KEY/PARAMETER`; others
            are returned as they are.
        parameters: The parameters by name.
    """
    found = dict(tensors)
    for name, value in tensors.items():
        parameter = parameters.get(name.rpartition("/")[2])
        if not isinstance(parameter, DTensor) or value.ndim != parameter.ndim:
            continue
        if value.shape == shard_of(parameter).shape:
            found[name] = as_shard(value, parameter)
        elif value.shape == parameter.shape:
            mesh, placements = parameter.device_mesh, parameter.placements
            found[name] = distribute_tensor(value, mesh, placements, src_data_rank=None)  # each has it all
    return found
