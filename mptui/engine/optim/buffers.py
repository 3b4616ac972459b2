"""The buffers of a network, which its forward pass changes: accepted with a step, or restored.

Also the memory of its weights, which a forward pass may exchange.

They are BatchNorm's statistics, and what networks of one's own keep: codebooks, running statistics, queues,
observers. Version counters don't tell whether they have changed, since neither BatchNorm's kernels nor writes
through `.data` count; so all of them are copied at each step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from mptui.torch_private import NormBase

_LIBRARIES = {"torch", "torchvision", "timm", "mptui"}


class WeightMemory:
    """The memory of weights, which optimizer, average and compiled code know by its address.

    A network may put other memory beneath a weight, as constraints on norms often do in the forward pass:
    `self.weight.data = torch.renorm(self.weight.data, …)`. Those of libraries don't, and are not looked at:
    the addresses of a ResNet-18's weights take 11 µs.

    Args:
        model: The network.
        weights: Those of its weights that are trained, on one device.

    Attributes:
        tensors: Their memory, as detached tensors.
    """

    def __init__(self, model: nn.Module, weights: Iterable[torch.Tensor]) -> None:
        weights = list(weights)
        self.tensors = [weight.detach() for weight in weights]
        self._weights = weights if _may_exchange(model) and not _is_without_memory(weights) else []
        self._places = [weight.data_ptr() for weight in self._weights]

    def take_back(self, *, values: bool = True) -> None:
        """Put the memory beneath the weights again, with their present values unless not `values`."""
        if [weight.data_ptr() for weight in self._weights] == self._places:
            return
        for weight, tensor, place in zip(self._weights, self.tensors, self._places, strict=True):
            if weight.data_ptr() == place:
                continue
            gradient, weight.grad = weight.grad, None
            if values:
                tensor.copy_(weight.detach())
            weight.data = tensor
            if gradient is not None:  # laid out as the other memory was
                weight.grad = torch.empty_like(tensor).copy_(gradient)


def _may_exchange(model: nn.Module) -> bool:
    """Whether a module of the network has code that is not that of a library."""
    return any(type(module).__module__.partition(".")[0] not in _LIBRARIES for module in model.modules())


def _is_without_memory(weights: list[torch.Tensor]) -> bool:
    """Whether the weights are those of a count, which have no storage (torch's FakeTensorMode)."""
    return any(weight.untyped_storage().device.type == "meta" for weight in weights)


@dataclass(slots=True)
class BufferRow:
    """Buffers of one dtype on one device, and their accepted values after each other.

    In one row, so that a step costs a few kernels, not a few for each buffer.

    Attributes:
        names: Their names in the model's state; None: not a part of it.
        tensors: The buffers.
        shapes: Their shapes.
        accepted: Their accepted values, 1-D.
    """

    names: list[str | None]
    tensors: list[torch.Tensor]
    shapes: list[torch.Size]
    accepted: torch.Tensor

    def named(self, row: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the parts of `row`, laid out as `accepted`, that the model's state has, by name."""
        sizes = [shape.numel() for shape in self.shapes]
        for name, shape, part in zip(self.names, self.shapes, torch.split(row, sizes), strict=True):
            if name is not None:
                yield name, part.view(shape)

    def write(self, row: torch.Tensor) -> None:
        """Write `row`, laid out as `accepted`, into the buffers."""
        parts = torch.split(row, [shape.numel() for shape in self.shapes])
        shaped = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        torch._foreach_copy_(self.tensors, shaped)


class RevertibleBuffers:
    """Buffers of a model, restored when a step is refused.

    Args:
        model: Its modules are collected once.
        sync: Read on the host whether a step was good, and restore nothing if it was. For CPUs: on other
            devices this would sync.

    Attributes:
        norms: The BatchNorm layers of the model.
    """

    def __init__(self, model: nn.Module, *, sync: bool) -> None:
        self.norms = [module for module in model.modules() if isinstance(module, NormBase)]
        self.sync = sync
        statistics, own = _Statistics(model), _OwnBuffers(model)
        self._parts: list[_Statistics | _OwnBuffers] = []
        if statistics.rows:
            self._parts.append(statistics)
        if own.tables:
            self._parts.append(own)

    @property
    def rows(self) -> list[BufferRow]:
        """The buffers and their accepted values."""
        return [row for part in self._parts for row in part.rows]

    def refresh(self) -> None:
        """Accept the current buffers, after a good step or a load."""
        for part in self._parts:
            part.accept()

    def restore(self) -> None:
        """Restore the accepted buffers."""
        for part in self._parts:
            part.restore()

    def keep_if(self, good: torch.Tensor) -> None:
        """Accept the current buffers if `good` (0-dim bool), else restore the accepted ones."""
        if not self._parts:
            return
        if not self.sync:
            for part in self._parts:
                part.accept_or_restore(good)
        elif good:
            self.refresh()
        else:
            self.restore()


class _Statistics:
    """The buffers of torch's own norms, which stay the same tensors: nothing is looked up at a step.

    Their values are accepted as bytes, those of all types in one row: three kernels at a step.
    """

    def __init__(self, model: nn.Module) -> None:
        found = [
            (name, buffer.view(-1))
            for prefix, module in model.named_modules()
            if _is_plain_norm(module)
            for name, buffer in _named_in_state(prefix, module, module._buffers)
        ]
        # the widest types first, so that each is aligned
        self.rows = sorted(_rows(found), key=lambda row: -row.accepted.itemsize)
        self._bytes = [tensor.view(torch.uint8) for row in self.rows for tensor in row.tensors]
        self._sizes = [len(each) for each in self._bytes]
        self._accepted = torch.cat([row.accepted.view(torch.uint8) for row in self.rows] or [torch.empty(0)])
        parts = torch.split(self._accepted, [row.accepted.nbytes for row in self.rows])
        for row, part in zip(self.rows, parts, strict=True):
            row.accepted = part.view(row.accepted.dtype)

    def accept(self) -> None:
        torch.cat(self._bytes, out=self._accepted)

    def restore(self) -> None:
        torch._foreach_copy_(self._bytes, torch.split(self._accepted, self._sizes))

    def accept_or_restore(self, good: torch.Tensor) -> None:
        torch.where(good, torch.cat(self._bytes), self._accepted, out=self._accepted)
        self.restore()


class _OwnBuffers:
    """All other buffers, and the untrained parameters of modules that torch doesn't know, as of quantizers.

    A forward pass may write to them, put other tensors in their places, of other shapes, too, and make more.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tables = list(_changing_tables(model))
        self.accept()

    def accept(self) -> None:
        self._entries = [dict(table) for _, _, table in self.tables]
        self.rows = self._current()

    def restore(self) -> None:
        for (_, _, table), entries in zip(self.tables, self._entries, strict=True):
            table.clear()
            table.update(entries)
        for row in self.rows:
            for tensor, shape in zip(row.tensors, row.shapes, strict=True):
                if tensor.shape != shape:  # resized in its place
                    tensor.resize_(shape)
            row.write(row.accepted)

    def accept_or_restore(self, good: torch.Tensor) -> None:
        """Accept or restore without a sync, unless there are others now, or of other shapes."""
        before, now = self.rows, self._current()
        if [(row.names, row.shapes) for row in now] != [(row.names, row.shapes) for row in before]:
            if good:
                self.accept()
            else:
                self.restore()
            return
        self._entries = [dict(table) for _, _, table in self.tables]
        for row, last in zip(now, before, strict=True):
            row.accepted = torch.where(good.to(row.accepted.device), row.accepted, last.accepted)
            row.write(row.accepted)
        self.rows = now

    def _current(self) -> list[BufferRow]:
        found = [
            # kernels don't write to what is conjugated when it is read
            (name, tensor.detach().conj() if tensor.is_conj() else tensor.detach())
            for prefix, module, table in self.tables
            for name, tensor in _named_in_state(prefix, module, table)
            if not tensor.requires_grad and _is_plain(tensor)
        ]
        return _rows(found)


Table = Mapping[str, torch.Tensor | None]


def _rows(found: Sequence[tuple[str | None, torch.Tensor]]) -> list[BufferRow]:
    groups: dict[tuple[torch.dtype, torch.device], list[tuple[str | None, torch.Tensor]]] = {}
    for each in found:
        groups.setdefault((each[1].dtype, each[1].device), []).append(each)
    return [
        BufferRow(
            [name for name, _ in group],
            tensors := [tensor for _, tensor in group],
            [tensor.shape for tensor in tensors],
            torch.cat([tensor.reshape(-1) for tensor in tensors]),
        )
        for group in groups.values()
    ]


def _named_in_state(
    prefix: str, module: nn.Module, table: Table
) -> Iterable[tuple[str | None, torch.Tensor]]:
    """Yield the tensors of a module with their names in the model's state; None: not a part of it."""
    for name, tensor in table.items():
        if tensor is not None:
            left_out = name in module._non_persistent_buffers_set
            yield None if left_out else f"{prefix}.{name}" if prefix else name, tensor


def _changing_tables(model: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, torch.Tensor | None]]]:
    """Yield the tables of tensors that may change, each with its module and the name of this."""
    for prefix, module in model.named_modules():
        if _is_plain_norm(module):
            continue
        of_torch = _is_of_torch(module)
        if module._buffers or not of_torch:
            yield prefix, module, module._buffers
        untrained = any(not parameter.requires_grad for parameter in module.parameters(recurse=False))
        may_be_codebook = not of_torch or isinstance(module, nn.Embedding)  # not a frozen layer
        if untrained and may_be_codebook:
            yield prefix, module, module._parameters


def _is_plain_norm(module: nn.Module) -> bool:
    return isinstance(module, NormBase) and _is_of_torch(module)


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be written to: dense, and with memory for each of its values."""
    dense = tensor.layout == torch.strided and not tensor.is_quantized
    expanded = any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return dense and not expanded
