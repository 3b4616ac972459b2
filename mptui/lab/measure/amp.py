"""Checks which precision is safe for a network on its data, and which of its layers need fp32."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mptui.config.keys import with_values
from mptui.config.schema import RunConfig
from mptui.engine.guards.nan_localizer import LOSS
from mptui.engine.mailbox import Mailbox
from mptui.engine.precision import DTYPES
from mptui.engine.progress import set_switches
from mptui.engine.spectrum import HEADROOM, Ranking, rank
from mptui.errors import DivergedError
from mptui.events import NumericsLayer
from mptui.lab.measure.amp_trial import (
    Found,
    OperationFinding,
    PrecisionTrial,
    TrialSetup,
    cosine,
    first_batches,
    merged,
    rounding_to,
)
from mptui.lab.measure.first_difference import (
    MOST_ALLOWED,
    TIMES_CONTROL,
    FirstDifference,
    Rounding,
    first_difference,
)
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Plan

# The verdict on a precision: how far its loss, outputs and gradients are from fp32's, beside a control
# -----------------------------------------------------------------------------------------------------
# The control is fp32 with images and weights rounded to the precision. What it changes, no 16-bit run can
# avoid; where it changes so much that nothing would be too much, these batches can't tell.

AS_FP32 = 0.9
"""Cosine similarity to fp32's gradient from which a gradient counts as equal."""
LOSS_OFF = 0.02
"""Relative error of the loss up to which it counts as equal."""
OUTPUTS_OFF = 0.05
"""Error of the outputs, relative to their norm, up to which they count as equal."""
TIMES_NORM = 1.5
"""Ratio of a gradient's norm to fp32's, or its inverse, up to which it counts as equal."""
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
        self._reference = reference
        self._control = control
        self._batches = batches
        self._control_cosines = _cosines(reference, control)

    def judge(self, trial: PrecisionTrial, fp32_layers: list[str]) -> Checked:
        """Return the check of a trial that ran with `fp32_layers`."""
        reference = self._reference
        checked = Checked(trial.precision, trial.loss, fp32_layers=fp32_layers, loss_scale=trial.scale)
        if trial.refused:
            checked.cosine = math.nan
            checked.verdict = "not safe"
            checked.why = trial.refused
            return checked
        cosines = _cosines(reference, trial)
        order = sorted(cosines, key=lambda name: cosines[name] if math.isfinite(cosines[name]) else -2.0)
        checked.loss_error = _off(trial.loss, reference.loss)
        checked.outputs_error = _distance(trial.outputs, reference.outputs)
        checked.cosine = _whole(reference, trial)
        checked.control = _whole(reference, self._control)
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
        is_new = trial.first_bad != self._reference.first_bad or not trial.finite
        if trial.first_bad and is_new:
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
            and not any(all_zero(each, name) for each in (self._reference, self._control))
        ]

    def _of_loss(self, checked: Checked) -> _Deviation:
        control = _off(self._control.loss, self._reference.loss)
        more = self._more((TIMES_CONTROL * control / MOST_ALLOWED) ** 2)
        return _beside("the loss differs", checked.loss_error, LOSS_OFF, control, more=more)

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


def _beside(what: str, error: float, equal: float, control: float, *, more: int | None = None) -> _Deviation:
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


# Checks which precision is safe for a network on its data, and which of its layers need fp32
# -------------------------------------------------------------------------------------------
# A precision is compared with fp32 on the same batches, and with a control: fp32 with images and weights
# rounded to that precision. It fails if its loss, its outputs or the gradient of a layer differ from fp32's
# much more than by rounding alone, or if values exceed the range of the format.

MAX_FP32_LAYERS = 12
TRIED = 3
"""Suspects that are tried one by one, before the first stays in fp32 and more are looked for."""


@dataclass(slots=True)
class AmpReport:
    """The result: all precisions, the layers by risk in fp16, and the recommendation."""

    model: str
    dataset: str
    device: str
    device_name: str
    batches: int
    batch_size: int
    checked: dict[str, Checked]
    ranking: Ranking
    use: str
    reason: str
    operations: list[OperationFinding] = field(default_factory=list)
    """Operations of the person's network that don't follow autocast."""
    first_differences: dict[str, FirstDifference | None] | None = None
    """By precision, the first operation that differs by more than its rounding; None if it was not asked."""
    samples: list[list[str]] = field(default_factory=list)
    """The names of the samples of each batch."""
    unjudged: list[str] = field(default_factory=list)
    """Layers whose gradient is nothing but rounding in fp32 too, so that it is not judged."""

    def config(self, config: RunConfig) -> RunConfig:
        """Return `config` with the recommended precision and its fp32 layers."""
        used = self.checked[self.use]
        values: dict[str, object] = {"precision.mode": self.use, "precision.fp32_layers": used.fp32_layers}
        if used.loss_scale is not None:
            least = min(used.loss_scale, config.precision.grad_scaler.min_scale)
            values["precision.grad_scaler.init_scale"] = used.loss_scale
            values["precision.grad_scaler.min_scale"] = least
        return with_values(config, values)


def check(plan: Plan, batches: int, mailbox: Mailbox, *, diff: bool = False) -> AmpReport:
    """Check the model of `plan` on the first batches of its data.

    Args:
        plan: The run.
        batches: Number of batches.
        mailbox: Where a stop is requested.
        diff: Also find the first operation that differs.

    Raises:
        ConfigError: The model does not exist, or not at this image size or for this task.
        DataError: The data is missing, empty, or too much of it is broken.
        DivergedError: Values are not finite in fp32 either.
        Stopped: A stop was requested.
    """
    # no workers and no cache for so few batches, and fp32 without TF32
    values = {"data.cache": "off", "precision.matmul": "highest", "precision.fp32_layers": []}
    config = with_values(plan.config, values)
    alone = replace(plan, workers=0, resolved=replace(plan.resolved, config=config))
    prepared = prepare(alone, mailbox=mailbox)
    job = prepared.job
    set_switches(config)
    taken = first_batches(job, batches)
    checker = PrecisionChecker(TrialSetup(job, taken), mailbox)
    checked = {name: checker.check(name) for name in ("fp32", "bf16", "fp16")}
    use, reason = _choice(plan, checked)
    return AmpReport(
        model=str(config.model.name),
        dataset=prepared.dataset.name,
        device=plan.device.torch_name,
        device_name=plan.device.name,
        batches=len(taken),
        batch_size=config.training.batch_size,
        checked=checked,
        ranking=checker.ranking,
        use=use,
        reason=reason,
        operations=merged(checker.operations),
        first_differences={n: checker.first_difference(n) for n in ("bf16", "fp16")} if diff else None,
        samples=[job.train_loader.names(batch.sample_indices[: batch.size]) for batch in taken],
        unjudged=checker.unjudged,
    )


class PrecisionChecker:
    """Checks precisions on one network and its batches.

    Attributes:
        ranking: Its layers by what fp16 would lose.
        operations: By precision, what doesn't follow autocast.
        unjudged: Layers whose gradient is nothing but rounding in fp32 too.

    Raises:
        DivergedError: Values are not finite in fp32 either.
    """

    def __init__(self, bench: TrialSetup, mailbox: Mailbox) -> None:
        self._bench = bench
        self._mailbox = mailbox
        self._scaler = bench.job.config.precision.grad_scaler
        self._reference = bench.run("fp32", look=True)
        if not self._reference.finite:
            place = f" (first in {self._reference.first_bad})" if self._reference.first_bad else ""
            raise DivergedError(
                f"values are not finite in fp32 either{place}: no precision is safe",
                hint="check the data with: mptui doctor --data PATH, or use other weights",
            )
        self.unjudged = self._leave_out()
        self.ranking = rank(self._reference.seen, None)
        self.operations: dict[str, Found] = {}
        self._order = list(dict.fromkeys(s.layer for s in self._reference.seen if s.part == "forward"))

    def _leave_out(self) -> list[str]:
        """Leave gradients out of the reference that are nothing but fp32's rounding; return their layers."""
        gradients, shaken = self._reference.gradients, self._bench.shaken().gradients
        found = [name for name, gradient in gradients.items() if cosine(gradient, shaken[name]) < AS_FP32]
        for name in found:
            del gradients[name]
        return found

    def check(self, precision: str) -> Checked:
        """Check a precision; if it is not safe, also with some layers in fp32."""
        if precision == "fp32":
            return Checked("fp32", self._reference.loss, why="the reference")
        self._judge = Judge(self._reference, self._bench.rounded(precision), len(self._bench.batches))
        plain = self._try(precision, [])
        if plain.checked.verdict != "not safe":
            return plain.checked
        found = self._find_fp32_layers(precision, plain)
        if found is None:
            plain.checked.why += self._other_remedy(precision)
            return plain.checked
        for name in reversed(found.fp32_layers):  # keep the layers most likely at fault
            fewer = [other for other in found.fp32_layers if other != name]
            without = self._try(precision, fewer).checked if fewer else plain.checked
            found = without if without.safe else found
        found.why = f"safe with {len(found.fp32_layers)} of its layers in fp32; without: {plain.checked.why}"
        return found

    def first_difference(self, precision: str, fp32_lines: Sequence[str] = ()) -> FirstDifference | None:
        """Return the first operation of a step that differs from fp32's by more than its rounding.

        Steps begin at the same weights. In fp16 they have the loss scale that a scaler would reach. None if
        no operation does, or the person's code doesn't compute in the precision.

        Args:
            precision: bf16 or fp16.
            fp32_lines: Lines of the person's code that compute in fp32.
        """
        trial, record = self._run(precision, [], fp32_lines), self._bench.operations
        for number in range(0 if trial.refused else len(self._bench.batches)):
            self._mailbox.check_stop()
            control = record("fp32", trial.scale, number, change=rounding_to(precision))
            fp32 = record("fp32", trial.scale, number)
            ours = record(precision, trial.scale, number, fp32_lines=fp32_lines)
            rounding = Rounding(torch.finfo(DTYPES[precision]).eps, control)
            if found := first_difference(number, ours, fp32, rounding):
                return found
        return None

    def _find_fp32_layers(self, precision: str, plain: "_Attempt") -> Checked | None:
        """Put suspects into fp32, until that has been tried and is safe; None if it never is."""
        now = plain
        for _ in range(MAX_FP32_LAYERS):
            layers = now.checked.fp32_layers
            suspects = [name for name in self._suspects(now) if name and name not in layers]
            bad, attempts = now.trial.first_bad, list[_Attempt]()
            for suspect in list(dict.fromkeys(suspects))[:TRIED]:
                attempts.append(self._try(precision, [*layers, suspect]))
                if attempts[-1].checked.safe:
                    return attempts[-1].checked
                if bad and attempts[-1].trial.first_bad != bad:
                    break  # this one is mended, and another is next
            if not attempts:
                break
            now = next((each for each in attempts if bad and each.trial.first_bad != bad), attempts[0])
        if plain.trial.refused:
            return None
        together = [name for name in self._judge.off(plain.trial, plain.checked) if name]
        found = self._try(precision, list(dict.fromkeys(together))[:MAX_FP32_LAYERS]).checked
        return found if found.safe else None

    def _other_remedy(self, precision: str) -> str:
        """Name the operation that differs first, and say whether its line in fp32, which is tried, helps."""
        first, lines = self.first_difference(precision), list[str]()
        if first is None:
            return ""
        words = f"; no layer in fp32 mends it; the first operation that differs: {first.place}"
        found: FirstDifference | None = first
        for _ in range(TRIED):
            if found is None or found.line in {"", *lines}:
                break
            lines.append(found.line)
            if self._try(precision, [], lines).checked.safe:
                which = "that line" if len(lines) == 1 else f"these lines ({'; '.join(lines)})"
                how = f'`with torch.autocast("{self._bench.job.device.type}", enabled=False)`'
                return f"{words}; it is safe with {which} in fp32: under {how}, on `.float()` values"
            found = self.first_difference(precision, lines)
        return f"{words}; that line in fp32 doesn't either" if lines else words

    def _suspects(self, attempt: "_Attempt") -> list[str]:
        """Return the layers that may be at fault, the most likely one first."""
        checked, trial = attempt.checked, attempt.trial
        if trial.refused or trial.first_bad not in {"", LOSS}:
            return [trial.first_bad, *self._around(trial.first_bad)]
        local = self._bench.local_errors(trial.precision, checked.fp32_layers)
        found = [*local.suspects(trial.precision)[:2], *self._before(self._judge.off(trial, checked))]
        if found or checked.fp32_layers:
            return found
        first = self.first_difference(trial.precision)  # in the network itself: of what this layer gives
        return [] if first is None else [first.after]

    def _around(self, name: str) -> list[str]:
        """Return the next layer, which would round its output again, and the one before."""
        if name not in self._order:
            return []
        place = self._order.index(name)
        return [*self._order[place + 1 : place + 2], *self._order[max(0, place - 1) : place]]

    def _before(self, off: Sequence[str]) -> list[str]:
        """Return where gradients went wrong.

        It is the last layer that has a wrong one, or a layer after it that has no weights.
        """
        places = [self._order.index(name) for name in off if name in self._order]
        if not places:
            return list(off[-1:])
        last = max(places)
        weighted = self._reference.gradients
        after = next((n for n in range(last + 1, len(self._order)) if self._order[n] in weighted), None)
        return [*self._order[last + 1 : after], self._order[last]]

    def _try(self, precision: str, fp32_layers: list[str], fp32_lines: Sequence[str] = ()) -> "_Attempt":
        trial = self._run(precision, fp32_layers, fp32_lines)
        self.operations.setdefault(precision, trial.operations)
        return _Attempt(self._judge.judge(trial, fp32_layers), trial)

    def _run(
        self, precision: str, fp32_layers: Sequence[str], fp32_lines: Sequence[str] = ()
    ) -> PrecisionTrial:
        """Run a trial; in fp16 with the loss scale that a scaler would reach."""
        self._mailbox.check_stop()
        if precision != "fp16":
            return self._bench.run(precision, fp32_layers=fp32_layers, fp32_lines=fp32_lines)
        best = self.ranking.best
        scale = (
            self._scaler.init_scale
            if best is None
            else min(self._scaler.init_scale, best.scale * 2.0**HEADROOM)
        )
        return self._bench.run_scaled(scale, fp32_layers, self._mailbox.check_stop, fp32_lines)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A trial with some layers in fp32, and what was found of it."""

    checked: Checked
    trial: PrecisionTrial


def _choice(plan: Plan, checked: dict[str, Checked]) -> tuple[str, str]:
    """Recommend a precision, with the reason: the requested or suggested one if safe, else a native one."""
    wanted = plan.precision.used
    native = [name for name in ("bf16", "fp16") if plan.device.native.get(name) == "native"]
    unsafe = checked[wanted].verdict
    instead = f"{wanted}{' is' if unsafe == 'not safe' else ''} {unsafe} here: {checked[wanted].why}"
    for name in dict.fromkeys([wanted, *native]):
        if checked[name].safe:
            return name, plan.precision.reason if name == wanted else instead
    return "fp32", instead


def lost_layers(ranking: Ranking) -> list[NumericsLayer]:
    """Return one entry per layer, the part of it that loses most, in the order of risk."""
    first: dict[str, NumericsLayer] = {}
    for layer in ranking.layers:
        first.setdefault(layer.name, layer)
    return list(first.values())
