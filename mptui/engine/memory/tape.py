"""Runs a backward pass over tensors without storage, with the memory of autograd's engine.

The engine refuses fake tensors that are said to be on a CUDA device where there is none. So the nodes of the
graph are called here, in its order, and what it frees is freed at the same moments (engine.cpp and
input_buffer.cpp in torch/csrc/autograd). Blocks are checkpointed as by torch.utils.checkpoint without
reentry: of each block the inputs are kept, and its other tensors computed again when the first is used.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from itertools import count
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map_only

from mptui.models.wrapped_forward import Forward

_Node = Any  # of autograd's graph: torch has no type for all that they have
_FIRST = -(1 << 63)
"""Priority of nodes that add to a gradient: the engine runs them before all others."""
_OWN = 2
"""References to a storage that only one tensor has: the tensor's, and that of the Python object."""


class Tape:
    """The tensors that autograd saves in a forward pass, each until the backward pass has used it.

    Use it as a context around the forward pass; `backward` runs outside of it.

    Args:
        autocast: Returns the context of the forward pass, to compute a checkpointed block again.
    """

    def __init__(self, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self._autocast = autocast
        self._used: list[_Saved] = []
        self._hooks = ExitStack()

    def __enter__(self) -> "Tape":
        self._hooks.enter_context(saved_tensors_hooks(_Saved, self._unpack))
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _unpack(self, saved: "_Saved") -> torch.Tensor:
        self._used.append(saved)
        tensor = saved.tensor
        assert tensor is not None, "a graph is used once"
        return tensor

    def checkpointed(self, forward: Forward) -> Forward:
        """Return `forward` of a block with only its inputs saved, for `WrappedForward`."""

        def keep_inputs(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the block takes and gives
            return _Checkpoint(forward, inputs, named, self._autocast).run()

        return keep_inputs

    def backward(self, loss: torch.Tensor, accumulated: Callable[[torch.Tensor], None]) -> None:
        """Add the gradients of `loss` (0-dim) to those of the parameters.

        `accumulated` is called with each gradient once its parameter has it.
        """
        root: _Node = loss.grad_fn
        waits = _dependencies(root)
        born = count()
        ready = [(_priority(root), next(born), root)]
        inputs: dict[_Node, list[torch.Tensor | None]] = {root: [torch.ones_like(loss)]}
        with torch.no_grad():
            while ready:
                node = heapq.heappop(ready)[2]
                gradients = inputs.pop(node)
                if hasattr(node, "variable"):
                    _accumulate(node.variable, gradients.pop(), accumulated)
                    continue
                outputs = self._call(node, gradients)
                for (follower, slot), output in zip(node.next_functions, outputs, strict=True):
                    if follower is None:
                        continue
                    metadata = follower._input_metadata
                    buffer = inputs.setdefault(follower, [None] * len(metadata))
                    if output is not None:
                        _add(buffer, slot, _valid(output, metadata[slot]))
                    waits[follower] -= 1
                    if not waits[follower]:
                        heapq.heappush(ready, (_priority(follower), next(born), follower))
                outputs.clear()
                output = None

    def _call(self, node: _Node, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        outputs = node(*gradients) if callable(node) else node.apply(*gradients)
        gradients.clear()
        for saved in self._used:
            saved.tensor = None
        self._used.clear()
        return list(outputs) if isinstance(outputs, tuple) else [outputs]


class _Saved:
    """A tensor that a node saves; None once it is used."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor


class _EnoughError(Exception):
    """All saved tensors of a block have been computed again."""


class _Checkpoint:
    """A pass through a checkpointed block."""

    def __init__(
        self,
        forward: Forward,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._forward, self._inputs, self._named, self._autocast = forward, inputs, named, autocast
        self._saved = 0
        self._again: dict[int, torch.Tensor] | None = None

    def run(self) -> Any:  # noqa: ANN401 - what the block gives
        with saved_tensors_hooks(self._number, self._take):
            return self._forward(*self._inputs, **self._named)

    def _number(self, _: torch.Tensor) -> int:
        self._saved += 1
        return self._saved - 1

    def _take(self, number: int) -> torch.Tensor:
        if self._again is None:
            self._again = {}
            self._compute(self._again)
        tensor = self._again.pop(number)
        if not self._again:  # else the graph would keep them, through its hooks
            self._inputs, self._named = (), {}
        return tensor

    def _compute(self, again: dict[int, torch.Tensor]) -> None:
        def keep(tensor: torch.Tensor) -> int:
            again[len(again)] = tensor.detach()
            if len(again) == self._saved:
                raise _EnoughError
            return len(again) - 1

        def apart(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().requires_grad_(tensor.requires_grad)

        inputs, named = tree_map_only(torch.Tensor, apart, (self._inputs, self._named))
        try:
            with torch.enable_grad(), self._autocast(), saved_tensors_hooks(keep, again.__getitem__):
                self._forward(*inputs, **named)
        except _EnoughError:
            pass


def _priority(node: _Node) -> int:
    return _FIRST if hasattr(node, "variable") else -int(node._sequence_nr())


def _dependencies(root: _Node) -> Counter[_Node]:
    """Return how often each node of a graph follows another one."""
    waits: Counter[_Node] = Counter()
    seen, left = {root}, [root]
    while left:
        for follower, _ in left.pop().next_functions:
            if follower is None:
                continue
            waits[follower] += 1
            if follower not in seen:
                seen.add(follower)
                left.append(follower)
    return waits


def _valid(gradient: torch.Tensor, metadata: Any) -> torch.Tensor:  # noqa: ANN401 - torch has no type for it
    """Return a gradient of the shape and type of its tensor, which may have been broadcast or cast."""
    if list(gradient.shape) != list(metadata.shape):
        gradient = gradient.sum_to_size(metadata.shape)
    return gradient if gradient.dtype == metadata.dtype else gradient.to(metadata.dtype)


def _add(buffer: list[torch.Tensor | None], slot: int, gradient: torch.Tensor) -> None:
    """Add a gradient to those that a node gets, in place where nothing else has the memory."""
    before = buffer[slot]
    if before is None:
        buffer[slot] = gradient
    elif torch._C._storage_Use_Count(before.untyped_storage()._cdata) == _OWN:
        before.add_(gradient)
    else:
        buffer[slot] = before + gradient


def _accumulate(
    variable: torch.Tensor, gradient: torch.Tensor | None, accumulated: Callable[[torch.Tensor], None]
) -> None:
    if gradient is None:
        return
    if variable.grad is not None:
        variable.grad.add_(gradient)
        return
    if gradient.stride() != variable.stride():
        gradient = torch.empty_like(variable).copy_(gradient)
    variable.grad = gradient.detach()
    accumulated(variable.grad)
