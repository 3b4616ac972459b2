"""All guards of one trainer: the few places where its flow asks them."""

from typing import TYPE_CHECKING, Any

from mptui.engine.guards.divergence import NanGuard
from mptui.engine.guards.oom import MemoryGuard
from mptui.events import Recovered, Warned

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


MOST_SKIPPED = 0.25
"""Share of a run's steps that may be skipped without a warning at its end."""


class Guards:
    """The NaN guard and the memory guard, and when a snapshot is due."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self.nan = NanGuard(trainer)
        self.memory = MemoryGuard(trainer)
        self._snapshot_at = self._began_at = 0
        trainer.reporter.watcher = self.nan.see

    def begin(self) -> None:
        """Before the first step: find the micro-batch if asked to, and keep the state to go back to."""
        self._began_at = self._trainer.step
        self.memory.find()
        self._keep()

    def restart(self, state: dict[str, Any]) -> None:
        """The run is set to an earlier state by a person: `state` is what the guards knew then."""
        self.nan.forget()
        self.load_state(state, frozenset())

    def take_parts(self) -> None:
        """The trainer has other parts, maybe under another configuration."""
        self.nan.take_parts()
        self.memory.take_parts()
        self._plan_snapshot()

    def due(self, step: int) -> bool:
        """Whether a snapshot is to be kept after `step` steps."""
        return step >= self._snapshot_at

    def look(self) -> bool:
        """Deal with what the rows read so far have shown; whether the run went back to an earlier state.

        Raises:
            DivergedError: It diverged, and may not or can't be mended.
        """
        went_back = self.nan.look()
        if went_back:
            self._plan_snapshot()
        return went_back

    def go_back(self) -> None:
        """Set the trainer to its last good state: weights that are half moved can't be undone otherwise."""
        self.nan.go_back()
        self._plan_snapshot()
        step = self._trainer.step
        action = f"back to step {step}: the optimizer was interrupted"
        self._trainer.emit(Recovered(step=step, problem="out of memory", action=action))

    def settle(self) -> bool:
        """Read all rows, waiting for the device, and deal with them; whether the run went back."""
        self._trainer.reporter.flush(wait=True)
        return self.look()

    def finish(self) -> None:
        """After the last step: what was too few faults for a divergence was bad batches."""
        self.nan.finish()
        totals, precision = self._trainer.reporter.totals, self._trainer.parts.precision
        if totals.skipped <= MOST_SKIPPED * totals.tried or self._trainer.step == self._began_at:
            return
        message = f"{totals.skipped:,} of {totals.tried:,} steps moved nothing: gradients were not finite"
        if precision.scaled:
            message += "; a lower precision.grad_scaler.init_scale takes fewer steps to come down"
        self._trainer.emit(Warned(step=self._trainer.step, code="skipped_steps", message=message))

    def keep_if_due(self) -> None:
        """Keep a snapshot if it is time, unless all is not well."""
        if not self.due(self._trainer.step):
            return
        self._trainer.reporter.catch_up()
        if not self.look():
            self._keep()

    def _keep(self) -> None:
        self.nan.keep()
        self._plan_snapshot()

    def _plan_snapshot(self) -> None:
        # at multiples, so that two runs that are the same go back to the same states
        every = self._trainer.job.config.guards.snapshot_every
        self._snapshot_at = (self._trainer.step // every + 1) * every

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON-ready."""
        return {"nan": self.nan.state(), "memory": self.memory.state()}

    def load_state(self, state: dict[str, Any], asked: frozenset[str]) -> None:
        """Go on from `state`; what was chosen for a setting that is `asked` anew now is left."""
        self.memory.load_state(state["memory"], asked)
        self.nan.load_state(state["nan"], asked)
