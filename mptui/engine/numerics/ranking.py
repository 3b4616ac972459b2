"""Ranks layers by numerical risk in 16 bits, and finds the best loss scale.

A layer has a fault in float16 if a value overflows under any loss scale, or if most of an output's values, or
most of a gradient's sum, lie below its normal range. Of several faults of one step the earliest comes first,
since it may cause the others.
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
