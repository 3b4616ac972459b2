"""Collects the events of a short run until it is measured."""

import time

from mptui.events import EpochStarted, Event, RunStarted, Step
from mptui.lab.bench.stats import Span

LOSS_AT = 10
"""Steps after which the losses of two runs are compared, if they aren't too slow."""

_WARM_UP, _WARM_UP_S = 5, 2.0
"""Steps, or seconds after the first step, that are excluded."""


class RunListener:
    """Collects the events of a run until it is measured.

    Args:
        seconds: Required seconds of training after the warm-up.
        loss_at: Number of steps whose loss is needed; 0: none.

    Attributes:
        epoch_steps: Optimizer steps per epoch.
        classes: Number of classes of the data.
        span: The steps after the warm-up, with all that held them up but validations.
    """

    def __init__(self, seconds: float, *, loss_at: int = LOSS_AT) -> None:
        self._seconds, self._loss_at = seconds, loss_at
        self._warm, self._warm_s = 0, 0.0
        self._waited_s = 0.0
        self._losses: list[float] = []
        self._training_since: float | None = None
        self._stepped = False
        self.epoch_steps = self.classes = 0
        self.span = Span(0.0, 0.0)

    def handle(self, event: Event) -> None:
        """Handle an event of the run."""
        if isinstance(event, RunStarted):
            self._training_since, self.classes = time.monotonic(), len(event.classes)
        self._stepped |= isinstance(event, Step)
        if isinstance(event, EpochStarted):
            self.epoch_steps = event.steps
        if not isinstance(event, Step):
            return
        if self._loss_at // 2 < event.step <= self._loss_at:
            self._losses.append(event.loss)
        if self._is_warm_up(event) or event.samples_per_second is None or event.step_time_s is None:
            return
        seconds = event.step_time_s * event.steps
        self.span = Span(self.span.samples + event.samples_per_second * seconds, self.span.seconds + seconds)
        self._waited_s += (event.data_wait_fraction or 0.0) * seconds

    def _is_warm_up(self, event: Step) -> bool:
        long_enough = self._warm_s >= _WARM_UP_S
        if self._warm:  # compiling and measuring in the first steps are not warm-up
            self._warm_s += (event.step_time_s or 0.0) * event.steps
        self._warm += event.steps
        return self._warm <= _WARM_UP and not long_enough

    def is_slow(self, first_step_limit_s: float) -> bool:
        """Whether the first step is running for longer than this."""
        since = self._training_since
        return since is not None and not self._stepped and time.monotonic() - since > first_step_limit_s

    @property
    def enough(self) -> bool:
        """Whether the measurement is complete."""
        return self.span.seconds >= self._seconds and (self.loss is not None or not self._loss_at)

    @property
    def loss(self) -> float | None:
        """Mean loss of the second half of the first steps; None before their end, or if one is missing."""
        wanted = self._loss_at - self._loss_at // 2
        return sum(self._losses) / wanted if wanted and len(self._losses) == wanted else None

    @property
    def wait(self) -> float:
        """Fraction of the span that steps waited for data."""
        return self._waited_s / self.span.seconds if self.span.seconds else 0.0
