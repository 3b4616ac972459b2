"""Asynchronous reads of device values and times, without synchronization.

Copies to pinned host memory and CUDA events are issued on the device's stream, and queried later. On a CPU
both are complete at once.
"""

import time
from collections.abc import Iterator, Sequence

import torch


class HostCopy:
    """Asynchronous copy of tensors to the host.

    Args:
        tensors: All on one device.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        cuda = bool(tensors) and tensors[0].is_cuda
        self._host = [_to_host(tensor, pinned=cuda) for tensor in tensors]
        self._ready: torch.cuda.Event | None = None
        if cuda:
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    @property
    def arrived(self) -> bool:
        """Whether the copy is complete."""
        return self._ready is None or bool(self._ready.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self._ready is not None:
            self._ready.synchronize()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._host)


def read_now(*tensors: torch.Tensor) -> list[float]:
    """Return the values of tensors of one element each. Waits for the device, once."""
    copy = HostCopy(tensors)
    copy.wait()
    return [tensor.item() for tensor in copy]


class Moment:
    """Timestamp in a device's work: a CUDA event, or on other devices the host time of its creation."""

    def __init__(self, device: torch.device) -> None:
        self._time = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def passed(self) -> bool | None:
        """Whether the device has reached it; None without a CUDA event."""
        return None if self._event is None else bool(self._event.query())  # type: ignore[no-untyped-call]

    def seconds_since(self, earlier: "Moment") -> float:
        """Return the seconds since `earlier`; the device must have reached both."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def _to_host(tensor: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    if not pinned:
        return tensor.to("cpu", copy=True)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
