"""Roll back, leave out, the next safer setting."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mptui.config.keys import with_values
from mptui.engine.context import TrainContext
from mptui.engine.guards.detector import (
    Alarm,
    DivergenceAlert,
    DivergenceDetector,
    ScalerHealth,
    WindowPosition,
)
from mptui.engine.guards.nan_localizer import LOSS, NanLocation, locate
from mptui.engine.hooks import Hook
from mptui.engine.job import Job
from mptui.engine.precision import Fp32Region
from mptui.engine.reporting.reporter import StepRow
from mptui.errors import DataError, DivergedError
from mptui.events import Diagnosed, PrecisionChanged, Recovered

# Fallbacks: safer settings that a run takes after a divergence, one at a time, the cheapest first
# ------------------------------------------------------------------------------------------------
# 1. A lower loss scale, down to its floor: if gradients overflowed in fp16 and the loss was finite.
# 2. bf16 instead of fp16, if the hardware supports it: as fast, with the range of fp32.
# 3. The layer at fault in fp32, if bf16 is not supported: the rest keeps its speed.
# 4. fp32.
# 5. Half the learning rate.
#
# Fallbacks that can't help are skipped: if the batch fails in fp32 too, the number format is not the cause.

Kind = Literal["scale", "bf16", "island", "fp32", "lr"]

_GENTLENESS = ("fp16", "bf16", "fp32")
SCALE_DROP = 2.0**-4
MAX_FP32_LAYERS = 4


@dataclass(slots=True)
class Fallbacks:
    """The fallbacks that a run has taken.

    Args:
        budget: Maximum number of fallbacks over the whole run.
        moves: Fallbacks taken so far, in words, in order.
        precision: Precision that replaces the job's; None: the job's.
        fp32_layers: Layers that fell back to fp32.
        lr_factor: Factor of the learning rate.
    """

    budget: int
    moves: list[str] = field(default_factory=list)
    precision: str | None = None
    fp32_layers: list[str] = field(default_factory=list)
    lr_factor: float = 1.0

    def next(self, finding: NanLocation, job: Job, *, scale: float | None, floor: float) -> Kind | None:
        """Take the next fallback and return its kind; None: the budget is spent.

        Args:
            finding: Where the numbers stopped being finite.
            job: The current job, with the fallbacks so far.
            scale: The loss scale; None if the loss is not scaled.
            floor: Lower limit of the loss scale.
        """
        if len(self.moves) >= self.budget:
            return None
        kind = self._kind(finding, job, scale, floor)
        words = {
            "scale": f"loss scale {scale or 0:g} → {lowered(scale or 0.0, floor):g}",
            "bf16": f"precision {job.precision} → bf16",
            "island": f'layer "{finding.layer}" in fp32',
            "fp32": f"precision {job.precision} → fp32",
            "lr": f"learning rate {job.config.training.lr:g} → {job.config.training.lr / 2:g}",
        }
        self.moves.append(words[kind])
        if kind in {"bf16", "fp32"}:
            self.precision = kind
        elif kind == "island":
            self.fp32_layers.append(finding.layer)
        elif kind == "lr":
            self.lr_factor /= 2
        return kind

    def _kind(self, finding: NanLocation, job: Job, scale: float | None, floor: float) -> Kind:
        if job.precision == "fp32" or finding.also_in_fp32:
            return "lr"
        if job.precision == "fp16":
            can_be_lower = scale is not None and scale > floor
            if finding.where == "backward" and can_be_lower:
                return "scale"
            if "bf16" in job.fallbacks:
                return "bf16"
            may_be_island = finding.layer not in self.fp32_layers and len(self.fp32_layers) < MAX_FP32_LAYERS
            if finding.is_layer and may_be_island:
                return "island"
        return "fp32"

    def onto(self, job: Job) -> Job:
        """Return `job` with the fallbacks applied."""
        safer = with_values(job.config, {"training.lr": job.config.training.lr * self.lr_factor})
        return replace(job, precision=self.over(job.precision), config=safer)

    def over(self, precision: str) -> str:
        """Return the safer of the job's precision and the one fallen back to."""
        return max(precision, self.precision or "fp16", key=_GENTLENESS.index)

    def state_dict(self) -> dict[str, Any]:
        """Return the fallbacks for a checkpoint."""
        return {
            "moves": self.moves,
            "precision": self.precision,
            "islands": self.fp32_layers,
            "lr_factor": self.lr_factor,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore from `state_dict`; settings missing in it stay as configured."""
        self.moves = [str(move) for move in state_dict["moves"]]
        self.precision = state_dict.get("precision")
        self.fp32_layers = [str(name) for name in state_dict.get("islands", ())]
        self.lr_factor = float(state_dict.get("lr_factor", 1.0))


def lowered(scale: float, floor: float) -> float:
    """Return the loss scale after one fallback."""
    return max(floor, scale * SCALE_DROP)


# The NaN guard: rolls a diverged run back to its last good state, and continues with safer settings
# --------------------------------------------------------------------------------------------------
# The update refuses every bad step, so a single bad batch changes no state and needs no rollback. Only
# repeated faults are divergence: then the run rolls back, leaves out the batch where they began, takes the
# next fallback and repeats the steps in between. When the budget is spent the run ends with a diagnosis.

FILES_SHOWN, FILES_KEPT = 3, 64
"""Files of a batch that are listed in a message, and in a report."""
MOST_DIAGNOSED = 20
"""Bad batches of a run that are diagnosed and reported, each with its files."""
MOST_SKIPPED = 0.25
"""Share of a run's steps that may be skipped without a warning at its end."""
REPORT = "divergence.json"
"""Name of the file in the run directory that holds the last diagnosis."""


class NanGuard(Hook):
    """Monitors the figures of the steps, and recovers between two steps."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        guards = context.job.config.guards
        self._fallbacks = Fallbacks(guards.max_recoveries)
        self._detector = DivergenceDetector(guards.max_skipped_streak, self._floor(), context.task.chance)
        self._alert = DivergenceAlert(self._detector.far)
        self._fp32_regions: dict[str, Fp32Region] = {}
        self._diagnosed = 0
        self._snapshot_at = self._began_at = 0
        self.health = ScalerHealth(lambda: context.job.config.precision.grad_scaler)

    @property
    def _mode(self) -> str:
        return self._context.job.config.guards.on_nan

    def run_begins(self) -> None:
        """Take the first snapshot for a rollback."""
        self._began_at = self._context.state.step
        self._keep()

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        """Handle the losses, refused steps and loss scales of new rows."""
        if self._context.parts.precision.scaled:
            self.health.update(rows)
        if self._mode != "ignore":
            self._detector.update(rows)
            self._context.rollback.last_good = self._detector.last_good
        else:
            self._detector.update_losses(rows)

    def step_ends(self) -> None:
        """Take a snapshot if one is due, unless the run has just gone back."""
        if self._context.state.step < self._snapshot_at:
            return
        self._context.reporter.catch_up()
        if not self._context.act_on_report():
            self._keep()

    def report_due(self) -> None:
        """Report bad batches, and recover from divergence.

        Raises:
            DivergedError: The run diverged, and may not or can't recover.
        """
        self._report_health()
        context = self._context
        for event in self._alert.news(context.state.step, context.job.config.training.lr):
            context.emit(event)
        alarm = self._detector.alarm
        if alarm is None and not self._detector.left_out:
            return
        context.reporter.flush()  # report the steps before their faults
        left_out, self._detector.left_out = self._detector.left_out, []
        for place in left_out:
            if alarm is None or place.step < alarm.place.step:
                self._report_left_out(place)
        if alarm is not None:
            self._recover(alarm)

    def run_ends(self) -> None:
        """Report pending faults as bad batches, and warn if many steps were skipped."""
        self._detector.clear_batches()
        self.report_due()
        context, totals = self._context, self._context.reporter.totals
        if totals.skipped <= MOST_SKIPPED * totals.tried or context.state.step == self._began_at:
            return
        message = f"{totals.skipped:,} of {totals.tried:,} steps were skipped: gradients were not finite"
        if context.parts.precision.scaled:
            message += "; a lower precision.grad_scaler.init_scale skips fewer steps"
        context.warn("skipped_steps", message)

    def adapt_job(self, job: Job) -> Job:
        """Return the job with the fallbacks in force."""
        return self._fallbacks.onto(job)

    def settings_changed(self) -> None:
        """Apply the limits of the settings in force."""
        guards = self._context.job.config.guards
        self._detector.floor = self._floor()
        self._detector.max_streak = guards.max_skipped_streak
        self._fallbacks.budget = guards.max_recoveries
        if self._mode != "rollback":
            self._context.rollback.forget()
        for region in self._fp32_regions.values():  # the configured ones were wrapped or removed before
            region.remove()
        self._fp32_regions.clear()
        self._apply_fp32_layers()
        self._plan_snapshot()

    def went_back(self) -> None:
        """Discard pending faults."""
        self._detector.reset()
        self._detector.last_good = self._context.state.step
        self._plan_snapshot()

    def _keep(self) -> None:
        if self._mode == "rollback":
            self._context.rollback.keep(self._context.state)
        self._plan_snapshot()

    def _plan_snapshot(self) -> None:
        # at multiples, so that identical runs roll back to identical states
        every = self._context.job.config.guards.snapshot_every
        self._snapshot_at = (self._context.state.step // every + 1) * every

    def _recover(self, alarm: Alarm) -> None:
        context = self._context
        finding = _of_loss(alarm) if alarm.finite else self._locate(alarm.place)
        if finding.where == "input":
            if self._detector.refused_in_a_row >= context.job.config.guards.max_skipped_streak:
                raise self._diverged(alarm, finding)
            self._detector.clear_batches()
            self.report_due()
            return
        if not context.rollback.possible:
            raise self._diverged(alarm, finding)
        before, scale = context.job.precision, self._scale()
        kind = self._fallbacks.next(finding, context.job, scale=scale, floor=self._floor() or 1.0)
        if kind is None:
            raise self._diverged(alarm, finding)
        self._report(alarm.place, "divergence", finding)
        self._go_back(alarm, kind, scale)
        context.emit(
            Recovered(
                step=context.state.step,
                problem="divergence",
                action=f"{self._fallbacks.moves[-1]}, back to step {context.state.step}: {finding.words()}",
            )
        )
        if context.job.precision != before:
            context.emit(
                PrecisionChanged(
                    step=context.state.step,
                    precision=context.job.precision,
                    previous=before,
                    reason=alarm.reason,
                )
            )

    def _go_back(self, alarm: Alarm, kind: Kind, scale: float | None) -> None:
        context = self._context
        if not alarm.finite:
            context.left_out.add((alarm.place.epoch, alarm.place.sample))
        if kind == "island":
            self._apply_fp32_layers()
        elif kind != "scale":
            context.take_job(context.state.given)
        context.go_back()
        if kind == "scale" and scale is not None:
            context.parts.precision.set_scale(lowered(scale, self._floor() or 0.0))

    def _apply_fp32_layers(self) -> None:
        """Make exactly the layers that fell back to fp32 compute in it."""
        for name in [name for name in self._fp32_regions if name not in self._fallbacks.fp32_layers]:
            self._fp32_regions.pop(name).remove()
        for name in self._fallbacks.fp32_layers:
            if name not in self._fp32_regions:
                self._fp32_regions[name] = Fp32Region(self._context.model, name, self._context.device)

    def _locate(self, place: WindowPosition) -> NanLocation:
        """Return what the first rank finds that finds something; each looks at its own samples."""
        with self._context.parts.replica.full_weights():
            try:
                found = locate(self._context, place)
            except DataError as error:
                found = NanLocation(detail=error.message)
        findings = self._context.ranks.gather(found)
        return next((each for each in findings if each.where), findings[0])

    def _report_left_out(self, place: WindowPosition) -> None:
        """Report a single bad batch, which the update has refused."""
        context = self._context
        self._diagnosed += 1
        if self._diagnosed > MOST_DIAGNOSED:
            if self._diagnosed == MOST_DIAGNOSED + 1:
                words = "bad batches were left out; further ones are only counted"
                context.warn("bad_batches", f"more than {MOST_DIAGNOSED} {words}")
            return
        finding = self._locate(place)
        self._report(place, "bad batch", finding)
        action = f"left out the batch of step {place.step}: {finding.words()}; {_shown(finding.files)}"
        context.emit(Recovered(step=context.state.step, problem="bad batch", action=action))

    def _report(self, place: WindowPosition, problem: str, finding: NanLocation) -> None:
        context = self._context
        context.emit(
            Diagnosed(
                step=place.step,
                problem=problem,
                epoch=place.epoch + 1,
                precision=context.job.precision,
                where=finding.where,
                layer=finding.layer,
                operation=finding.operation,
                detail=finding.detail,
                files=finding.files[:FILES_KEPT],
                loss_scales={str(step): scale for step, scale in self.health.moves},
                moves=list(self._fallbacks.moves),
                advice=_advice(finding, context.job),
            )
        )

    def _diverged(self, alarm: Alarm, finding: NanLocation) -> DivergedError:
        self._report(alarm.place, "divergence", finding)
        tried = f"; {len(self._fallbacks.moves)} fallbacks did not help" if self._fallbacks.moves else ""
        return DivergedError(
            f"training diverged: {alarm.reason}, in {self._context.job.precision}; {finding.words()}{tried}",
            hint=f"{'; '.join(_advice(finding, self._context.job))}; see {REPORT} in the run directory",
        )

    def _report_health(self) -> None:
        step = self._context.state.step
        news = self.health.news(step)
        if news is not None:
            self._context.emit(news)
            advice = self.health.advice(step, bf16="bf16" in self._context.job.fallbacks)
            if advice is not None:
                self._context.emit(advice)

    # -- state

    def _floor(self) -> float | None:
        return self._context.parts.precision.floor

    def _scale(self) -> float | None:
        scale = self._context.parts.precision.loss_scale()
        return None if scale is None else float(scale)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the guard; `ladder`: the fallbacks."""
        return {
            "watch": self._detector.state_dict(),
            "health": self.health.state_dict(),
            "ladder": self._fallbacks.state_dict(),
            "left_out": sorted(self._context.left_out),
            "looks": self._diagnosed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore from `state_dict`, and apply its fallbacks."""
        self._fallbacks.load_state_dict(state_dict["ladder"])
        self._apply_fp32_layers()
        if self._fallbacks.moves:
            self._context.take_job(self._context.state.given)
        self._detector.reset()
        self._detector.load_state_dict(state_dict["watch"])
        self._context.rollback.last_good = self._detector.last_good
        self.health.load_state_dict(state_dict["health"])
        self._context.left_out.clear()
        self._context.left_out.update((int(epoch), int(sample)) for epoch, sample in state_dict["left_out"])
        self._diagnosed = int(state_dict["looks"])


def _of_loss(alarm: Alarm) -> NanLocation:
    return NanLocation("loss", LOSS, detail=alarm.reason, also_in_fp32=True, finite=True)


def _shown(files: list[str]) -> str:
    more = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
    return ", ".join(files[:FILES_SHOWN]) + more


def _advice(finding: NanLocation, job: Job) -> list[str]:
    """Return what a user can try, the likeliest remedy first."""
    lower, clip = "try a lower learning rate (--lr)", "clip gradients (--set training.clip_grad_norm=1.0)"
    if finding.where == "input":
        return ["repair or remove these files"]
    if job.precision == "fp16" and not finding.also_in_fp32:
        return ["try --precision bf16 or fp32", lower, clip]
    if job.precision == "bf16" and not finding.also_in_fp32:
        return ["try --precision fp32", lower, clip]
    return [lower, clip, "warm up (--set training.warmup_epochs=1)"]
