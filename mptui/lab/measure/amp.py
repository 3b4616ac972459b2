"""Checks which precision is safe for a network on its data, and which of its layers need fp32.

A precision is compared with fp32 on the same batches, and with a control: fp32 with images and weights
rounded to that precision. It fails if its loss, its outputs or the gradient of a layer differ from fp32's
much more than by rounding alone, or if values exceed the range of the format.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from mptui.config.schema import RunConfig
from mptui.engine.guards.nan_localizer import LOSS
from mptui.engine.mailbox import Mailbox
from mptui.engine.numerics.ranking import Ranking, rank
from mptui.engine.numerics.spectrum import HEADROOM
from mptui.engine.precision.amp import DTYPES
from mptui.engine.torch_setup import set_switches
from mptui.errors import DivergedError
from mptui.events import NumericsLayer
from mptui.lab.amp.first_difference import FirstDifference, Rounding, first_difference
from mptui.lab.amp.judge import AS_FP32, Checked, Judge
from mptui.lab.amp.operations import Found, OperationFinding, merged
from mptui.lab.amp.trial import PrecisionTrial, TrialSetup, cosine, first_batches, rounding_to
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Plan

MAX_FP32_LAYERS = 12
TRIED = 3
"""Suspects that are tried one by one, before the first stays in fp32 and more are looked for."""


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
    first_differences: dict[str, FirstDifference | None] | None = None
    """By precision, the first operation that differs by more than its rounding; None if it was not asked."""
    samples: list[list[str]] = field(default_factory=list)
    """The names of the samples of each batch."""
    unjudged: list[str] = field(default_factory=list)
    """Layers whose gradient is nothing but rounding in fp32 too, so that it is not judged."""

    def config(self, config: RunConfig) -> RunConfig:
        """Return `config` with the recommended precision and its fp32 layers."""
        used = self.checked[self.use]
        precision = config.precision.model_copy(update={"mode": self.use, "fp32_layers": used.fp32_layers})
        if used.loss_scale is not None:
            scaler = config.precision.grad_scaler
            changes = {"init_scale": used.loss_scale, "min_scale": min(used.loss_scale, scaler.min_scale)}
            precision = precision.model_copy(update={"grad_scaler": scaler.model_copy(update=changes)})
        return config.model_copy(update={"precision": precision})


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
    taken = first_batches(job, batches)
    checker = PrecisionChecker(TrialSetup(job, taken), mailbox)
    checked = {name: checker.check(name) for name in ("fp32", "bf16", "fp16")}
    use, reason = _choice(plan, checked)
    return AmpReport(
        model=str(config.model.name),
        dataset=prepared.dataset.name,
        device=plan.device.name,
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
        self._bench, self._mailbox = bench, mailbox
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
        while found is not None and found.line and found.line not in lines and len(lines) < TRIED:
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
        if trial.refused or (trial.first_bad and trial.first_bad != LOSS):
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
