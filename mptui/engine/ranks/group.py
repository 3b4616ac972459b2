"""The group of processes (ranks) that train one network, by torch.distributed.

There are two groups of the same ranks: that of the device (nccl on CUDA, gloo on a CPU) reduces tensors in
the order of the device's work; that of the hosts (gloo) carries small values between steps, and no device
waits for it.
"""

from datetime import timedelta
from typing import Any, TypeVar

import torch

from mptui.processes.rank_place import RankPlace

T = TypeVar("T")

HOST_TIMEOUT = timedelta(days=1)
"""Longest wait of a host for another: a disk that is full may hold rank 0 for hours. The end of a process
ends a wait at once."""


class Ranks:
    """This rank and its group; alone, all methods return at once and change nothing.

    Args:
        rank: Number of this process in the group, from 0.
        world_size: Processes of the group.
        device_group: Reduces tensors on the device; None for a single process.
        host_group: Carries values between the hosts; None for a single process.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        device_group: Any = None,  # noqa: ANN401 - a ProcessGroup; naming it imports torch.distributed
        host_group: Any = None,  # noqa: ANN401
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.device_group, self.host_group = device_group, host_group

    @classmethod
    def alone(cls) -> "Ranks":
        """Return the group of a single process."""
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes the run directory and the terminal."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank."""
        return self.world_size == 1

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` on the device over all ranks, in place; on CUDA the host does not wait."""
        return self._reduced(tensor, "SUM")

    def max_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace each element of `tensor` by its largest value of all ranks, in place."""
        return self._reduced(tensor, "MAX")

    def _reduced(self, tensor: torch.Tensor, operation: str) -> torch.Tensor:
        if self.device_group is not None:
            import torch.distributed as dist

            dist.all_reduce(tensor, getattr(dist.ReduceOp, operation), group=self.device_group)
        return tensor

    def broadcast(self, value: T) -> T:
        """Return the small `value` of rank 0 on all ranks, by way of the hosts."""
        if self.host_group is None:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.host_group)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Return the small `value` of each rank, in the order of the ranks, by way of the hosts."""
        if self.host_group is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.host_group)
        return values

    def close(self) -> None:
        """Leave the group; the other ranks find out at their next exchange."""
        if self.device_group is not None:
            import torch.distributed as dist

            self.device_group = self.host_group = None
            dist.destroy_process_group()


def join(place: RankPlace | None, device: torch.device) -> Ranks:
    """Join the group of `place`, by the address in MASTER_ADDR and MASTER_PORT; waits for all its ranks.

    Args:
        place: The place of this process; None: it is alone.
        device: The device that this rank trains on.
    """
    if place is None:
        return Ranks.alone()
    import torch.distributed as dist

    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        rank=place.rank,
        world_size=place.world_size,
        device_id=device if cuda else None,
    )
    host_group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    return Ranks(place.rank, place.world_size, dist.group.WORLD, host_group)
