"""Alert and advice for a run that diverges with finite numbers."""

from collections.abc import Iterator

from mptui.engine.guards.far import ALERT_AFTER, FarLoss
from mptui.events import Advice, Alert, Event

CODE = "diverging"
GENTLER = 10
"""Divisor of the learning rate in the advice."""


class DivergenceAlert:
    """Reports when the loss becomes far too high, and when it is normal again.

    Args:
        far: Counts the steps.
    """

    def __init__(self, far: FarLoss) -> None:
        self._far = far
        self._on = False

    def news(self, step: int, lr: float) -> Iterator[Event]:
        """Yield events since the last call; `lr` is the learning rate in force."""
        if self._on and not self._far.streak:
            self._on = False
            yield Alert(step=step, code=CODE, message="the loss is normal again", over=True)
        elif not self._on and self._far.streak >= ALERT_AFTER:
            self._on = True
            message = f"the run is diverging: its loss is {self._far.words()}"
            yield Alert(step=step, code=CODE, message=message)
            yield Advice(
                step=step,
                code=CODE,
                message="the loss is far too high: use a lower learning rate",
                setting=f"training.lr={lr / GENTLER:g}",
            )
