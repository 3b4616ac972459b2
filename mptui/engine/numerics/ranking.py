"""Which layers 16 bits hurt, the worst first, and the loss scale that would help most.

A fault is what float16 can't carry: a value that overflows whatever the loss scale, or most of an output's
values, or most of a gradient's sum, below its normal range. Of several faults of one step the earliest comes
first, since what follows it may be its doing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mptui.engine.numerics.spectrum import BestScale, LayerGradients, Spectrum, best_scale
from mptui.events import NumericsLayer

Part = Literal["forward", "gradient", "weights"]
"""A layer's output, the gradient of its output, the gradient of its own weights."""

MOST = 0.5
"""The share below float16's normal range from which on a layer counts as lost in it."""


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """What was seen of one part of a layer."""

    layer: str
    part: Part
    spectrum: Spectrum


@dataclass(frozen=True, slots=True)
class Ranking:
    """All parts of all layers by risk; shares are of 1.

    `lost` is the mean share of the gradients lost with the scale in use (None: there is none).
    """

    layers: list[NumericsLayer]
    lost: float | None
    best: BestScale | None


def rank(seen: Sequence[PartStatistics], scale: float | None) -> Ranking:
    """Rank what was seen in one step.

    Args:
        seen: In the order in which it came about.
        scale: The loss scale that the gradients carry; None: none. Then they are judged with the best one.
    """
    gradients = [each.spectrum for each in seen if each.part != "forward"]
    overflowed = scale is not None and any(spectrum.nonfinite for spectrum in gradients)
    best = best_scale(gradients, scale or 1.0)
    in_use = 0 if scale is not None or best is None else round(math.log2(best.scale))
    unscaled = 0 if scale is None else -round(math.log2(scale))
    layers = []
    for each in seen:
        shifts = (0, 0) if each.part == "forward" else (in_use, unscaled)
        size = 1.0 if each.part == "forward" or scale is None else scale
        # the scaler will skip this step: it says nothing of the layer
        judged = each.part == "forward" or not overflowed
        layers.append(_layer_report(each, *shifts, size=size, judged=judged))
    order = {id(layer): number for number, layer in enumerate(layers)}
    layers.sort(key=lambda layer: (not layer.fault, 0 if layer.fault else -layer.lost, order[id(layer)]))
    return Ranking(layers, None if scale is None else LayerGradients(gradients).lost(), best)


def _below(seen: PartStatistics, doublings: int) -> float:
    """The share of it that lies below float16's normal range: of an output's values, of a gradient's sum."""
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
        bf16_lost=spectrum.bf16_lost,
        first_exponent=first + (unscaled if bars else 0),
        exponents=bars,
    )
