"""Warns of a first loss far above chance level: of outputs that were wrong before the run began."""

import math
from collections.abc import Sequence

from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.reporting.device_buffer import StepRow

FAR_ABOVE = 3.0
"""Multiple of the loss at chance level."""


class FirstLoss(Hook):
    """Compares the loss of the first step of a run with that of an untrained network.

    Args:
        context: The run.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        """See `Hook.rows_read`."""
        if not rows or rows[0].step != 1:
            return
        first, chance = rows[0], self._context.task.chance
        if math.isfinite(first.loss) and first.loss > FAR_ABOVE * chance:
            self._context.warn(
                "first_loss",
                f"the first loss is {first.loss:.3g}, where outputs by chance have about {chance:.3g}: the "
                "outputs of the network are too large, or its images are not normalised as it expects",
            )
