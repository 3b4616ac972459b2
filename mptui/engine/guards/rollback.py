"""Snapshots of the last good states of a run in host memory, and rollback to one of them.

Two snapshots are kept if host memory has room. The newer one is good once a later step was good; until then,
or if a rollback to it did not help, the older one is used. On CUDA they lie in pinned host memory, copied in
stream order: a copy costs the device only the milliseconds of the transfer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from mptui import format as fmt
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import Snapshot
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.engine.ranks.shards import shard_of
from mptui.engine.state import TrainState
from mptui.hardware.host import host_memory

SHARE = 0.5
"""Share of free host memory that one snapshot may take."""


class Rollback:
    """Two snapshots and their memory; one or none if the host has no room for more.

    Args:
        warn: Called with (code, message) if there is no room.
        ranks: The processes that train together: each keeps a snapshot, or none does.

    Attributes:
        last_good: The last step known to be good.
    """

    def __init__(self, warn: Callable[[str, str], None], ranks: Ranks = ALONE) -> None:
        self.last_good = 0
        self._ranks = ranks
        self._warn = warn
        self._least_warned_of = 3
        self._newer: Snapshot | None = None
        self._older: Snapshot | None = None
        self._went_to_newer = False
        self._memory = _Memory()
        self._spare = _Memory()

    def keep(self, state: TrainState) -> None:
        """Take a snapshot between two steps, unless the previous one is not yet known to be good.

        Waits for the device.
        """
        if self._newer is None:
            if not self._has_room(self._memory, snapshots.size_of(state), kept=0):
                return
        elif self.last_good <= self._newer.step:
            return
        elif self._has_room(self._spare, self._newer.size_bytes, kept=1):
            self._older = self._newer
            self._memory, self._spare = self._spare, self._memory
        elif self.last_good < state.step:
            return  # faults are pending, and there is no older state to roll back to
        self._newer = snapshots.take(state, self._memory.begin().copy)
        self._went_to_newer = False

    def forget(self) -> None:
        """Drop the snapshots, and keep their memory for the next ones."""
        self._newer = self._older = None
        self._went_to_newer = False

    @property
    def possible(self) -> bool:
        """Whether there is a snapshot to roll back to."""
        return self._newer is not None

    def _has_room(self, memory: "_Memory", size: int, kept: int) -> bool:
        """Whether `memory` is allocated, or the host has `size` bytes for it; warns once if not."""
        if not memory.empty:
            return True
        _, free = host_memory()
        if all(self._ranks.gather(size <= SHARE * free)):
            return True
        if kept < self._least_warned_of:
            self._least_warned_of = kept
            least = "no snapshot for a rollback, so a divergence ends the run"
            words = "only one snapshot for a rollback instead of two" if kept else least
            message = f"{words}: each takes {fmt.size(size)}, the host has {fmt.size(free)} free"
            self._warn("snapshot_memory", message)
        return False

    def go_back(self, state: TrainState) -> None:
        """Restore `state` from the last good snapshot, between two steps or in an abandoned one."""
        assert self._newer is not None, "asked for only where it is possible"
        if self._older is not None and (self._newer.step >= self.last_good or self._went_to_newer):
            self._newer, self._older = self._older, None
            self._memory, self._spare = self._spare, self._memory
        self._went_to_newer = True
        # the guards keep their current state
        values = {key: value for key, value in self._newer.state.items() if key != "guards"}
        snapshots.restore(state, replace(self._newer, state=values))
        self.last_good = state.step


class _Memory:
    """Host memory that is reused for each snapshot, since allocation costs more than the copy."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._next = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is allocated yet."""
        return not self._tensors

    def begin(self) -> "_Memory":
        """Start over with the first tensor; tensors of a snapshot come in the same order each time."""
        self._next = 0
        return self

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return copies of `tensors`; on CUDA they are asynchronous, in stream order."""
        return {
            name: self._place_for(own).copy_(own, non_blocking=True)
            for name, own in ((name, shard_of(tensor).detach()) for name, tensor in tensors.items())
        }

    def _place_for(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._next == len(self._tensors):
            self._tensors.append(_like(tensor))
        place = self._tensors[self._next]
        if place.shape != tensor.shape or place.dtype != tensor.dtype:
            place = self._tensors[self._next] = _like(tensor)
        self._next += 1
        return place


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
