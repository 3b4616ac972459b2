"""Detects divergence with a finite loss: far above the run's best, and above chance.

Like all guards it uses figures that are read asynchronously: no step waits for it.
"""

import math
from collections.abc import Sequence
from typing import Any

from mptui.engine.reporting.device_buffer import StepRow

FAR = 3.0
"""Factor above which a loss is far above another."""
ALERT_AFTER = 5
"""Applied steps in a row with such a loss that raise an alert."""
DIVERGED_AFTER = 20
"""Applied steps in a row that count as divergence: spikes of a healthy run are shorter."""


class FarLoss:
    """Counts the applied steps in a row whose loss is far above the lowest one so far and above chance.

    Args:
        chance: Loss at chance level.

    Attributes:
        best: The lowest loss of a step so far.
        streak: Steps in a row whose loss is far above.
        loss: The last loss handled by `see`.
    """

    def __init__(self, chance: float) -> None:
        self.chance = chance
        self.best = self.loss = math.inf
        self.streak = 0

    def none_in(self, rows: Sequence[StepRow]) -> bool:
        """Handle rows of applied steps if no loss is far above, and return True; else change nothing."""
        losses = [row.loss for row in rows]
        best = min(self.best, *losses)
        if not max(losses) <= FAR * max(best, self.chance):
            return False
        self.best, self.streak = best, 0
        return True

    def update(self, row: StepRow) -> bool:
        """Handle the row of an applied step; returns whether its loss is far above."""
        far = row.loss > FAR * max(self.best, self.chance)
        self.best = min(self.best, row.loss)
        self.streak = self.streak + 1 if far else 0
        self.loss = row.loss
        return far

    def forget(self) -> None:
        """Reset the streak, whose steps were undone."""
        self.streak = 0

    def words(self) -> str:
        """Describe the loss beside best and chance level."""
        return f"{self.loss:.3g}; best {self.best:.3g}, chance level {self.chance:.3g}"

    def state_dict(self) -> dict[str, Any]:
        """Return best and streak for a checkpoint."""
        return {"best": None if math.isinf(self.best) else self.best, "streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state`, which is empty in checkpoints of earlier versions."""
        best = state.get("best")
        self.best, self.streak = math.inf if best is None else float(best), int(state.get("streak", 0))
