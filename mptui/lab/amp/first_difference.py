"""Finds the first operation of a step whose result differs from fp32's by more than its rounding.

A batch passes through the network three times from the same state, forward and backward: in fp32, in the
precision, and in fp32 with images and weights rounded to it, the control. Operations are matched by layer and
name in their order; casts, and what moves values without computing, are passed over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mptui.engine.numerics.tally import drawn_places
from mptui.engine.numerics.watched_operations import WatchedOperations
from mptui.engine.precision.amp import DTYPES

TIMES_CONTROL = 5.0
"""Allowed difference, as a multiple of that by rounding images and weights."""
TIMES_SPACING = 20.0
"""The same as a multiple of the format's relative spacing: each operation before rounds too."""
MOST_ALLOWED = 0.5
"""Allowed difference from which a result is noise, and is passed over unless it is lost as a whole."""
_VALUES = 1 << 14
"""Largest number of values of a result that are kept."""
_MOVES = (
    "_to_copy",
    "_unsafe_view",
    "alias",
    "as_strided",
    "clone",
    "contiguous",
    "copy_",
    "detach",
    "expand",
    "permute",
    "reshape",
    "select",
    "slice",
    "squeeze",
    "stack",
    "t",
    "transpose",
    "unbind",
    "unsqueeze",
    "view",
)
_MAKES = ("empty", "new_", "ones", "zeros", "full")


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """An operation of a step, and some values of its result.

    Attributes:
        where: forward or backward.
        layer: The innermost module that it belongs to; "" is the network itself.
        name: As torch's kernels are called.
        values: Of each of its floating results: float32, on the host.
    """

    where: str
    layer: str
    name: str
    values: tuple[torch.Tensor, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """What it has in common with the same operation in another precision."""
        return self.where, self.layer, self.name, *(len(each) for each in self.values)

    @property
    def size(self) -> float:
        """Root mean square of its first result."""
        return float(self.values[0].square().mean().sqrt())


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first operation that differs by more than its rounding.

    Attributes:
        batch: Number of the batch, from 0.
        where: forward or backward.
        layer: Its layer; "" is the network itself.
        operation: Its name.
        number: Its place among the operations that were compared, from 1.
        compared: How many there are to compare.
        passed_over: Operations that only one of the two precisions has, or that rounding makes noise of.
        size: Root mean square of its result.
        fp32_size: The same in fp32.
        differs: Norm of the difference, relative to fp32's; infinite if it is finite in fp32 alone.
        allowed: What rounding explains.
    """

    batch: int
    where: str
    layer: str
    operation: str
    number: int
    compared: int
    passed_over: int
    size: float
    fp32_size: float
    differs: float
    allowed: float

    def words(self) -> str:
        """Describe it in a clause."""
        place = self.layer or "the network"
        by = "is not finite" if not math.isfinite(self.size) else f"differs by {self.differs:.1%}"
        passed = f", {self.passed_over:,} passed over" if self.passed_over else ""
        return (
            f"{self.operation} of {place} in the {self.where} pass, operation {self.number:,} of "
            f"{self.compared:,}{passed}: its root mean square is {self.size:.3g}, in fp32 "
            f"{self.fp32_size:.3g}; it {by}, {self.allowed:.1%} is allowed for rounding"
        )


class RecordedOperations(WatchedOperations):  # type: ignore[no-untyped-call]
    """Records the operations of a step.

    Attributes:
        where: forward or backward, set by whoever runs the passes.
        operations: In their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.where = "forward"
        self.operations: list[RecordedOperation] = []

    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """See `WatchedOperations.watched`."""
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        passed_over = name.rstrip("_") in _MOVES or name in _MOVES or name.startswith(_MAKES)
        values = () if passed_over else tuple(_some(t) for t in tree_leaves(result) if _is_float(t))
        if values:
            self.operations.append(RecordedOperation(self.where, self.layer, name, values))
        return result


def first_difference(
    precision: str,
    batch: int,
    ours: Sequence[RecordedOperation],
    fp32: Sequence[RecordedOperation],
    control: Sequence[RecordedOperation],
) -> FirstDifference | None:
    """Return the first operation that differs by more than rounding explains; None if none does.

    Args:
        precision: bf16 or fp16.
        batch: Number of the batch.
        ours: The operations in the precision.
        fp32: Those in fp32.
        control: Those in fp32 of rounded images and weights: the same ones.
    """
    spacing = torch.finfo(DTYPES[precision]).eps
    blocks = SequenceMatcher(None, [o.key for o in fp32], [o.key for o in ours], autojunk=False)
    pairs = [(block.a + n, block.b + n) for block in blocks.get_matching_blocks() for n in range(block.size)]
    noisy = 0
    for number, (theirs, place) in enumerate(pairs, 1):
        reference, found = fp32[theirs], ours[place]
        by_rounding = _differs(control[theirs], reference)
        allowed = max(TIMES_CONTROL * by_rounding, TIMES_SPACING * spacing)
        differs = _differs(found, reference)
        is_zero = not found.size and bool(reference.size and control[theirs].size)
        is_noisy = allowed > MOST_ALLOWED
        noisy += is_noisy
        if is_zero or math.isinf(differs) or (differs > allowed and not is_noisy):
            return FirstDifference(
                batch=batch,
                where=reference.where,
                layer=reference.layer,
                operation=reference.name,
                number=number,
                compared=len(pairs),
                passed_over=len(fp32) + len(ours) - 2 * len(pairs) + noisy,
                size=found.size,
                fp32_size=reference.size,
                differs=differs,
                allowed=allowed,
            )
    return None


def _differs(ours: RecordedOperation, reference: RecordedOperation) -> float:
    """Return the largest difference of a result, relative to the reference's norm."""
    return max(_error(a, b) for a, b in zip(ours.values, reference.values, strict=True))


def _error(values: torch.Tensor, reference: torch.Tensor) -> float:
    norm, error = float(reference.norm()), float((values - reference).norm())
    if not math.isfinite(norm):  # it is not finite in fp32 either
        return 0.0
    if not math.isfinite(error):
        return math.inf
    return error / norm if norm else math.inf if error else 0.0


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and bool(value.numel())


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """Return some values of a tensor, by their place whatever its layout."""
    flat = tensor.detach().reshape(-1)
    if len(flat) > _VALUES:
        flat = flat[drawn_places(len(flat), _VALUES, flat.device)]
    return flat.to("cpu", torch.float32, copy=True)
