"""Finds the first operation of a step whose result differs from that of another by more than its rounding.

A batch passes through the network from the same state, forward and backward: in the reference, such as fp32,
in what is compared with it, and in the reference with images and weights changed by rounding, the control.
Operations are matched by layer and name in their order; casts, and what moves values without computing, are
passed over.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from typing_extensions import override

from mptui.engine.spectrum import WatchedOperations, computes_nothing, drawn_places
from mptui.registry.own_code import running_line
from mptui.torch_private import floats_in

TIMES_CONTROL = 5.0
"""Allowed difference, as a multiple of that by rounding images and weights."""
TIMES_SPACING = 20.0
"""The same as a multiple of the format's relative spacing: each operation before rounds too."""
TIMES_RESULT = 2.0
"""Allowed difference of an operation of equal inputs, as a multiple of the spacing of its results."""
MOST_ALLOWED = 0.5
"""Allowed difference from which a result is noise, and is passed over unless it is lost as a whole."""
_VALUES = 1 << 14
"""Largest number of values of a result that are kept."""
_HASHED = 1 << 22
"""Number of values that are hashed at a time."""
# Odd factors below 2^64, as int64: of the golden ratio, and of SplitMix64's finalizer.
_SPREAD, _MIX = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """An operation of a step, and some values of its result.

    Attributes:
        where: forward or backward; "" before them.
        layer: The innermost module that it belongs to; "" is the network itself.
        name: As torch's kernels are called.
        values: Of each of its floating results: float32, on the host.
        hashes: Of all bits of each of them, whatever its layout.
        spacing: The relative spacing of the coarsest of their formats.
        line: The person's line that called it, as `running_line`; "" if none did.
    """

    where: str
    layer: str
    name: str
    values: tuple[torch.Tensor, ...]
    hashes: tuple[int, ...]
    spacing: float
    line: str = ""

    @classmethod
    def of(
        cls, where: str, layer: str, name: str, results: Sequence[torch.Tensor], *, line: str = ""
    ) -> "RecordedOperation":
        """Record an operation with its results, of which there is at least one."""
        floating = [result.dtype for result in results if result.is_floating_point()]
        return cls(
            where,
            layer,
            name,
            tuple(_some(result) for result in results),
            tuple(_hash(result) for result in results),
            max((torch.finfo(dtype).eps for dtype in floating), default=0.0),
            line,
        )

    @property
    def key(self) -> tuple[object, ...]:
        """What it has in common with the same operation of another step."""
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
        where: forward or backward; "" before them.
        layer: Its layer; "" is the network itself.
        operation: Its name.
        number: Its place among the operations that were compared, from 1.
        compared: How many there are to compare.
        passed_over: Operations that only one of the two steps has, or that rounding makes noise of.
        size: Root mean square of its result.
        reference_size: The same in the reference.
        differs: Norm of the difference, relative to the reference's; infinite if it is finite there alone.
        allowed: What rounding explains.
        line: The person's line that called it; "" if none did.
        after: The layer that ran before it; "" if none did.
    """

    batch: int
    where: str
    layer: str
    operation: str
    number: int
    compared: int
    passed_over: int
    size: float
    reference_size: float
    differs: float
    allowed: float
    line: str = ""
    after: str = ""

    @property
    def place(self) -> str:
        """Its name, layer, pass and line, in words."""
        at = f" ({self.line})" if self.line else ""
        return place_words(self.operation, self.layer, self.where) + at

    def words(self, reference: str = "fp32") -> str:
        """Describe it in a clause that calls the reference by its name."""
        by = "is not finite" if not math.isfinite(self.size) else f"differs by {_percent(self.differs)}"
        passed = f", {self.passed_over:,} passed over" if self.passed_over else ""
        return (
            f"{self.place}, operation {self.number:,} of {self.compared:,}{passed}: "
            f"its root mean square is {self.size:.3g}, in {reference} {self.reference_size:.3g}; "
            f"it {by}, {_percent(self.allowed)} is allowed for rounding"
        )


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding explains.

    Attributes:
        spacing: The relative spacing of the format that rounds most.
        control: The operations of the reference with images and weights changed by so much.
    """

    spacing: float
    control: Sequence[RecordedOperation]

    def allowed(self, place: int, reference: RecordedOperation) -> float:
        """Return the allowed difference of the operation `place` of the reference, from 0."""
        by_rounding = _differs(self.control[place], reference)
        return max(TIMES_CONTROL * by_rounding, TIMES_SPACING * self.spacing)


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

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        floats = [] if computes_nothing(func) else [each for each in floats_in(result) if each.numel()]
        if floats:
            name = func.overloadpacket.__name__
            made = RecordedOperation.of(self.where, self.layer, name, floats, line=running_line())
            self.operations.append(made)
        return result


def place_words(operation: str, layer: str, where: str) -> str:
    """Return an operation with its layer and pass, in words."""
    in_pass = f"in the {where} pass" if where else "before the forward pass"
    return f"{operation} of {layer or 'the network'} {in_pass}"


def matched(
    ours: Sequence[RecordedOperation], reference: Sequence[RecordedOperation]
) -> list[tuple[int, int]]:
    """Return the places of the operations that two steps have in common: those of the reference, and ours."""
    blocks = SequenceMatcher(None, [o.key for o in reference], [o.key for o in ours], autojunk=False)
    return [(block.a + n, block.b + n) for block in blocks.get_matching_blocks() for n in range(block.size)]


def first_unmatched(
    ours: Sequence[RecordedOperation], reference: Sequence[RecordedOperation]
) -> tuple[int, RecordedOperation, bool] | None:
    """Return the first operation that only one of two steps has, and whether it is ours; None if all match.

    The number is that of matched operations before it.
    """
    last_theirs, last_ours = -1, -1
    pairs = [*matched(ours, reference), (len(reference), len(ours))]
    for number, (theirs, place) in enumerate(pairs):
        if place > last_ours + 1:
            return number, ours[last_ours + 1], True
        if theirs > last_theirs + 1:
            return number, reference[last_theirs + 1], False
        last_theirs, last_ours = theirs, place
    return None


def first_difference(
    batch: int,
    ours: Sequence[RecordedOperation],
    reference: Sequence[RecordedOperation],
    rounding: Rounding,
    *,
    alone: Rounding | None = None,
    same_format: bool = False,
    by_bits: bool = False,
) -> FirstDifference | None:
    """Return the first operation that differs by more than rounding explains; None if none does.

    Args:
        batch: Number of the batch.
        ours: The operations that are compared with the reference.
        reference: Those of the reference.
        rounding: What rounding explains.
        alone: What it explains of the batch, and of an operation whose inputs are equal.
        same_format: Whether both compute in one precision: then inputs are equal until an operation differs.
        by_bits: Return the first operation that differs in any bit.
    """
    pairs = matched(ours, reference)
    noisy, equal = 0, same_format
    for number, (theirs, place) in enumerate(pairs, 1):
        wanted, found = reference[theirs], ours[place]
        same_bits = found.hashes == wanted.hashes
        is_alone = equal or not wanted.where
        if alone is not None and is_alone:
            of_results = TIMES_RESULT * max(found.spacing, wanted.spacing)
            allowed = max(alone.allowed(theirs, wanted), of_results)
        else:
            allowed = rounding.allowed(theirs, wanted)
        equal = equal and same_bits
        differs = _differs(found, wanted)
        is_zero = not found.size and bool(wanted.size and rounding.control[theirs].size)
        is_noisy = allowed > MOST_ALLOWED
        noisy += is_noisy
        is_more = is_zero or math.isinf(differs) or (differs > allowed and not is_noisy)
        is_different = not same_bits if by_bits else is_more
        if is_different:
            return FirstDifference(
                batch=batch,
                where=wanted.where,
                layer=wanted.layer,
                operation=wanted.name,
                number=number,
                compared=len(pairs),
                passed_over=len(reference) + len(ours) - 2 * len(pairs) + noisy,
                size=found.size,
                reference_size=wanted.size,
                differs=differs,
                allowed=allowed,
                line=found.line,
                after=next((o.layer for o in reversed(reference[:theirs]) if o.layer), ""),
            )
    return None


def _differs(ours: RecordedOperation, reference: RecordedOperation) -> float:
    """Return the largest difference of a result, relative to the reference's norm."""
    return max(relative_error(a, b) for a, b in zip(ours.values, reference.values, strict=True))


def relative_error(values: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of a difference, relative to the reference's; infinite if it is finite there alone."""
    norm, error = float(reference.norm()), float((values - reference).norm())
    if not math.isfinite(norm):  # it is not finite in fp32 either
        return 0.0
    if not math.isfinite(error):
        return math.inf
    return error / norm if norm else math.inf if error else 0.0


def _some(tensor: torch.Tensor) -> torch.Tensor:
    """Return some values of a tensor, by their place whatever its layout."""
    flat = tensor.detach().reshape(-1)
    if len(flat) > _VALUES:
        flat = flat[drawn_places(len(flat), _VALUES, flat.device)]
    return flat.to("cpu", torch.float32, copy=True)


def _hash(tensor: torch.Tensor) -> int:
    """Return a hash of all bits of a tensor, by their place whatever its layout; computed on its device.

    Each value is multiplied by an odd number that depends on its place alone, and the sum is taken modulo
    2^64: other values, and the same in another order, have another one.
    """
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    first = 0
    for part in torch.split(tensor.detach().reshape(-1).contiguous().view(whole), _HASHED):
        places = torch.arange(first + 1, first + 1 + len(part), device=part.device) * _SPREAD
        total += (part.long() * ((places ^ places >> 29) * _MIX | 1)).sum()
        first += len(part)
    return int(total)


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or not share else f"{100 * share:.2g}%"
