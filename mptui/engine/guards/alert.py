"""The alert of a run that diverges with finite numbers, and the advice that comes with it."""

from collections.abc import Iterator

from mptui.engine.guards.far import ALERT_AFTER, FarLoss
from mptui.events import Advice, Alert, Event

CODE = "diverging"
GENTLER = 10
"""What the advice divides the learning rate by."""


class DivergenceAlert:
    """Says when the loss has become far too high, and when that is over.

    Args:
        far: Counts the steps.
    """

    def __init__(self, far: FarLoss) -> None:
        self._far = far
        self._advised = self._on = False

    def news(self, step: int, lr: float) -> Iterator[Event]:
        """Events since the last call; `lr` is the learning rate in force."""
        if self._on and not self._far.streak:
            self._on = False
            yield Alert(step=step, code=CODE, message="the loss is normal again", over=True)
        elif not self._on and self._far.streak >= ALERT_AFTER:
            self._on = True
            message = f"the run is diverging: its loss is {self._far.words()}"
            yield Alert(step=step, code=CODE, message=message)
            if not self._advised:
                self._advised = True
                yield Advice(
                    step=step,
                    code=CODE,
                    message="the loss is far too high: use a lower learning rate",
                    setting=f"training.lr={lr / GENTLER:g}",
                )
