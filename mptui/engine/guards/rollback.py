"""The last good states of a run, in memory, and the way back to one of them.

Two are kept where the host's memory has room for them. The newer is good once a step after it was; until
then, or when going back to it did not help, the older one is. On CUDA they lie in pinned host memory, copied
in the order of the stream: the device stays free for training, and a copy takes it the milliseconds of the
transfer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from mptui import format as fmt
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import Snapshot
from mptui.hardware.host import host_memory

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


SHARE = 0.5
"""Share of the host's free memory that one snapshot may take: the rest is left to everything else."""


class LastGood:
    """Two snapshots, and the memory for them; one or none where the host has no room for more.

    Args:
        warn: Told (code, message) that there is none.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._told = 3
        self._newer: Snapshot | None = None
        self._older: Snapshot | None = None
        self._went_to_newer = False
        self._memory = _Memory()
        self._spare = _Memory()

    def keep(self, trainer: "Trainer", last_good: int) -> None:
        """Take a snapshot between two steps, unless the one before it is not yet known to be good.

        Args:
            trainer: Stands between two steps; waits for its device.
            last_good: The last step that was applied.
        """
        if self._newer is None:
            if not self._has_room(self._memory, snapshots.size_of(trainer), kept=0):
                return
        elif last_good <= self._newer.step:
            return
        elif self._has_room(self._spare, self._newer.size_bytes, kept=1):
            self._older = self._newer
            self._memory, self._spare = self._spare, self._memory
        elif last_good < trainer.step:
            return  # faults are under way, and there is no older state to go back to
        self._newer = snapshots.take(trainer, self._memory.begin().copy)
        self._went_to_newer = False

    def forget(self) -> None:
        """Give the states up, and keep the memory for the next ones."""
        self._newer = self._older = None
        self._went_to_newer = False

    @property
    def exists(self) -> bool:
        """Whether there is a state to go back to."""
        return self._newer is not None

    def _has_room(self, memory: "_Memory", size: int, kept: int) -> bool:
        """Whether `memory` is filled, or the host has `size` bytes for it; says once that it has not."""
        if not memory.empty:
            return True
        _, free = host_memory()
        if size <= SHARE * free:
            return True
        if kept < self._told:
            self._told = kept
            least = "no state is kept to go back to, so that a divergence ends the run"
            words = "one state is kept to go back to, and not two" if kept else least
            message = f"{words}: it takes {fmt.size(size)}, and the host has {fmt.size(free)} free"
            self._warn("snapshot_memory", message)
        return False

    def go_back(self, trainer: "Trainer", last_good: int) -> int:
        """Set `trainer` to the last good state and return its step.

        Args:
            trainer: Stands between two steps, or in one that is given up.
            last_good: The last step that was applied before what makes it go back.
        """
        assert self._newer is not None, "the first is kept before the first step"
        if self._older is not None and (self._newer.step >= last_good or self._went_to_newer):
            self._newer, self._older = self._older, None
            self._memory, self._spare = self._spare, self._memory
        self._went_to_newer = True
        # what the guards have learnt since then stays
        state = {key: value for key, value in self._newer.state.items() if key != "guards"}
        snapshots.restore(trainer, replace(self._newer, state=state))
        return self._newer.step


class _Memory:
    """Host memory that is used again for each snapshot: to allocate it costs more than to fill it."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._next = 0

    @property
    def empty(self) -> bool:
        """Whether nothing was allocated yet."""
        return not self._tensors

    def begin(self) -> "_Memory":
        """Start over with the first tensor: a snapshot's come in the same order each time."""
        self._next = 0
        return self

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copies of `tensors`; on CUDA still under way, in the order of the stream."""
        return {
            name: self._place_for(t.detach()).copy_(t.detach(), non_blocking=True)
            for name, t in tensors.items()
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
