"""Copies of a run's tensors that leave a GPU while training goes on.

Between two steps the tensors are copied on the device, in its stream, into one row of bytes. The row goes to
host memory in another stream: that of a checkpoint in another thread and in parts, through one pinned buffer.
So training is held up for a copy at the speed of the device's own memory, if it has room for one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from threading import Lock

import torch

from mptui.engine.checkpoint.files import host_copy

PART = 64 << 20
"""Bytes of the pinned buffer."""

_SHARE = 0.9
"""Share of a device's memory that a step and the copies may take; the rest is for gaps between tensors."""
_ALIGNMENT = 16

Groups = dict[str, dict[str, torch.Tensor]]
AnyGroups = Mapping[str, Mapping[str, torch.Tensor]]


def row_beside_a_step(size: int, device: torch.device) -> torch.Tensor | None:
    """Return `size` bytes of a device, uint8; None if it has no room for them beside the largest step so far.

    Only CUDA devices tell.
    """
    if device.type != "cuda" or not _fit_beside_a_step(size, device):
        return None
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:  # it has, in gaps between tensors
        return None


def _fit_beside_a_step(size: int, device: torch.device) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    budget = torch.cuda.get_per_process_memory_fraction(index) * total
    room = min(free + torch.cuda.memory_reserved(device), budget)
    return torch.cuda.max_memory_allocated(device) + size <= _SHARE * room


class Layout:
    """The places of named tensors in a row of bytes, each with the order of its axes in memory.

    Attributes:
        size: Bytes of the row.
    """

    def __init__(self, groups: AnyGroups) -> None:
        self._groups = list(groups)
        self._names: dict[torch.dtype, list[tuple[str, str]]] = defaultdict(list)
        self._forms: dict[torch.dtype, list[tuple[torch.Size, tuple[int, ...]]]] = defaultdict(list)
        self._lengths: dict[torch.dtype, list[int]] = defaultdict(list)
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                dense = tensor if tensor.is_contiguous() else torch.empty_like(tensor, device="meta")
                bytes_held = -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
                self._names[tensor.dtype].append((group, name))
                self._forms[tensor.dtype].append((tensor.shape, dense.stride()))
                self._lengths[tensor.dtype].append(bytes_held // tensor.itemsize)
        self.size = sum(dtype.itemsize * sum(lengths) for dtype, lengths in self._lengths.items())

    def views(self, row: torch.Tensor) -> Groups:
        """Return the tensors in a row of uint8."""
        found: Groups = {group: {} for group in self._groups}
        for names, views in self._parts(row):
            for (group, name), view in zip(names, views, strict=True):
                found[group][name] = view
        return found

    def write(self, groups: AnyGroups, row: torch.Tensor) -> None:
        """Copy the tensors into a row: in a few kernels, if both are on one device."""
        for names, views in self._parts(row):
            sources = [groups[group][name] for group, name in names]
            torch._foreach_copy_(views, sources, non_blocking=True)

    def _parts(self, row: torch.Tensor) -> Iterator[tuple[list[tuple[str, str]], list[torch.Tensor]]]:
        """Yield the names and the tensors of each type."""
        begin = 0
        for dtype, lengths in self._lengths.items():
            end = begin + dtype.itemsize * sum(lengths)
            pieces = row[begin:end].view(dtype).split_with_sizes(lengths)
            forms = zip(pieces, self._forms[dtype], strict=True)
            yield self._names[dtype], [piece.as_strided(shape, stride) for piece, (shape, stride) in forms]
            begin = end


class DeviceCopies:
    """Copies of the tensors of a checkpoint, on their device at first.

    Args:
        layout: The places of the tensors in the row.
        row: Copies of tensors on a CUDA device, just written in its current stream.
        here: The tensors of the same groups in host memory, which are copied at once.
    """

    def __init__(self, layout: Layout, row: torch.Tensor, here: AnyGroups) -> None:
        self._here: Groups = {group: host_copy(tensors) for group, tensors in here.items()}
        self._layout = layout
        self._row = row
        self._lock = Lock()
        self._made: torch.cuda.Event | None = torch.cuda.current_stream(row.device).record_event()

    def bring(self) -> Groups:
        """Return the copies in host memory; the first call brings them there, and waits. Thread-safe."""
        with self._lock:
            if self._made is not None:
                self._row = self._brought(self._made)
                self._made = None
        brought = self._layout.views(self._row)
        return {group: brought[group] | tensors for group, tensors in self._here.items()}

    def _brought(self, made: torch.cuda.Event) -> torch.Tensor:
        stream = torch.cuda.Stream(self._row.device)  # type: ignore[no-untyped-call]
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # not by keeping a core busy

        def wait() -> None:
            arrived.record(stream)
            arrived.synchronize()

        with torch.cuda.stream(stream):
            stream.wait_event(made)
            return in_parts(self._row, torch.empty(PART, dtype=torch.uint8, pin_memory=True), wait)


def in_parts(row: torch.Tensor, buffer: torch.Tensor, wait: Callable[[], None]) -> torch.Tensor:
    """Return a copy of a row of bytes in host memory.

    Args:
        row: On a device, uint8.
        buffer: Pinned memory, in which each part lies for a moment.
        wait: Waits for the copies issued so far.
    """
    found = torch.empty(row.shape, dtype=torch.uint8)
    for part, target in zip(torch.split(row, len(buffer)), torch.split(found, len(buffer)), strict=True):
        buffer[: len(part)].copy_(part, non_blocking=True)
        wait()
        target.copy_(buffer[: len(part)])
    return found


def split(groups: AnyGroups) -> tuple[Groups, Groups]:
    """Return the tensors on a CUDA device, and all others, in groups of the same names."""
    plain = {
        group: {name: tensor.detach().resolve_conj().resolve_neg() for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }
    there, here = (
        {
            group: {name: tensor for name, tensor in tensors.items() if tensor.is_cuda is is_there}
            for group, tensors in plain.items()
        }
        for is_there in (True, False)
    )
    return there, here
