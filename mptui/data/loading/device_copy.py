"""Copies batches from shared memory to the device; on CUDA from pinned memory in a separate stream.

Shapes: B samples, H and W pixels, C bands.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.loading.prefetcher import HostBatch
from mptui.data.loading.shared_memory import Arena


class _Moved(NamedTuple):
    pixels_BHWC: torch.Tensor
    targets: torch.Tensor


class Transfer:
    """Copies batches to `device`, with at most one copy per slot at a time; on a CPU nothing is copied."""

    def __init__(self, device: torch.device, arena: Arena) -> None:
        self._device, self._arena = device, arena
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._pinned: npt.NDArray[np.uint8] | None = None
        self._moved: dict[int, _Moved] = {}
        self._events: dict[int, torch.cuda.Event] = {}

    @property
    def overlaps(self) -> bool:
        """Whether copies overlap with computation, so that starting them early helps."""
        return self._stream is not None

    def pin(self) -> None:
        """Pin the memory of the arena, so that copies overlap with computation.

        If the driver refuses, copies are slower.
        """
        if self._stream is None:
            return
        memory = self._arena.bytes()
        if self._pinned is None or self._pinned.nbytes != memory.nbytes:
            self._unpin()
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0) == cudart.cudaError.success:
                self._pinned = memory
            else:
                self._forget_refusal()

    def start(self, batch: HostBatch) -> None:
        """Start copying a complete batch, unless its copy was started before."""
        if batch.slot in self._moved:
            return
        pixels = torch.from_numpy(batch.pixels_BHWC)
        targets = torch.from_numpy(batch.labels if batch.masks_BHW is None else batch.masks_BHW)
        if self._stream is None:
            self._moved[batch.slot] = _Moved(pixels.to(self._device), targets.to(self._device))
            return
        with torch.cuda.stream(self._stream):
            self._moved[batch.slot] = _Moved(
                pixels.to(self._device, non_blocking=True), targets.to(self._device, non_blocking=True)
            )
            self._events[batch.slot] = self._stream.record_event()

    def finish(self, batch: HostBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images_BHWC and the labels or masks of a batch, for use in the current stream."""
        self.start(batch)
        moved = self._moved.pop(batch.slot)
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._events[batch.slot])
            for tensor in moved:
                tensor.record_stream(current)
        return moved.pixels_BHWC, moved.targets

    def targets_of(self, batches: Sequence[HostBatch], first: int, number: int) -> torch.Tensor:
        """Return the labels or masks of one of the batches before its `finish`, from row `first` on.

        Starts copying the batch.
        """
        batch = batches[number]
        self.start(batch)
        targets = self._moved[batch.slot].targets
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._events[batch.slot])
            targets.record_stream(current)
        return targets[first:]

    def settle(self, slots: Iterable[int] | None = None) -> None:
        """Wait until no copy reads `slots` (None: all), and drop unused copies."""
        for slot in list(self._events if slots is None else slots):
            self._moved.pop(slot, None)
            if slot in self._events:
                self._events.pop(slot).synchronize()
        if slots is None:
            self._moved.clear()

    def close(self) -> None:
        """Unpin the arena."""
        self.settle()
        self._unpin()

    def _forget_refusal(self) -> None:
        """Clear the pending CUDA error by a kernel launch, as the next launch would report it."""
        with suppress(RuntimeError):
            torch.ones(1, device=self._device)

    def _unpin(self) -> None:
        if self._pinned is not None:
            torch.cuda.cudart().cudaHostUnregister(self._pinned.ctypes.data)  # type: ignore[no-untyped-call]
            self._pinned = None
