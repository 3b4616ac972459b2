"""Checks which precision is safe for a network on its data, and which of its layers need fp32.

A precision is compared with fp32 on the same batches, and with a control: fp32 with images and weights
rounded to that precision. A layer fails if its gradient differs from fp32's in direction much more than by
rounding alone, or if its values exceed the range of the format.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from mptui.config.schema import RunConfig
from mptui.data.core.batch import Batch
from mptui.engine.guards.nan_localizer import LOSS
from mptui.engine.mailbox import Mailbox
from mptui.engine.numerics.ranking import Ranking, rank
from mptui.engine.numerics.spectrum import HEADROOM
from mptui.engine.torch_setup import set_switches
from mptui.errors import DivergedError
from mptui.events import NumericsLayer
from mptui.lab.amp.operations import Found, OperationFinding, merged
from mptui.lab.amp.trial import PrecisionTrial, TrialSetup, cosine
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Plan

AS_FP32 = 0.9
"""Cosine similarity to fp32's gradient from which a gradient counts as equal."""
TIMES_CONTROL = 5.0
"""Allowed deviation of a gradient (1 - cosine), as a multiple of that by rounding images and weights."""
_SLACK = (1 - AS_FP32) / 2
LOSS_OFF = 0.02
"""Allowed relative error of the loss; or `TIMES_CONTROL` times the control's."""
MAX_FP32_LAYERS = 12
ROUNDS = 24


Verdict = Literal["as fp32", "as rounding", "not safe"]
"""Gradients equal fp32's; or differ by no more than rounding explains; or differ by more, or overflow."""


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
    fp32_layers: list[str] = field(default_factory=list)
    """Layers that must compute in fp32 for the precision to be safe."""
    verdict: Verdict = "as fp32"
    why: str = ""

    @property
    def safe(self) -> bool:
        """Whether the precision is safe: as fp32, or no further from it than rounding explains."""
        return self.verdict != "not safe"


@dataclass(slots=True)
class AmpReport:
    """The result: all precisions, the layers by risk in fp16, and the recommendation."""

    model: str
    dataset: str
    device: str
    batches: int
    batch_size: int
    checked: dict[str, Checked]
    ranking: Ranking
    use: str
    reason: str
    operations: list[OperationFinding] = field(default_factory=list)
    """Operations of the person's network that don't follow autocast."""

    def config(self, config: RunConfig) -> RunConfig:
        """Return `config` with the recommended precision and its fp32 layers."""
        used = self.checked[self.use]
        precision = config.precision.model_copy(update={"mode": self.use, "fp32_layers": used.fp32_layers})
        if used.loss_scale is not None:
            scaler = config.precision.grad_scaler
            changes = {"init_scale": used.loss_scale, "min_scale": min(used.loss_scale, scaler.min_scale)}
            precision = precision.model_copy(update={"grad_scaler": scaler.model_copy(update=changes)})
        return config.model_copy(update={"precision": precision})


def check(plan: Plan, batches: int, mailbox: Mailbox) -> AmpReport:
    """Check the model of `plan` on the first batches of its data.

    Raises:
        ConfigError: The model does not exist, or not at this image size or for this task.
        DataError: The data is missing, empty, or too much of it is broken.
        DivergedError: Values are not finite in fp32 either.
        Stopped: A stop was requested.
    """
    # no workers and no cache for so few batches, and fp32 without TF32
    config = plan.config.model_copy(
        update={
            "data": plan.config.data.model_copy(update={"cache": "off"}),
            "precision": plan.config.precision.model_copy(update={"matmul": "highest", "fp32_layers": []}),
        }
    )
    alone = replace(plan, workers=0, resolved=replace(plan.resolved, config=config))
    prepared = prepare(
        alone, emit=lambda _: None, mailbox=mailbox, on_bad=lambda *_: None, force_compile=False
    )
    job = prepared.job
    set_switches(config)
    try:
        taken: list[Batch] = []
        windows = job.train_loader.windows(0, 1)
        for window in windows:
            taken += [_own(batch) for batch in window if batch.valid]
            if len(taken) >= batches:
                break
    finally:
        job.train_loader.close()
        job.val_loader.close()
    checker = PrecisionChecker(TrialSetup(job, taken[:batches]), mailbox)
    checked = {name: checker.check(name) for name in ("fp32", "bf16", "fp16")}
    use, reason = _choice(plan, checked)
    return AmpReport(
        model=str(config.model.name),
        dataset=prepared.dataset.name,
        device=plan.device.name,
        batches=min(batches, len(taken)),
        batch_size=config.training.batch_size,
        checked=checked,
        ranking=checker.ranking,
        use=use,
        reason=reason,
        operations=merged(checker.operations),
    )


def _own(batch: Batch) -> Batch:
    """Copy a batch, so that it stays valid when the next one is read."""
    return replace(batch, images_BCHW=batch.images_BCHW.clone(), targets=batch.targets.clone())


class PrecisionChecker:
    """Checks precisions on one network and its batches.

    Raises:
        DivergedError: Values are not finite in fp32 either.
    """

    def __init__(self, bench: TrialSetup, mailbox: Mailbox) -> None:
        self._bench, self._mailbox = bench, mailbox
        self._scaler = bench.job.config.precision.grad_scaler
        self._reference = bench.run("fp32", look=True)
        if not self._reference.finite:
            place = f" (first in {self._reference.first_bad})" if self._reference.first_bad else ""
            raise DivergedError(
                f"values are not finite in fp32 either{place}: no precision is safe",
                hint="check the data with: mptui doctor --data PATH, or use other weights",
            )
        self.ranking = rank(self._reference.seen, None)
        self.operations: dict[str, Found] = {}
        self._order = list(dict.fromkeys(s.layer for s in self._reference.seen if s.part == "forward"))

    def check(self, precision: str) -> Checked:
        """Check a precision; if it is not safe, also with some layers in fp32."""
        if precision == "fp32":
            return Checked("fp32", self._reference.loss, why="the reference")
        self._control = self._bench.rounded(precision)
        plain = self._tried(precision, [])
        if plain.safe:
            return plain
        fp32_layers = self._find_fp32_layers(precision)
        if not fp32_layers:
            return plain
        improved = self._tried(precision, fp32_layers)
        if not improved.safe:
            return plain
        for name in reversed(fp32_layers):  # keep the layers most likely at fault
            fewer = [other for other in improved.fp32_layers if other != name]
            without = self._tried(precision, fewer) if fewer else plain
            improved = without if without.safe else improved
        improved.why = f"safe with {len(improved.fp32_layers)} of its layers in fp32; without: {plain.why}"
        return improved

    def _find_fp32_layers(self, precision: str) -> list[str]:
        """Return the layers whose values overflow, and the layers after them, as far as necessary."""
        fp32_layers: list[str] = []
        if precision == "fp16":
            for layer in self.ranking.layers:
                if layer.fault and len(fp32_layers) < MAX_FP32_LAYERS:
                    fp32_layers += [n for n in self._with_next(layer.name) if n not in fp32_layers]
        for _ in range(ROUNDS):
            trial = self._run(precision, fp32_layers)
            bad = trial.first_bad
            if bad in {"", LOSS} or bad in fp32_layers or len(fp32_layers) >= MAX_FP32_LAYERS:
                break
            fp32_layers.append(bad)
        worst = self._judged(self._run(precision, fp32_layers), fp32_layers)
        if not worst.safe and math.isfinite(worst.cosine):
            fp32_layers += [name for name in self._turned(worst.layers) if name not in fp32_layers]
        return [name for name in fp32_layers if name][:MAX_FP32_LAYERS]

    def _with_next(self, name: str) -> list[str]:
        """Return a layer and the next one, which would round its output again."""
        if name not in self._order:
            return []
        place = self._order.index(name)
        return self._order[place : place + 2]

    def _tried(self, precision: str, fp32_layers: list[str]) -> Checked:
        trial = self._run(precision, fp32_layers)
        self.operations.setdefault(precision, trial.operations)
        return self._judged(trial, fp32_layers)

    def _run(self, precision: str, fp32_layers: Sequence[str]) -> PrecisionTrial:
        """Run a trial; in fp16 with the loss scale that a scaler would reach."""
        self._mailbox.check_stop()
        if precision != "fp16":
            return self._bench.run(precision, fp32_layers=fp32_layers)
        best = self.ranking.best
        scale = (
            self._scaler.init_scale
            if best is None
            else min(self._scaler.init_scale, best.scale * 2.0**HEADROOM)
        )
        while True:
            trial = self._bench.run("fp16", scale=scale, fp32_layers=fp32_layers)
            lower = scale * self._scaler.backoff_factor
            if trial.finite or trial.first_bad or trial.refused or lower < self._scaler.min_scale:
                return trial
            scale = lower
            self._mailbox.check_stop()

    def _judged(self, trial: PrecisionTrial, fp32_layers: list[str]) -> Checked:
        reference = self._reference
        if trial.refused:
            return Checked(
                trial.precision,
                math.nan,
                fp32_layers=fp32_layers,
                cosine=math.nan,
                verdict="not safe",
                why=trial.refused,
            )
        cosines = {name: cosine(g, trial.gradients[name]) for name, g in reference.gradients.items()}
        order = sorted(cosines, key=lambda name: cosines[name] if math.isfinite(cosines[name]) else -2.0)
        checked = Checked(
            precision=trial.precision,
            loss=trial.loss,
            loss_error=_off(trial.loss, reference.loss),
            outputs_error=_distance(trial.outputs, reference.outputs),
            cosine=_whole(reference, trial),
            control=_whole(reference, self._control),
            loss_scale=trial.scale,
            layers={name: cosines[name] for name in order},
            fp32_layers=fp32_layers,
        )
        checked.verdict, checked.why = self._verdict(trial, checked)
        return checked

    def _verdict(self, trial: PrecisionTrial, checked: Checked) -> tuple[Verdict, str]:
        if trial.first_bad:
            return "not safe", f"the output of {trial.first_bad} is not finite"
        if not trial.finite:
            bad = next((n for n, g in trial.gradients.items() if not bool(g.isfinite().all())), "")
            return "not safe", f"the gradients of {bad or 'the network'} are not finite with any loss scale"
        allowed = max(LOSS_OFF, TIMES_CONTROL * _off(self._control.loss, self._reference.loss))
        if checked.loss_error > allowed:
            return "not safe", f"the loss differs by {checked.loss_error:.1%} (allowed: {allowed:.1%})"
        turned = self._turned(checked.layers)
        worst = next(iter(turned or checked.layers), None)
        lowest = min([checked.cosine, *checked.layers.values()])
        if lowest >= AS_FP32:
            counts = f"cosine {lowest:.3f} or more; {AS_FP32:g} or more counts as equal"
            return "as fp32", f"loss within {checked.loss_error:.1%}, gradients as in fp32 ({counts})"
        more = f" and of {len(turned) - 1} more" if len(turned) > 1 else ""
        name, value, control = "the network", checked.cosine, checked.control
        if worst is not None and checked.layers[worst] < AS_FP32:
            name, value, control = worst or LOSS, checked.layers[worst], self._control_of(worst)
        return ("not safe" if turned else "as rounding"), (
            f"the gradient of {name}{more} differs from fp32's: cosine {value:.3f}; rounding images and "
            f"weights alone gives {control:.3f}, {max(-1.0, _limit(control)):.3f} or more is allowed"
        )

    def _turned(self, cosines: dict[str, float]) -> list[str]:
        """Return the layers whose gradient deviates more than rounding explains, worst first."""
        return [
            name
            for name, value in cosines.items()
            if value < AS_FP32 and value < _limit(self._control_of(name))
        ]

    def _control_of(self, name: str) -> float:
        return cosine(self._reference.gradients[name], self._control.gradients[name])


def _limit(control: float) -> float:
    """Return the lowest cosine that rounding explains, given the control's."""
    return 1 - TIMES_CONTROL * (1 - control) - _SLACK


def _choice(plan: Plan, checked: dict[str, Checked]) -> tuple[str, str]:
    """Recommend a precision, with the reason: the requested or suggested one if safe, else a native one."""
    wanted = plan.precision.used
    native = [name for name in ("bf16", "fp16") if plan.device.native.get(name) == "native"]
    instead = f"{wanted} is not safe here: {checked[wanted].why}"
    for name in dict.fromkeys([wanted, *native]):
        if checked[name].safe:
            return name, plan.precision.reason if name == wanted else instead
    return "fp32", instead


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


def lost_layers(ranking: Ranking) -> list[NumericsLayer]:
    """Return one entry per layer, the part of it that loses most, in the order of risk."""
    first: dict[str, NumericsLayer] = {}
    for layer in ranking.layers:
        first.setdefault(layer.name, layer)
    return list(first.values())
