"""Snapshots of the last good states of a run in host memory, and rollback to one of them.

Two snapshots are kept if host memory has room. The newer one is good once a later step was good; until then,
or if a rollback to it did not help, the older one is used. On CUDA they lie in pinned host memory, to which a
copy on the device is transferred beside the next steps; if the device has no room for one, the next step
waits for the transfer.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from mptui import text as fmt
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import Snapshot
from mptui.engine.checkpoint.snapshots import AnyGroups, Groups, Layout, row_beside_a_step, split
from mptui.engine.ranks.group import ALONE, Ranks, shard_of
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
        self._size = 0
        self._memory = _Memory()
        self._spare = _Memory()

    def keep(self, state: TrainState) -> None:
        """Take a snapshot between two steps, unless the previous one is not yet known to be good.

        Waits for the device.
        """
        if self._newer is None:
            self._size = snapshots.size_of(state)
            if not self._has_room(self._memory, kept=0):
                return
        elif self.last_good <= self._newer.step:
            return
        elif self._has_room(self._spare, kept=1):
            self._older = self._newer
            self._memory, self._spare = self._spare, self._memory
        elif self.last_good < state.step:
            return  # faults are pending, and there is no older state to roll back to
        self._newer = snapshots.take(state, self._memory.copy)
        self._went_to_newer = False

    def forget(self) -> None:
        """Drop the snapshots, and keep their memory for the next ones."""
        self._newer = self._older = None
        self._went_to_newer = False

    @property
    def possible(self) -> bool:
        """Whether there is a snapshot to roll back to."""
        return self._newer is not None

    def _has_room(self, memory: "_Memory", kept: int) -> bool:
        """Whether `memory` is allocated, or the host has room for it; warns once if not."""
        if not memory.empty:
            return True
        _, free = host_memory()
        if all(self._ranks.gather(self._size <= SHARE * free)):
            return True
        if kept < self._least_warned_of:
            self._least_warned_of = kept
            least = "no snapshot for a rollback, so a divergence ends the run"
            words = "only one snapshot for a rollback instead of two" if kept else least
            message = f"{words}: each takes {fmt.size(self._size)}, the host has {fmt.size(free)} free"
            self._warn("snapshot_memory", message)
        return False

    def go_back(self, state: TrainState) -> None:
        """Restore `state` from the last good snapshot, between two steps or in an abandoned one."""
        assert self._newer is not None, "asked for only where it is possible"
        is_doubtful = self._went_to_newer or self._newer.step >= self.last_good
        if self._older is not None and is_doubtful:
            self._newer = self._older
            self._older = None
            self._memory, self._spare = self._spare, self._memory
        self._went_to_newer = True
        self._newer.arrive()
        # the guards keep their current state
        values = {key: value for key, value in self._newer.state.items() if key != "guards"}
        snapshots.restore(state, replace(self._newer, state=values))
        self.last_good = state.step


class _Memory:
    """Host memory that is reused for each snapshot, since allocation costs more than the copy."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._row: torch.Tensor | None = None
        self._stream: torch.cuda.Stream | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is allocated yet."""
        return not self._tensors and self._row is None

    def copy(self, groups: AnyGroups) -> tuple[Groups, Callable[[], Groups] | None]:
        """Copy this rank's shards of the tensors, as `snapshots.Copy`; those on CUDA are on their way."""
        there, here = split(
            {
                group: {name: shard_of(own) for name, own in tensors.items()}
                for group, tensors in groups.items()
            }
        )
        places = iter(self._places_for([tensor for tensors in here.values() for tensor in tensors.values()]))
        copied = {
            group: {name: next(places).copy_(own) for name, own in tensors.items()}
            for group, tensors in here.items()
        }
        if not any(there.values()):
            return copied, None
        layout = Layout(there)
        pinned, event = self._transferred(there, layout)

        def bring() -> Groups:
            event.synchronize()
            arrived = layout.views(pinned)
            return {group: tensors | arrived[group] for group, tensors in copied.items()}

        return {}, bring

    def _transferred(self, groups: Groups, layout: Layout) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Begin to transfer tensors of a CUDA device; return the row that they will be in, and when."""
        device = next(tensor.device for tensors in groups.values() for tensor in tensors.values())
        training = torch.cuda.current_stream(device)
        if self._row is None or len(self._row) != layout.size:
            self._row = torch.empty(layout.size, dtype=torch.uint8, pin_memory=True)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        row = row_beside_a_step(layout.size, device)
        if row is None:
            training.wait_stream(self._stream)  # of an earlier transfer
            layout.write(groups, self._row)
            return self._row, training.record_event()
        layout.write(groups, row)
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            self._row.copy_(row, non_blocking=True)
        row.record_stream(self._stream)
        return self._row, self._stream.record_event()

    def _places_for(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return memory for tensors of the host; those of a snapshot come in the same order each time."""
        for number, tensor in enumerate(tensors):
            place = self._tensors[number] if number < len(self._tensors) else None
            fits = place is not None and (place.shape, place.dtype) == (tensor.shape, tensor.dtype)
            if not fits:
                self._tensors[number : number + 1] = [torch.empty_like(tensor, device="cpu")]
        return self._tensors
