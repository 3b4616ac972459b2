"""A loss that is finite and yet diverged: far above the run's own best, and above chance.

Detected in the figures that are read late, as by all guards: no step waits for it.
"""

import math
from collections.abc import Sequence
from typing import Any

from mptui.engine.reporting.device_buffer import StepRow

FAR = 3.0
"""A loss is far above another at more than so many times that."""
ALERT_AFTER = 5
"""Applied steps in a row with such a loss that make an alert."""
DIVERGED_AFTER = 20
"""So many make a divergence: a spike of a healthy run is over before."""


class FarLoss:
    """Counts the applied steps in a row whose loss is far above the lowest one so far and above chance.

    Args:
        chance: The loss of a network that knows nothing.

    Attributes:
        best: The lowest loss of a step so far.
        streak: Steps in a row with a loss that is far above.
        loss: The last of them.
    """

    def __init__(self, chance: float) -> None:
        self.chance = chance
        self.best = self.loss = math.inf
        self.streak = 0

    def none_in(self, rows: Sequence[StepRow]) -> bool:
        """Take in the rows of applied steps if none of them is far above; else take in nothing."""
        losses = [row.loss for row in rows]
        best = min(self.best, *losses)
        if not max(losses) <= FAR * max(best, self.chance):
            return False
        self.best, self.streak = best, 0
        return True

    def update(self, row: StepRow) -> bool:
        """Take in the row of an applied step; whether its loss is far above."""
        far = row.loss > FAR * max(self.best, self.chance)
        self.best = min(self.best, row.loss)
        self.streak = self.streak + 1 if far else 0
        self.loss = row.loss
        return far

    def forget(self) -> None:
        """The steps of the streak are undone."""
        self.streak = 0

    def words(self) -> str:
        """How far the loss is, in a phrase."""
        return f"{self.loss:.3g}; best {self.best:.3g}, chance level {self.chance:.3g}"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": None if math.isinf(self.best) else self.best, "streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`; nothing is known of the runs of an earlier version."""
        best = state.get("best")
        self.best, self.streak = math.inf if best is None else float(best), int(state.get("streak", 0))
