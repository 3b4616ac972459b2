"""Detects divergence in step figures that are read asynchronously: no step waits for it.

In fp16 a step with a finite loss and an overflowing gradient is normal: the scaler skips it and backs off. A
loss that is not finite, or without loss scaling a gradient that is not, is a fault. A fault followed by a
good step is due to its batch: the update refused it, so the state is as if the run never had that batch.
Repeated faults are divergence. So is a finite loss that stays far above its best and above chance. The result
depends on the rows alone, not on when they are read.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mptui.engine.guards.far import DIVERGED_AFTER, FarLoss
from mptui.engine.reporting.device_buffer import StepRow

FAULTS_IN_A_ROW = 3
"""Faults without a good step in between that count as divergence."""
MANY, WITHIN = 10, 100
"""So many faults within so many steps count as divergence, too: the run loses a tenth of its data."""


@dataclass(frozen=True, slots=True)
class WindowPosition:
    """A window of a run: the step that tried it, its epoch (from 0), and its first sample in the order."""

    step: int
    epoch: int
    sample: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A detected divergence: the window where it began, and the reason in words.

    `finite`: all numbers are finite, but the loss is far too high.
    """

    place: WindowPosition
    reason: str
    finite: bool = False


class DivergenceDetector:
    """Handles the row of each step once, in order.

    Args:
        max_streak: Refused steps in a row that count as divergence whatever their cause.
        floor: Lower limit of the loss scale; None if the loss is not scaled.
        chance: Loss at chance level; by default finite losses are not judged.

    Attributes:
        far: Judges finite losses.
        last_good: The last step that was applied and whose loss was not far too high.
        alarm: The divergence, until `reset` or `absolve` clears it; later rows are queued.
        left_out: Faults due to their batch alone, until the caller takes them.
    """

    def __init__(self, max_streak: int, floor: float | None, chance: float = math.inf) -> None:
        self.floor = floor
        self.far = FarLoss(chance)
        self.last_good = 0
        self.alarm: Alarm | None = None
        self.left_out: list[WindowPosition] = []
        self.max_streak = max_streak
        self.reset()

    @property
    def refused_in_a_row(self) -> int:
        """Refused steps since the last applied one."""
        return len(self._refused)

    def reset(self) -> None:
        """Discard pending faults after a rollback."""
        self._absolved()
        self.far.forget()
        self._refused: list[WindowPosition] = []
        self._waiting: list[StepRow] = []

    def absolve(self) -> None:
        """Attribute pending faults to their batches, and handle the rows queued since."""
        self.left_out += self._faults
        self._absolved()
        waiting, self._waiting = self._waiting, []
        self.update(waiting)

    def _absolved(self) -> None:
        self.alarm = None
        self._faults: list[WindowPosition] = []
        self._skips_at_floor = 0
        self._recent: list[int] = []

    def update(self, rows: Sequence[StepRow]) -> None:
        """Handle the rows of the next steps."""
        if not rows:
            return
        if self.alarm is None and not any(row.refused for row in rows) and self.far.none_in(rows):
            rows = rows[-1:]  # of good steps the last one suffices
        for row in rows:
            self._update(row)

    def update_losses(self, rows: Sequence[StepRow]) -> None:
        """Handle only the finite losses of the rows."""
        applied = [row for row in rows if not row.refused]
        if applied and not self.far.none_in(applied):
            for row in applied:
                self.far.update(row)

    def _update(self, row: StepRow) -> None:
        if self.alarm is not None:
            self._waiting.append(row)
            return
        if not row.refused:
            self._update_applied(row)
            return
        place = WindowPosition(row.step, row.epoch - 1, row.sample)
        self._refused.append(place)
        if self.floor is not None and math.isfinite(row.loss):
            self._skips_at_floor += row.loss_scale <= self.floor
        else:
            self._faults.append(place)
            self._recent = [step for step in self._recent if step > row.step - WITHIN] + [row.step]
        self.alarm = self._judged(row)

    def _update_applied(self, row: StepRow) -> None:
        self.left_out += self._faults
        self._faults, self._refused, self._skips_at_floor = [], [], 0
        if not self.far.update(row):
            self.last_good = row.step
        elif self.far.streak >= DIVERGED_AFTER:
            words = f"the loss was far too high for {DIVERGED_AFTER} steps in a row ({self.far.words()})"
            self.alarm = Alarm(WindowPosition(row.step, row.epoch - 1, row.sample), words, finite=True)

    def _judged(self, row: StepRow) -> Alarm | None:
        few = min(FAULTS_IN_A_ROW, self.max_streak)
        if len(self._faults) >= few:
            return self._alarm(self._faults[0], row, f"{few} steps in a row had values that are not finite")
        if self._skips_at_floor >= few:
            words = f"gradients overflow at the lowest loss scale of {self.floor:g}"
            return self._alarm(self._refused[0], row, words)
        if len(self._refused) >= self.max_streak:
            words = f"{self.max_streak} steps in a row had gradients that are not finite"
            return self._alarm(self._refused[0], row, words)
        if len(self._recent) >= MANY:
            words = f"{MANY} of {WITHIN} steps had values that are not finite"
            return self._alarm(self._faults[-1] if self._faults else self._refused[-1], row, words)
        return None

    def _alarm(self, place: WindowPosition, row: StepRow, words: str) -> Alarm:
        return Alarm(place, f"{words} (up to step {row.step})")

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; alarm and left-out faults are handled before one is saved."""
        return {
            "last_good": self.last_good,
            "recent": self._recent,
            "faults": [asdict(place) for place in self._faults],
            "refused": [asdict(place) for place in self._refused],
            "skips_at_floor": self._skips_at_floor,
            "far": self.far.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""
        self.last_good, self._skips_at_floor = int(state["last_good"]), int(state["skips_at_floor"])
        self._recent = [int(step) for step in state["recent"]]
        self.far.load_state_dict(state.get("far", {}))
        self._faults = [WindowPosition(**place) for place in state["faults"]]
        self._refused = [WindowPosition(**place) for place in state["refused"]]
