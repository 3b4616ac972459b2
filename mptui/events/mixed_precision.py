"""Precision, loss scale, skipped steps and numerics."""

from dataclasses import dataclass
from typing import ClassVar

from mptui.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChanged(Event):
    """Another precision is in use from this step on: a fallback, or another profile."""

    kind: ClassVar[str] = "precision_changed"

    precision: str
    previous: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSkipped(Event):
    """Steps were skipped because their gradients were not finite.

    `count` is their number since the previous event, `total` that of the whole run, `streak` how many of the
    last steps were skipped in a row.
    """

    kind: ClassVar[str] = "step_skipped"

    count: int
    total: int
    streak: int
    loss_scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale(Event):
    """Statistics of fp16's loss scale, emitted when the scale changes or a step is skipped.

    `growths` and `backoffs` count its changes, `skipped` the steps skipped although the loss was finite.
    `skip_rate` is their share of all steps with a scaled loss.
    """

    kind: ClassVar[str] = "loss_scale"

    scale: float
    lowest: float
    highest: float
    growths: int
    backoffs: int
    skipped: int
    streak: int
    longest_streak: int
    skip_rate: float


NUMERICS_BUDGET = {"summary": 0.005, "full": 0.05}
"""Largest share of a run's time that numerics probes may take, by the value of guards.numerics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsLayer:
    """What 16 bits do to one part of a layer: forward (output), gradient (of the output), weights (gradient).

    All shares except `zeros` are of the nonzero values, in fp16 under the loss scale in use, or under the
    best one if none is in use. `lost` is the sum of `zeroed`, `subnormal` (fewer bits) and `overflow`;
    `lost_unscaled` is the same without a loss scale. `smallest` and `largest` are without a scale.
    `exponents` is a histogram per mille that begins at the exponent `first_exponent`. `fault` is overflow,
    underflow or empty.
    """

    name: str
    part: str
    fault: str
    values: int
    zeros: float
    smallest: float
    largest: float
    zeroed: float
    subnormal: float
    overflow: float
    lost: float
    lost_unscaled: float
    first_exponent: int
    exponents: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics(Event):
    """Result of one numerics probe: the layers that 16 bits hurt most, worst first, and a sum of the others.

    `lost` is the share of the gradients that fp16 loses under the loss scale in use, as a mean over layers;
    `lost_at_best` is the same under `best_scale`, None for gradients that fp16 has rounded already: what it
    lost of them is unknown, and `best_scale` the largest that they allow. A probe adds `cost_s` seconds to
    its step (None: too few were measured) and runs once in `every_s` seconds. `eager`: the probed step ran
    without its compiled code.
    """

    kind: ClassVar[str] = "numerics"

    mode: str
    precision: str
    eager: bool
    loss_scale: float | None
    best_scale: float | None
    lost: float | None
    lost_at_best: float | None
    cost_s: float | None
    every_s: float
    layers: list[NumericsLayer]
    others: int
    others_at_fault: int
    others_lost: float
