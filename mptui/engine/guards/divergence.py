"""The NaN guard: a run that diverges goes back to its last good state, and on with gentler settings.

The update has refused every bad step, so a batch that was bad by itself has left no trace and needs no way
back. Only faults that go on are divergence: then the run goes back, leaves the batch out where they began,
takes the next move of the ladder and trains again what lies between. When the budget is spent it ends, with a
report of what was found.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mptui.engine.guards.alert import DivergenceAlert
from mptui.engine.guards.detector import Alarm, DivergenceDetector, WindowPosition
from mptui.engine.guards.fallbacks import Kind, Ladder, lowered
from mptui.engine.guards.nan_localizer import LOSS, NanLocation, look_at
from mptui.engine.guards.rollback import LastGood
from mptui.engine.job import Job
from mptui.engine.precision.fp32_region import Island
from mptui.engine.precision.loss_scale_monitor import ScalerHealth
from mptui.engine.reporting.device_buffer import StepRow
from mptui.errors import DataError, DivergedError
from mptui.events import Diagnosed, PrecisionChanged, Recovered, Warned

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer

FILES_SHOWN, FILES_KEPT = 3, 64
"""Of a batch: in a line, and in a report."""
LOOKS = 20
"""Bad batches of a run that are looked at again and told, each with its files."""
REPORT = "divergence.json"
"""Where the run directory keeps the last diagnosis."""


class NanGuard:
    """Watches the rows of one trainer, and acts between two steps.

    Attributes:
        given: The job as it was given, without the ladder's settings.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self.given = trainer.job
        guards = trainer.job.config.guards
        self._ladder = Ladder(guards.max_recoveries)
        self._watch = DivergenceDetector(guards.max_skipped_streak, self._floor(), trainer.task.chance)
        self._alert = DivergenceAlert(self._watch.far)
        self._last_good = LastGood(self._warn)
        self._islands: dict[str, Island] = {}
        self._left_out: set[tuple[int, int]] = set()
        self._looks = 0
        self.health = ScalerHealth(trainer.job.config.precision.grad_scaler)

    @property
    def _mode(self) -> str:
        return self._trainer.job.config.guards.on_nan

    def see(self, rows: Sequence[StepRow]) -> None:
        """Take in the rows of the next steps; called as they are read."""
        if self._trainer.parts.precision.scaled:
            self.health.see(rows)
        if self._mode != "ignore":
            self._watch.see(rows)
        else:
            self._watch.see_losses(rows)

    def keep(self) -> None:
        """Keep the state as it is, for a way back; between two steps, with all rows read."""
        if self._mode == "rollback":
            self._last_good.keep(self._trainer, self._watch.last_good)

    def leaves_out(self, epoch: int, sample: int) -> bool:
        """Whether the window that begins there is left out of the order."""
        return (epoch, sample) in self._left_out

    def look(self) -> bool:
        """Deal with what the rows have shown; whether the run went back.

        Raises:
            DivergedError: It diverged, and may not or can't be mended.
        """
        self._tell_health()
        for event in self._alert.news(self._trainer.step, self._trainer.job.config.training.lr):
            self._trainer.emit(event)
        alarm = self._watch.alarm
        if alarm is None and not self._watch.left_out:
            return False
        self._trainer.reporter.flush()  # the steps are told before what was wrong with them
        left_out, self._watch.left_out = self._watch.left_out, []
        for place in left_out:
            if alarm is None or place.step < alarm.place.step:
                self._tell_left_out(place)
        return alarm is not None and self._answer(alarm)

    def finish(self) -> None:
        """No step comes any more: tell of the faults under way as of bad batches."""
        self._watch.absolve()
        self.look()

    def _answer(self, alarm: Alarm) -> bool:
        trainer = self._trainer
        finding = _of_loss(alarm) if alarm.finite else self._found(alarm.place)
        if finding.where == "input":
            if self._watch.refused_in_a_row >= trainer.job.config.guards.max_skipped_streak:
                raise self._diverged(alarm, finding)
            self._watch.absolve()
            return self.look()
        if not self.can_go_back:
            raise self._diverged(alarm, finding)
        before, scale = trainer.job.precision, self._scale()
        kind = self._ladder.climb(finding, trainer.job, scale=scale, floor=self._floor() or 1.0)
        if kind is None:
            raise self._diverged(alarm, finding)
        self._tell(alarm.place, "divergence", finding)
        self._go_back(alarm, kind, scale)
        trainer.emit(
            Recovered(
                step=trainer.step,
                problem="divergence",
                action=f"{self._ladder.moves[-1]}, back to step {trainer.step}: {finding.words()}",
            )
        )
        if trainer.job.precision != before:
            trainer.emit(
                PrecisionChanged(
                    step=trainer.step,
                    precision=trainer.job.precision,
                    previous=before,
                    reason=alarm.reason,
                )
            )
        return True

    def _go_back(self, alarm: Alarm, kind: Kind, scale: float | None) -> None:
        trainer = self._trainer
        if not alarm.finite:
            self._left_out.add((alarm.place.epoch, alarm.place.sample))
        if kind == "island":
            self._raise_islands()
        elif kind != "scale":
            self._take_gentler_job()
        self.go_back()
        if kind == "scale" and scale is not None:
            trainer.parts.precision.set_scale(lowered(scale, self._floor() or 0.0))

    @property
    def can_go_back(self) -> bool:
        """Whether there is a state to go back to."""
        return self._mode == "rollback" and self._last_good.exists

    def go_back(self) -> None:
        """Set the trainer to its last good state; it goes on from there with another pass over the data."""
        self._trainer.reporter.flush(wait=True)  # no row of what is undone now may come in later
        self._last_good.go_back(self._trainer, self._watch.last_good)
        self._watch.reset()
        self._watch.last_good = self._trainer.step
        self._trainer.leave_epoch()

    def forget(self) -> None:
        """Forget the states to go back to, and the faults under way: the run is set to another state."""
        self._last_good.forget()
        self._watch.reset()

    def take_job(self, job: Job) -> Job:
        """Another job comes in force, with the gentler settings that the run has come to."""
        self.given = job
        return self._ladder.onto(job)

    def _take_gentler_job(self) -> None:
        self._trainer.take_job(self.given)

    def take_parts(self) -> None:
        """The trainer has other parts, for which other limits may hold."""
        guards = self._trainer.job.config.guards
        self._watch.floor, self._watch.max_streak = self._floor(), guards.max_skipped_streak
        self._ladder.budget = guards.max_recoveries
        for island in self._islands.values():  # the configuration's own were put up anew, or taken down
            island.remove()
        self._islands.clear()
        self._raise_islands()

    def _raise_islands(self) -> None:
        """Let the layers that the ladder names compute in fp32, and no others."""
        for name in [name for name in self._islands if name not in self._ladder.islands]:
            self._islands.pop(name).remove()
        for name in self._ladder.islands:
            if name not in self._islands:
                self._islands[name] = Island(self._trainer.model, name, self._trainer.device)

    # -- telling

    def _warn(self, code: str, message: str) -> None:
        self._trainer.emit(Warned(step=self._trainer.step, code=code, message=message))

    def _found(self, place: WindowPosition) -> NanLocation:
        try:
            return look_at(self._trainer, place)
        except DataError as error:
            return NanLocation(detail=error.message)

    def _tell_left_out(self, place: WindowPosition) -> None:
        """A batch was bad by itself, and the update has left it out."""
        trainer = self._trainer
        self._looks += 1
        if self._looks > LOOKS:
            if self._looks == LOOKS + 1:
                message = (
                    f"more than {LOOKS} bad batches were left out; further ones are only counted as skipped"
                )
                trainer.emit(Warned(step=trainer.step, code="bad_batches", message=message))
            return
        finding = self._found(place)
        self._tell(place, "bad batch", finding)
        told = f"left out the batch of step {place.step}: {finding.words()}; {_shown(finding.files)}"
        trainer.emit(Recovered(step=trainer.step, problem="bad batch", action=told))

    def _tell(self, place: WindowPosition, problem: str, finding: NanLocation) -> None:
        trainer = self._trainer
        trainer.emit(
            Diagnosed(
                step=place.step,
                problem=problem,
                epoch=place.epoch + 1,
                precision=trainer.job.precision,
                where=finding.where,
                layer=finding.layer,
                operation=finding.operation,
                detail=finding.detail,
                files=finding.files[:FILES_KEPT],
                loss_scales={str(step): scale for step, scale in self.health.moves},
                moves=list(self._ladder.moves),
                advice=_advice(finding, trainer.job),
            )
        )

    def _diverged(self, alarm: Alarm, finding: NanLocation) -> DivergedError:
        self._tell(alarm.place, "divergence", finding)
        tried = f"; {len(self._ladder.moves)} gentler settings did not help" if self._ladder.moves else ""
        return DivergedError(
            f"training diverged: {alarm.reason}, in {self._trainer.job.precision}; {finding.words()}{tried}",
            hint=f"{'; '.join(_advice(finding, self._trainer.job))}; see {REPORT} in the run directory",
        )

    def _tell_health(self) -> None:
        step = self._trainer.step
        news = self.health.news(step)
        if news is not None:
            self._trainer.emit(news)
            advice = self.health.advice(step, bf16="bf16" in self._trainer.job.fallbacks)
            if advice is not None:
                self._trainer.emit(advice)

    # -- state

    def _floor(self) -> float | None:
        return self._trainer.parts.precision.floor

    def _scale(self) -> float | None:
        scale = self._trainer.parts.precision.loss_scale()
        return None if scale is None else float(scale)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON-ready."""
        return {
            "watch": self._watch.state(),
            "health": self.health.state(),
            "ladder": self._ladder.state(),
            "left_out": sorted(self._left_out),
            "looks": self._looks,
        }

    def load_state(self, state: dict[str, Any], asked: frozenset[str]) -> None:
        """Go on from `state`, with the settings that the ladder had come to.

        A setting that is `asked` anew is taken as it is: the ladder's moves were away from the one before.
        """
        self._ladder.load_state(state["ladder"])
        self._ladder.give_up(asked)
        self._raise_islands()
        if self._ladder.moves:
            self._take_gentler_job()
        self._watch.load_state(state["watch"])
        self.health.load_state(state["health"])
        self._left_out = {(int(epoch), int(sample)) for epoch, sample in state["left_out"]}
        self._looks = int(state["looks"])


def _of_loss(alarm: Alarm) -> NanLocation:
    return NanLocation("loss", LOSS, detail=alarm.reason, also_in_fp32=True, finite=True)


def _shown(files: list[str]) -> str:
    more = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
    return ", ".join(files[:FILES_SHOWN]) + more


def _advice(finding: NanLocation, job: Job) -> list[str]:
    """What a person can try, the likeliest first."""
    lower, clip = "try a lower learning rate (--lr)", "clip gradients (--set training.clip_grad_norm=1.0)"
    if finding.where == "input":
        return ["repair or remove the files named"]
    if job.precision == "fp16" and not finding.also_in_fp32:
        return ["try --precision bf16 or fp32", lower, clip]
    if job.precision == "bf16" and not finding.also_in_fp32:
        return ["try --precision fp32", lower, clip]
    return [lower, clip, "warm up (--set training.warmup_epochs=1)"]
