"""Finds operations of the person's network that don't follow autocast, with their lines.

Four kinds: operations that raise an error under autocast only; casts that the network does itself; products
in another dtype than autocast's, or anything in float64; and operations for which autocast has no rule, such
as a `torch.autograd.Function` without `torch.amp.custom_fwd`. Lines of torch, of other packages and of mptui
are never named, only the person's line that calls them.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from mptui.engine.numerics.watched_operations import WatchedOperations
from mptui.engine.precision.amp import DTYPES
from mptui.registry.own_code import defining_line, failing_line, running_line
from mptui.text import clean

Kind = Literal["refuses", "cast", "dtype", "no rule"]
Found = dict[tuple[str, Kind, str], None]
"""Line of the person's code, kind, and what it does there; in the order of the first."""

_CASTS = ("to", "float", "half", "bfloat16", "double", "type", "type_as")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution")
"""Operations that autocast computes in 16 bits on every device, as torch's kernels call them."""
_TORCHS = ("aten", "prim", "prims", "quantized", "mkldnn", "mkldnn_prepacked", "c10d", "_c10d_functional")
"""Namespaces of torch's operators, for which torch knows what autocast does."""


@dataclass(frozen=True, slots=True)
class OperationFinding:
    """An operation that doesn't follow autocast.

    `line` is the person's, `net.py:16 in forward: return x.half()`; `precisions` are those in which it was
    seen.
    """

    line: str
    kind: Kind
    what: str
    precisions: tuple[str, ...]


class OperationCheck(WatchedOperations):  # type: ignore[no-untyped-call]
    """Watches passes in one precision; `found` has what doesn't follow autocast.

    Args:
        precision: bf16 or fp16.
        device: The device of the passes.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        super().__init__()
        self._dtype, self._device = DTYPES[precision], device
        self.found: Found = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operations inside this context."""
        with _Casts(self.found), self:
            yield

    def refused(self, error: Exception) -> str:
        """Note an error of the person's code, and return it with its line; "" if it isn't of their code."""
        line = failing_line(error)
        words = str(error).strip().splitlines() or [""]
        told = clean(f"{type(error).__name__}: {words[0]}".removesuffix(": "), 300)
        self._note(line, "refuses", told)
        return f"{line.partition(' in ')[0]}: {told}" if line else ""

    def functions_of(self, loss: torch.Tensor) -> None:
        """Note autograd functions in the graph of `loss` that lack `custom_fwd` or `custom_bwd`."""
        seen, nodes = set(), [loss.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            function = getattr(node, "_forward_cls", None)
            if function is not None and (lacks := _lacking(function)):
                what = f"{function.__name__} lacks {' and '.join(lacks)}: its backward runs without autocast"
                self._note(defining_line(inspect.unwrap(function.forward).__code__), "no rule", what)

    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """See `WatchedOperations.watched`."""
        if func.namespace not in _TORCHS:
            self._custom(func, args)
        result = func(*args, **kwargs)
        dtype = result.dtype if isinstance(result, torch.Tensor) else None
        name = func.overloadpacket.__name__
        if dtype == torch.float64 and name != "_to_copy" and set(_floats(args)) - {dtype}:
            self._note(running_line(), "dtype", f"{name} computes in float64")
        elif name in _PRODUCTS and dtype is not None and dtype != self._dtype:
            wanted = f"where autocast would use {_word(self._dtype)}"
            self._note(running_line(), "dtype", f"{name} computes in {_word(dtype)}, {wanted}")
        return result

    def _custom(self, func: Any, args: Any) -> None:  # noqa: ANN401 - an operator
        key = f"Autocast{self._device.type.upper()}"
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
            return
        if dtypes := set(_floats(args)):
            mixed = ", and gets mixed dtypes" if len(dtypes) > 1 else ""
            what = f"{func.name()} has no autocast rule (torch.library.register_autocast){mixed}"
            self._note(running_line(), "no rule", what)

    def _note(self, line: str, kind: Kind, what: str) -> None:
        if line:
            self.found.setdefault((line, kind, what))


class _Casts(TorchFunctionMode):
    """Notes the casts between floating dtypes that the person's code does itself; autocast's aren't seen."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - a function of torch
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever it gives
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _CASTS and args and isinstance(result, torch.Tensor):
            before, after = args[0].dtype, result.dtype
            both = before.is_floating_point and after.is_floating_point
            if before != after and both and (line := running_line()):
                self._found.setdefault((line, "cast", f"casts to {_word(after)} by itself"))
        return result


def merged(found: dict[str, Found]) -> list[OperationFinding]:
    """Return one finding for each line and fault, with the precisions that have it; refusals come first."""
    by_fault: dict[tuple[str, Kind, str], list[tuple[str, str]]] = {}
    for precision, each in found.items():
        for line, kind, what in each:
            same = "" if kind == "refuses" else what  # its words name the dtypes
            by_fault.setdefault((line, kind, same), []).append((precision, what))
    findings = [
        OperationFinding(line, kind, seen[0][1], tuple(precision for precision, _ in seen))
        for (line, kind, _), seen in by_fault.items()
    ]
    return sorted(findings, key=lambda finding: finding.kind != "refuses")


def _lacking(function: Any) -> list[str]:  # noqa: ANN401 - a class with forward and backward
    """Return those of torch.amp's two decorators that an autograd function lacks."""
    parts = {"torch.amp.custom_fwd": function.forward, "torch.amp.custom_bwd": function.backward}
    return [name for name, part in parts.items() if part.__globals__["__name__"] != "torch.amp.autocast_mode"]


def _floats(values: Any) -> list[torch.dtype]:  # noqa: ANN401 - a tree of tensors
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return [tensor.dtype for tensor in tensors if tensor.is_floating_point()]


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
