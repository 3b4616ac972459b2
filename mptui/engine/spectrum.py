"""Counts exponents of tensors on the device: what float16 loses under any loss scale."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mptui.events import NumericsLayer
from mptui.models.layers import recomputing
from mptui.torch_private import OperatorMode, tensors_in

# Computes from the counts of `tally`, on the host, what float16 loses under any loss scale
# -----------------------------------------------------------------------------------------
# float16 keeps 11 bits of values between 2^-14 and 65,504. Below that it has subnormals with ever fewer
# bits down to 2^-24, and rounds to zero from 2^-25 down; from 65,520 up it rounds to infinity. Scaling by
# 2^k shifts every value by k binades, a whole number of bins: all shares are exact, as if each value had
# been cast.

_BIAS = 127
_INFINITE = 4 * 255
_SIZES = np.exp2(np.arange(_INFINITE) // 4 - float(_BIAS))
_SIZES[0] = 0.0
LOWEST_SCALE, HIGHEST_SCALE = 2.0**0, 2.0**32
"""Range of candidates for the best loss scale."""
HEADROOM = 2
"""Doublings of headroom that the best scale leaves for larger gradients of other steps."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the non-zero values that float16 doesn't keep, of 1; NaN and infinity are overflow."""

    zeroed: float
    subnormal: float
    overflow: float

    @property
    def lost(self) -> float:
        """Share of values that lose some of their 11 bits."""
        return self.zeroed + self.subnormal + self.overflow


class Spectrum:
    """Histogram of the magnitudes of a tensor, or of one part of a layer.

    Args:
        row: Counts of `tally.add`, int64, shape (COLUMNS,).
        zeros_lost: Zeros are values that underflowed, as those of a softmax or a sigmoid.
    """

    def __init__(self, row: npt.NDArray[np.int64], *, zeros_lost: bool = False) -> None:
        counts = row[:BINS]
        self.values = int(counts.sum())
        self.zeros = int(counts[0])
        self.nonfinite = int(counts[_INFINITE])
        self.zeros_lost = self.zeros if zeros_lost else 0
        self.told = self.values - self.zeros + self.zeros_lost
        """Number of values that shares refer to: those that are not zero, or should not be."""
        bits = row[BINS : BINS + 2].astype(np.int32).view(np.float32)
        seen = self.values - self.zeros - self.nonfinite > 0
        self.smallest = float(bits[0]) if seen else 0.0
        self.largest = float(bits[1]) if seen else 0.0
        self._row = row
        self._counts = counts
        # number of values below each bin, without zeros
        self.below = np.concatenate([[0, 0], np.cumsum(counts[1:])])

    def with_zeros_lost(self) -> "Spectrum":
        """Return the same counts, whose zeros are values that underflowed."""
        return Spectrum(self._row, zeros_lost=True)

    def shares(self, doublings: int = 0) -> Shares:
        """Return the shares after multiplying every value by 2^doublings."""
        if not self.told:
            return Shares(0.0, 0.0, 0.0)
        kept, whole, infinite = _edges(doublings)
        below = self.below
        zeroed = int(below[kept]) + self.zeros_lost
        subnormal = int(below[whole] - below[kept])
        overflow = int(below[-1] - below[infinite])
        return Shares(zeroed / self.told, subnormal / self.told, overflow / self.told)

    def weight_below(self, doublings: int = 0) -> float:
        """Return the share of the sum of magnitudes (to the binade) below float16's normal range.

        Where magnitudes differ by many orders, as between gradients of samples that are learned and that are
        not, most values can be lost with little effect on the sum. 1 if all were rounded to zero.
        """
        _, whole, _ = _edges(doublings)
        weights = self._counts[:_INFINITE] * _SIZES
        total = float(weights.sum())
        if not total:
            return 1.0 if self.zeros_lost else 0.0
        return float(weights[:whole].sum()) / total

    def bars(self) -> tuple[int, list[int]]:
        """Return the histogram of exponents: the lowest exponent, and the shares from it on.

        Shares are per mille of the finite non-zero values, at least 1 for an exponent that occurs. A value of
        exponent e lies in [2^e, 2^(e+1)); all below 2^-126 count as -127.
        """
        by_exponent = self._counts[:_INFINITE].reshape(-1, 4).sum(axis=1)
        by_exponent[0] -= self._counts[0]
        (there,) = np.nonzero(by_exponent)
        if not len(there):
            return 0, []
        part = by_exponent[there[0] : there[-1] + 1]
        return int(there[0]) - _BIAS, [int(share) for share in np.ceil(1000 * part / part.sum())]


@dataclass(frozen=True, slots=True)
class BestScale:
    """A loss scale, and the share of gradients that is lost with it, averaged over layers; None: unknown."""

    scale: float
    lost: float | None


def _edges(doublings: int) -> tuple[int, int, int]:
    """Return the first bins that float16 doesn't round to zero, keeps in full, and rounds to infinity."""
    kept, whole, infinite = (
        min(max(4 * (exponent + _BIAS - doublings) + place, 1), _INFINITE)
        for exponent, place in ((-25, 1), (-15, 2), (15, 3))
    )
    return kept, whole, infinite


class LayerGradients:
    """Gradients of all layers under one loss scale."""

    def __init__(self, spectra: Iterable[Spectrum]) -> None:
        told = [spectrum for spectrum in spectra if spectrum.told]
        self.layers = len(told)
        self._below = np.stack([s.below for s in told]) if told else np.zeros((0, BINS + 1))
        self._zeros = np.array([s.zeros_lost for s in told], dtype=np.int64)
        self._told = np.array([s.told for s in told], dtype=np.int64)

    def lost(self, doublings: int = 0) -> float:
        """Return the mean share lost over layers; 1 if any value overflows, which skips the step."""
        _, whole, infinite = _edges(doublings)
        if not self.layers:
            return 0.0
        if (self._below[:, -1] > self._below[:, infinite]).any():
            return 1.0
        return float(((self._below[:, whole] + self._zeros) / self._told).mean())


def best_scale(spectra: Sequence[Spectrum], scale: float = 1.0, *, rounded: bool = False) -> BestScale | None:
    """Find the loss scale that loses least of the gradients, among `scale` times powers of two.

    Leaves `HEADROOM` doublings where possible; ties go to the smallest scale. Of gradients that float16 has
    rounded, nobody knows how many it has lost, or what would save them: the best scale is the largest that
    the others allow.

    Args:
        spectra: Histograms of gradients, one or two per layer, multiplied by `scale`.
        scale: The loss scale with which they were counted.
        rounded: The gradients were computed in float16.

    Returns:
        The best scale; None if there are no gradients, or some overflow even unscaled.
    """
    gradients = LayerGradients(spectra)
    if not gradients.layers:
        return None
    for headroom in range(HEADROOM, -1, -1):
        fitting = [
            k
            for k in range(-64, 65)
            if LOWEST_SCALE <= scale * 2.0**k <= HIGHEST_SCALE and gradients.lost(k + headroom) < 1.0
        ]
        if fitting and rounded:
            return BestScale(scale * 2.0 ** max(*fitting, 0), None)
        if fitting:
            lost, k = min((gradients.lost(k), k) for k in fitting)
            return BestScale(scale * 2.0**k, lost)
    return None


# Ranks layers by numerical risk in 16 bits, and finds the best loss scale
# ------------------------------------------------------------------------
# A layer has a fault in float16 if a value overflows under any loss scale, or if most of an output's
# values, or most of a gradient's sum, lie below its normal range. Of several faults of one step the
# earliest comes first, since it may cause the others.

Part = Literal["forward", "gradient", "weights"]
"""A layer's output, the gradient of its output, the gradient of its own weights."""

MOST = 0.5
"""Share below float16's normal range at which a layer counts as underflowing."""


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """Value counts of one part of a layer."""

    layer: str
    part: Part
    spectrum: Spectrum


@dataclass(frozen=True, slots=True)
class Ranking:
    """All parts of all layers by risk; shares are fractions of 1.

    `lost` is the mean share of the gradients lost with the current loss scale; None without one.
    """

    layers: list[NumericsLayer]
    lost: float | None
    best: BestScale | None


def rank(seen: Sequence[PartStatistics], scale: float | None) -> Ranking:
    """Rank the parts of layers of one step.

    Args:
        seen: Statistics in order of execution.
        scale: The loss scale of gradients that were computed in float16; None: the gradients have the range
            of float32, and are judged with the best scale.
    """
    if scale is not None:
        seen = _with_lost_zeros(seen)
    gradients = [each.spectrum for each in seen if each.part != "forward"]
    overflowed = scale is not None and any(spectrum.nonfinite for spectrum in gradients)
    best = best_scale(gradients, scale or 1.0, rounded=scale is not None)
    in_use = 0 if scale is not None or best is None else round(math.log2(best.scale))
    unscaled = 0 if scale is None else -round(math.log2(scale))
    layers = []
    for each in seen:
        shifts = (0, 0) if each.part == "forward" else (in_use, unscaled)
        size = 1.0 if each.part == "forward" or scale is None else scale
        # the scaler will skip this step: its overflow is no fault of the layer
        judged = each.part == "forward" or not overflowed
        layers.append(_layer_report(each, *shifts, size=size, judged=judged))
    order = {id(layer): number for number, layer in enumerate(layers)}
    layers.sort(key=lambda layer: (not layer.fault, 0 if layer.fault else -layer.lost, order[id(layer)]))
    return Ranking(layers, None if scale is None else LayerGradients(gradients).lost(), best)


def _with_lost_zeros(seen: Sequence[PartStatistics]) -> list[PartStatistics]:
    """Count gradients that are all zero, though those of a layer behind it are not, as rounded to zero."""
    told, flows = [], False
    for each in seen:
        spectrum = each.spectrum
        if each.part != "forward":  # the last layer's gradient comes first
            if flows and spectrum.values == spectrum.zeros:
                spectrum = spectrum.with_zeros_lost()
            flows |= spectrum.values > spectrum.zeros
        told.append(PartStatistics(each.layer, each.part, spectrum))
    return told


def _below(seen: PartStatistics, doublings: int) -> float:
    """Return the share below float16's normal range: of an output's values, or of a gradient's sum."""
    if seen.part != "forward":
        return seen.spectrum.weight_below(doublings)
    shares = seen.spectrum.shares()
    return shares.zeroed + shares.subnormal


def _layer_report(
    seen: PartStatistics, in_use: int, unscaled: int, *, size: float, judged: bool
) -> NumericsLayer:
    spectrum = seen.spectrum
    shares, bare = spectrum.shares(in_use), spectrum.shares(unscaled)
    fault = ""
    if judged and bare.overflow:
        fault = "overflow"
    elif judged and _below(seen, in_use) >= MOST:
        fault = "underflow"
    first, bars = spectrum.bars()
    return NumericsLayer(
        name=seen.layer,
        part=seen.part,
        fault=fault,
        values=spectrum.values,
        zeros=spectrum.zeros / max(spectrum.values, 1),
        smallest=spectrum.smallest / size,
        largest=spectrum.largest / size,
        zeroed=shares.zeroed,
        subnormal=shares.subnormal,
        overflow=shares.overflow,
        lost=shares.lost,
        lost_unscaled=bare.lost,
        first_exponent=first + (unscaled if bars else 0),
        exponents=bars,
    )


# Counts a tensor's values by magnitude, on the device, without synchronization
# -----------------------------------------------------------------------------
# A float32 is binned by its bits: the exponent field and the range of the mantissa give one of 1,024 bins.
# The edges are such that float16 treats all values of a bin alike (zero, subnormal, infinity), under any
# loss scale that is a power of two. Values of float16 and bfloat16 are exact in float32.

BINS = 1024
"""Four for each of the 256 exponent fields: zero is bin 0, infinity and NaN are bin 1020."""

COLUMNS = BINS + 2
"""The bins, and the bits of the smallest non-zero and of the largest finite magnitude."""

_INFINITY = 0x7F800000
# Offsets that carry a float32's bits into the next binade: for all values but the power of two itself; for
# those that float16 rounds up to its smallest normal number; for those that it rounds up to infinity.
_TO_NEXT = ((1 << 23) - 1, 1 << 13, 1 << 12)

_CHUNK = {"cpu": 1 << 16}  # fits in a core's cache
_CHUNK_ELSEWHERE = 1 << 22
_SPREAD = 64
_DRAW_BITS = 31


def new_rows(count: int, device: torch.device) -> torch.Tensor:
    """Allocate empty rows of counts: int64, shape (count, COLUMNS)."""
    rows = torch.zeros(count, COLUMNS, dtype=torch.int64, device=device)
    rows[:, BINS] = _INFINITY
    return rows


def add(row: torch.Tensor, values: torch.Tensor, *, most: int | None = None) -> None:
    """Count `values` (any floating type and shape) into `row`, one of `new_rows`.

    Args:
        row: Shape (COLUMNS,).
        values: Values to count; not modified.
        most: Number of values to count at most, drawn at random and the same each time; None: all.
    """
    flat = _flat(values.detach())
    if most is not None and len(flat) > most:
        flat = flat[drawn_places(len(flat), most, flat.device)]
    for part in torch.split(flat, _CHUNK.get(row.device.type, _CHUNK_ELSEWHERE)):
        _add(row, part.float())


def drawn_places(length: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the places of `count` of `length` values, drawn at random and the same each time."""
    return _draws(count, device) * length >> _DRAW_BITS


@functools.cache
def _draws(count: int, device: torch.device) -> torch.Tensor:
    """Return sorted random fractions of 2^31, int64, shape (count,).

    Every k-th value would do where no axis of a tensor is a multiple of k; with channels last, one of a power
    of two of channels, it is the same channel each time. Random positions have no period.
    """
    chance = torch.Generator(device).manual_seed(0)
    return torch.randint(1 << _DRAW_BITS, (count,), generator=chance, device=device).sort().values


def _flat(values: torch.Tensor) -> torch.Tensor:
    """Return the values as 1-D, without a copy where their memory is dense."""
    if values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last):
        values = values.permute(0, 2, 3, 1)
    return values.reshape(-1)


def _add(row: torch.Tensor, part: torch.Tensor) -> None:
    if not len(part):
        return
    bits = part.contiguous().view(torch.int32) & 0x7FFFFFFF
    bits.clamp_(max=_INFINITY)
    bins = bits >> 23
    for to_next in _TO_NEXT:
        bins += (bits + to_next) >> 23
    _count(row[:BINS], bins)
    smallest, largest = row[BINS:].unbind()
    torch.minimum(smallest, bits.where(bits > 0, _INFINITY).amin(), out=smallest)
    torch.maximum(largest, bits.where(bits < _INFINITY, 0).amax(), out=largest)


def _count(counts: torch.Tensor, bins: torch.Tensor) -> None:
    one = torch.ones((), dtype=torch.int64, device=bins.device)
    if bins.device.type == "cpu":
        counts.scatter_add_(0, bins.long(), one.expand(bins.shape))
        return
    # most values share a few bins: in one row, thousands of threads would contend for the same counters
    rows = torch.zeros(_SPREAD, BINS, dtype=torch.int64, device=bins.device)
    lanes = torch.arange(len(bins), device=bins.device) % _SPREAD * BINS
    rows.view(-1).scatter_add_(0, lanes + bins, one.expand(bins.shape))
    counts += rows.sum(dim=0)


# A torch dispatch mode that knows the layer of each operation
# ------------------------------------------------------------


class WatchedOperations(OperatorMode):  # type: ignore[no-untyped-call]
    """Tracks the layer that operations belong to.

    Attributes:
        layer: Name of the innermost running module, forward or backward; "" is the network itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = ""
        self._stack: list[str] = []

    @contextmanager
    def layers_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Track the innermost running module, forward and backward."""
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name:
                    stack.callback(module.register_forward_pre_hook(self._entering(name)).remove)
                    stack.callback(module.register_forward_hook(self._leaving(name)).remove)
            yield

    def _entering(self, name: str) -> Any:  # noqa: ANN401 - a hook
        def enter(module: torch.nn.Module, inputs: Any) -> None:  # noqa: ANN401 - whatever the module takes
            if recomputing():  # forward: it ends early, without leaving all modules that it enters
                return
            self._stack.append(self.layer)
            self.layer = name

        return enter

    def _leaving(self, name: str) -> Any:  # noqa: ANN401 - a hook
        def leave(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:  # noqa: ANN401 - the same
            if recomputing():
                return
            self.layer = self._stack.pop()
            for value in tensors_in(outputs):
                if value.requires_grad:
                    # the gradient of its output arrives just before its own backward runs
                    value.register_hook(lambda _gradient: setattr(self, "layer", name))  # type: ignore[no-untyped-call]

        return leave


_COPIES = {"_to_copy", "_unsafe_view", "clone", "copy_", "stack"}
_IN_PLACE = {"squeeze_", "t_", "transpose_", "unsqueeze_"}
"""Views, to torch none."""
_MADE = ("empty", "full", "new_", "ones", "zeros")


def computes_nothing(operator: Any) -> bool:  # noqa: ANN401 - an operator
    """Whether the values of an operator are those of its inputs, or none: a copy, a view, a new tensor."""
    name = operator.overloadpacket.__name__
    return operator.is_view or name in _COPIES | _IN_PLACE or name.startswith(_MADE)
