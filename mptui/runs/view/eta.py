"""Estimates the speed of a run and its end, including validation."""

import math
from dataclasses import dataclass

from mptui.events import Step

HALF_LIFE_S = 30.0
"""Age in seconds at which a step counts half, so that the estimate adapts without jumps."""

FORWARD_SHARE = 1 / 3
"""Assumed fraction of a training step for a validation batch that is not measured yet."""


@dataclass(slots=True)
class Pace:
    """Estimates the seconds per step and per validation from events."""

    _seconds: float = 0.0
    _steps: float = 0.0
    _previous: float | None = None
    validation_s: float | None = None

    def stepped(self, event: Step) -> None:
        """Count the steps of `event`, timed since the previous one without an interruption."""
        if self._previous is not None and event.instant > self._previous:
            self._add(event.instant - self._previous, event.steps)
        elif event.step_time_s is not None and not self._steps:
            self._add(event.step_time_s * event.steps, event.steps)
        self._previous = event.instant

    def interrupted(self) -> None:
        """Exclude the next interval, in which other work took time."""
        self._previous = None

    def step_s(self) -> float | None:
        """Return the current seconds per step; None while unknown."""
        return self._seconds / self._steps if self._steps else None

    def remaining(self, steps: int, steps_per_epoch: int, val_batches: int) -> float | None:
        """Return the seconds for `steps` more steps, with a validation at the end of each epoch."""
        step_s = self.step_s()
        if step_s is None:
            return None
        validation_s = self.validation_s
        if validation_s is None:
            validation_s = val_batches * step_s * FORWARD_SHARE
        validations = math.ceil(steps / steps_per_epoch) if steps_per_epoch and val_batches else 0
        return steps * step_s + validations * validation_s

    def _add(self, seconds: float, steps: int) -> None:
        kept = 0.5 ** (max(0.0, seconds) / HALF_LIFE_S)
        self._seconds = self._seconds * kept + seconds
        self._steps = self._steps * kept + steps
