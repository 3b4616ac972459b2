"""The verdict on a precision: how far its loss, outputs and gradients are from fp32's, beside a control.

The control is fp32 with images and weights rounded to the precision. What it changes, no 16-bit run can
avoid; where it changes so much that nothing would be too much, these batches can't tell.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from mptui.engine.guards.nan_localizer import LOSS
from mptui.lab.amp.trial import PrecisionTrial, cosine

AS_FP32 = 0.9
"""Cosine similarity to fp32's gradient from which a gradient counts as equal."""
TIMES_CONTROL = 5.0
"""Allowed deviation, as a multiple of that by rounding images and weights."""
LOSS_OFF = 0.02
"""Relative error of the loss up to which it counts as equal."""
OUTPUTS_OFF = 0.05
"""Error of the outputs, relative to their norm, up to which they count as equal."""
TIMES_NORM = 1.5
"""Ratio of a gradient's norm to fp32's, or its inverse, up to which it counts as equal."""
MOST_ALLOWED = 0.5
"""Allowed deviation from which the control is too noisy to tell."""
_SLACK = (1 - AS_FP32) / 2
_CLEAR_CONTROL = 1 - (MOST_ALLOWED - _SLACK) / TIMES_CONTROL
"""Cosine similarity of a control that is just not too noisy."""
_MOST_MORE = 10_000

Verdict = Literal["as fp32", "as rounding", "can't tell", "not safe"]
"""Loss, outputs and gradients equal fp32's; or differ by no more than rounding explains; or rounding would
explain anything; or they differ by more, or overflow."""
_ORDER: tuple[Verdict, ...] = ("as fp32", "as rounding", "can't tell", "not safe")


@dataclass(slots=True)
class Checked:
    """The check of one precision; `why` gives the reason for the verdict."""

    precision: str
    loss: float
    loss_error: float = 0.0
    outputs_error: float = 0.0
    cosine: float = 1.0
    control: float = 1.0
    loss_scale: float | None = None
    layers: dict[str, float] = field(default_factory=dict)
    """Layer -> cosine similarity of its gradient to fp32's, worst first."""
    norms: dict[str, float] = field(default_factory=dict)
    """Layer -> norm of its gradient, as a multiple of fp32's."""
    fp32_layers: list[str] = field(default_factory=list)
    """Layers that must compute in fp32 for the precision to be safe."""
    verdict: Verdict = "as fp32"
    why: str = ""
    more_batches: int | None = None
    """How many more batches would tell, if these can't; None if no number would, or they can."""

    @property
    def safe(self) -> bool:
        """Whether the precision is safe: as fp32, or no further from it than rounding explains."""
        return self.verdict in {"as fp32", "as rounding"}


@dataclass(frozen=True, slots=True)
class _Deviation:
    """One figure's deviation from fp32's.

    Attributes:
        words: What differs, and by how much.
        value: The deviation.
        equal: The largest that counts as equal.
        allowed: The largest that rounding explains.
        limits: What rounding gives and what is allowed, in words.
        more: How many more batches would tell.
        layer: The layer whose gradient it is; "" is the network itself, or it is no gradient.
    """

    words: str
    value: float
    equal: float
    allowed: float
    limits: str
    more: int | None = None
    is_gradient: bool = False
    layer: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.value <= self.equal:
            return "as fp32"
        if not self.value <= self.allowed:
            return "not safe"
        return "can't tell" if self.allowed > MOST_ALLOWED else "as rounding"


class Judge:
    """Judges trials of one precision.

    Args:
        reference: fp32.
        control: fp32 on rounded images and weights.
        batches: Number of batches of a trial.
    """

    def __init__(self, reference: PrecisionTrial, control: PrecisionTrial, batches: int) -> None:
        self._reference, self._control, self._batches = reference, control, batches
        self._control_cosines = _cosines(reference, control)

    def judge(self, trial: PrecisionTrial, fp32_layers: list[str]) -> Checked:
        """Return the check of a trial that ran with `fp32_layers`."""
        reference = self._reference
        checked = Checked(trial.precision, trial.loss, fp32_layers=fp32_layers, loss_scale=trial.scale)
        if trial.refused:
            checked.cosine, checked.verdict, checked.why = math.nan, "not safe", trial.refused
            return checked
        cosines = _cosines(reference, trial)
        order = sorted(cosines, key=lambda name: cosines[name] if math.isfinite(cosines[name]) else -2.0)
        checked.loss_error = _off(trial.loss, reference.loss)
        checked.outputs_error = _distance(trial.outputs, reference.outputs)
        checked.cosine, checked.control = _whole(reference, trial), _whole(reference, self._control)
        checked.layers = {name: cosines[name] for name in order}
        checked.norms = {name: _ratio(trial.gradients[name], reference.gradients[name]) for name in order}
        checked.verdict, checked.why, checked.more_batches = self._verdict(trial, checked)
        return checked

    def off(self, trial: PrecisionTrial, checked: Checked) -> list[str]:
        """Return the layers whose gradient is too far from fp32's, of the worst kind that there is."""
        found = list(self._of_gradients(checked))
        kinds = [
            [name for name, g in trial.gradients.items() if not bool(g.isfinite().all())],
            self._zero(trial),
            [each.layer for each in found if each.verdict == "not safe"],
            [each.layer for each in found if each.verdict == "can't tell"],
        ]
        return list(dict.fromkeys(next((kind for kind in kinds if kind), [])))

    def _verdict(self, trial: PrecisionTrial, checked: Checked) -> tuple[Verdict, str, int | None]:
        if trial.first_bad and (trial.first_bad != self._reference.first_bad or not trial.finite):
            operation = f" ({trial.operation})" if trial.operation else ""
            return "not safe", f"the output of {trial.first_bad} is not finite{operation}", None
        if not trial.finite:
            bad = next((n for n, g in trial.gradients.items() if not bool(g.isfinite().all())), "")
            words = f"the gradients of {bad or 'the network'} are not finite with any loss scale"
            return "not safe", words, None
        if zero := self._zero(trial):
            more = f" and of {len(zero) - 1} more" if len(zero) > 1 else ""
            words = f"the gradient of {zero[-1] or LOSS}{more} is exactly zero, and not in fp32"
            return "not safe", words, None
        found = [self._of_loss(checked), self._of_outputs(checked), *self._of_gradients(checked)]
        verdict = max((each.verdict for each in found), key=_ORDER.index)
        if verdict == "as fp32":
            lowest = min([checked.cosine, *checked.layers.values()])
            counts = f"cosine {lowest:.3f} or more; {AS_FP32:g} or more counts as equal"
            words = f"loss within {checked.loss_error:.1%}, outputs within {checked.outputs_error:.1%}"
            return verdict, f"{words}, gradients as in fp32 ({counts})", None
        worst = [each for each in found if each.verdict == verdict]
        first = next((each for each in worst if not each.is_gradient), None)
        if first is None:
            first = max(worst, key=lambda each: each.value / each.allowed)
        same = len({each.layer for each in worst} - {first.layer})
        more = f" (and {same} more layers)" if first.is_gradient and same else ""
        why = f"{first.words}{more}; {first.limits}"
        if verdict != "can't tell":
            return verdict, why, None
        needed = "no number of them would tell"
        if first.more is not None:
            needed = f"{first.more:,} more would (--batches {self._batches + first.more})"
        return verdict, f"on these {self._batches} batches: {why}; {needed}", first.more

    def _zero(self, trial: PrecisionTrial) -> list[str]:
        """Return the layers whose gradient is zero, although it is not in fp32 and not by rounding."""

        def all_zero(of: PrecisionTrial, name: str) -> bool:
            return not bool(of.gradients[name].count_nonzero())

        return [
            name
            for name in self._reference.gradients
            if all_zero(trial, name)
            and not all_zero(self._reference, name)
            and not all_zero(self._control, name)
        ]

    def _of_loss(self, checked: Checked) -> _Deviation:
        control = _off(self._control.loss, self._reference.loss)
        more = self._more((TIMES_CONTROL * control / MOST_ALLOWED) ** 2)
        return _beside("the loss differs", checked.loss_error, LOSS_OFF, control, more)

    def _of_outputs(self, checked: Checked) -> _Deviation:
        control = _distance(self._control.outputs, self._reference.outputs)
        return _beside("the outputs differ", checked.outputs_error, OUTPUTS_OFF, control)

    def _of_gradients(self, checked: Checked) -> Iterator[_Deviation]:
        for name, value in checked.layers.items():
            control = self._control_cosines[name]
            allowed = TIMES_CONTROL * (1 - control) + _SLACK
            noise = self._more(_noise(control) / _noise(_CLEAR_CONTROL))
            yield _Deviation(
                f"the gradient of {name or 'the network'} differs from fp32's: cosine {value:.3f}",
                1 - value,
                1 - AS_FP32,
                allowed,
                f"rounding images and weights alone gives {control:.3f}, {max(-1.0, 1 - allowed):.3f} or "
                "more is allowed",
                noise,
                is_gradient=True,
                layer=name,
            )
            yield self._of_norm(name, checked.norms[name], noise)

    def _of_norm(self, name: str, ratio: float, more: int | None) -> _Deviation:
        control = _ratio(self._control.gradients[name], self._reference.gradients[name])
        cosine_ = self._control_cosines[name]
        # rounding that turns a gradient also makes it longer, or by chance not
        by_turning = -math.log(cosine_) if cosine_ > 0 else math.inf
        allowed = TIMES_CONTROL * max(abs(_log(control)), by_turning)
        times = math.exp(min(allowed, 50.0))
        return _Deviation(
            f"the gradient of {name or 'the network'} is {ratio:.3g} times as large as fp32's",
            abs(_log(ratio)),
            math.log(TIMES_NORM),
            max(math.log(TIMES_NORM), allowed),
            f"rounding images and weights alone gives {control:.3g} times, a factor of "
            f"{max(TIMES_NORM, times):.3g} is allowed",
            more,
            is_gradient=True,
            layer=name,
        )

    def _more(self, times: float) -> int | None:
        """Return how many more batches make `times` as many; None if there are too many."""
        more = math.ceil(self._batches * (times - 1)) if math.isfinite(times) else _MOST_MORE + 1
        return max(1, more) if more <= _MOST_MORE else None


def _beside(what: str, error: float, equal: float, control: float, more: int | None = None) -> _Deviation:
    """Return a relative deviation beside that of the control."""
    allowed = max(equal, TIMES_CONTROL * control)
    limits = f"rounding images and weights alone gives {control:.1%}, {allowed:.1%} is allowed"
    return _Deviation(f"{what} by {error:.1%}", error, equal, allowed, limits, more)


def _noise(cosine_: float) -> float:
    """Return the noise of a gradient beside itself, as a ratio of powers: it falls with the batches."""
    return 1 / cosine_**2 - 1 if cosine_ > 0 else math.inf


def _cosines(reference: PrecisionTrial, trial: PrecisionTrial) -> dict[str, float]:
    return {name: cosine(g, trial.gradients[name]) for name, g in reference.gradients.items()}


def _ratio(values: torch.Tensor, reference: torch.Tensor) -> float:
    ours, theirs = float(values.norm()), float(reference.norm())
    return ours / theirs if theirs else math.inf if ours else 1.0


def _log(ratio: float) -> float:
    return math.log(ratio) if 0 < ratio < math.inf else math.inf


def _off(value: float, reference: float) -> float:
    return abs(value - reference) / abs(reference) if reference else abs(value)


def _distance(values: torch.Tensor, reference: torch.Tensor) -> float:
    norm = float(reference.norm())
    return float((values - reference).norm()) / norm if norm else float(values.norm())


def _whole(reference: PrecisionTrial, trial: PrecisionTrial) -> float:
    return cosine(
        torch.cat(list(reference.gradients.values())),
        torch.cat([trial.gradients[name] for name in reference.gradients]),
    )
