"""Copies of a run's tensors that leave a GPU while training goes on.

Between two steps the tensors are copied on the device, in its stream; another thread brings the copies to
host memory, in another stream and in parts, through one pinned buffer. So a save holds up training for a copy
at the speed of the device's own memory, if it has room for one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock

import torch

PART = 64 << 20
"""Bytes of the pinned buffer."""

_SHARE = 0.9
"""Share of a device's memory that a step and the copies may take; the rest is for gaps between tensors."""

Groups = dict[str, dict[str, torch.Tensor]]


def fit_beside_a_step(size: int, device: torch.device) -> bool:
    """Whether a device has `size` bytes of memory beside the largest step so far; only CUDA devices tell."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    budget = torch.cuda.get_per_process_memory_fraction(device) * total
    room = min(free + torch.cuda.memory_reserved(device), budget)
    return torch.cuda.max_memory_allocated(device) + size <= _SHARE * room


class DeviceCopies:
    """Copies of the tensors of a checkpoint, on their device at first.

    Args:
        groups: Groups of named tensors; what follows in the device's current stream may write to them.
        device: A CUDA device.
    """

    def __init__(self, groups: Mapping[str, Mapping[str, torch.Tensor]], device: torch.device) -> None:
        self._groups: Groups = {
            group: {name: _copied(tensor) for name, tensor in tensors.items()}
            for group, tensors in groups.items()
        }
        self._device, self._lock = device, Lock()
        self._made: torch.cuda.Event | None = torch.cuda.current_stream(device).record_event()

    def bring(self) -> Groups:
        """Return the copies in host memory; the first call brings them there, and waits. Thread-safe."""
        with self._lock:
            if self._made is not None:
                self._bring(self._made)
                self._made = None
        return self._groups

    def _bring(self, made: torch.cuda.Event) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # not by keeping a core busy
        buffer = torch.empty(PART, dtype=torch.uint8, pin_memory=True)

        def wait() -> None:
            arrived.record(stream)
            arrived.synchronize()

        with torch.cuda.stream(stream):
            stream.wait_event(made)
            # one group after the other, whose memory on the device is free then
            for group, tensors in self._groups.items():
                on_host = to_host(list(tensors.values()), buffer, wait)
                self._groups[group] = dict(zip(tensors, on_host, strict=True))


def to_host(
    tensors: Sequence[torch.Tensor], buffer: torch.Tensor, wait: Callable[[], None]
) -> list[torch.Tensor]:
    """Return copies of contiguous tensors in host memory, brought in parts.

    Args:
        tensors: On a device, or in host memory.
        buffer: Bytes of pinned memory, in which each part lies for a moment.
        wait: Waits for the copies issued so far.
    """
    found = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    pairs = zip(map(_bytes, tensors), map(_bytes, found), strict=True)
    for part in _parts(pairs, len(buffer)):
        places = torch.split(buffer[: sum(len(source) for source, _ in part)], [len(own) for own, _ in part])
        for place, (source, _) in zip(places, part, strict=True):
            place.copy_(source, non_blocking=True)
        wait()
        for place, (_, target) in zip(places, part, strict=True):
            target.copy_(place)
    return found


def _parts(
    pairs: Iterator[tuple[torch.Tensor, torch.Tensor]], most: int
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Yield pairs of rows, cut into pieces, in lists of at most `most` bytes."""
    part: list[tuple[torch.Tensor, torch.Tensor]] = []
    room = most
    for source, target in pairs:
        begin = 0
        while begin < len(source):
            end = min(len(source), begin + room)
            part.append((source[begin:end], target[begin:end]))
            room -= end - begin
            begin = end
            if room == 0:
                yield part
                part, room = [], most
    if part:
        yield part


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
