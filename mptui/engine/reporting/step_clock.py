"""Time breakdown of a step: one step per reporting interval is measured, part by part.

Throughput and the share of saving are those of whole intervals. Other steps cost one comparison per part. On
CUDA the parts lie between events that are read at a later step, without synchronization.
"""

from collections import deque
from dataclasses import dataclass

import torch

from mptui.engine.reporting.late_reads import Moment

PARTS = ("copy", "forward", "backward", "wait", "optimizer", "other")
"""copy: transfer of a batch to the device and its preparation there; wait: for the gradients of other
processes; other: metrics, seeds, records."""

_SAVES = 3


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Seconds of one step by part, and whether the device waits for the host.

    `starved`: the backward pass had finished when the whole step was issued; None without CUDA events.
    """

    seconds: dict[str, float]
    starved: bool | None = None


@dataclass(slots=True)
class _Mark:
    """The end of a part."""

    part: str
    moment: Moment


class StepClock:
    """Measures a step when it is armed; `begin`, the marks and `end` are called at every step.

    Args:
        device: Device that computes the step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._armed = True
        self._measuring = False
        self._marks: list[_Mark] = []
        self._starved: bool | None = None
        self._under_way = False
        self._in_sums = False

    def arm(self) -> None:
        """Measure the next step, unless a measurement is still unread."""
        self._armed = not self._under_way

    def begin(self) -> None:
        """Begin a step; a measurement that never ended is discarded."""
        if self._armed or self._measuring:
            self._armed, self._measuring = False, True
            self._marks, self._in_sums = [], False
            self.mark("")

    def mark(self, part: str) -> None:
        """Attribute the work since the last mark to `part`."""
        if self._measuring:
            self._marks.append(_Mark("wait" if self._in_sums else part, Moment(self._device)))
            self._in_sums = False

    def sums_begin(self) -> None:
        """Attribute the work since the last mark to `backward`, and what comes before the next to `wait`."""
        self.mark("backward")
        self._in_sums = self._measuring

    def end(self) -> None:
        """End the step; work after the last mark counts as `other`."""
        if not self._measuring:
            return
        self.mark("other")
        self._measuring, self._under_way = False, True
        computed = next((m.moment for m in reversed(self._marks) if m.part == "backward"), None)
        # a device that has finished the backward pass by now waits for the host
        self._starved = None if computed is None else computed.passed

    def read(self) -> StepSplit | None:
        """Return the last measurement, once; None if there is none or the device has not finished it."""
        if not self._under_way:
            return None
        if self._marks[-1].moment.passed is False:
            return None
        self._under_way = False
        seconds = dict.fromkeys(PARTS, 0.0)
        for before, mark in zip(self._marks, self._marks[1:], strict=False):
            seconds[mark.part] += mark.moment.seconds_since(before.moment)
        return StepSplit(seconds, self._starved)


@dataclass(slots=True)
class Throughput:
    """Samples, and the seconds of training that they took, with all that held up its steps."""

    samples: int = 0
    seconds: float = 0.0

    def add(self, samples: int, seconds: float) -> None:
        """Count an interval."""
        self.samples += samples
        self.seconds += seconds

    @property
    def rate(self) -> float | None:
        """Samples per second; None before the first interval."""
        return self.samples / self.seconds if self.samples else None


class SavingShare:
    """Measures the share of saving from one save to the next: a few seconds around a save don't tell it."""

    def __init__(self) -> None:
        self._periods: deque[tuple[float, float]] = deque(maxlen=_SAVES)
        self._since: float | None = 0.0

    def restart(self) -> None:
        """Discard all periods; the one under way, whose length other settings may have cut, isn't counted."""
        self._periods.clear()
        self._since = None

    def record(self, seconds: float, saving: float) -> None:
        """Record an interval of `seconds`, of which `saving` were spent saving."""
        if self._since is not None:
            self._since += seconds
        if saving > 0:
            if self._since is not None:
                self._periods.append((saving, self._since))
            self._since = 0.0

    @property
    def share(self) -> float:
        """The share of the time that saving takes; 0 before a save."""
        return sum(s for s, _ in self._periods) / (sum(whole for _, whole in self._periods) or 1.0)

    @property
    def known(self) -> bool:
        """Whether a period has ended."""
        return bool(self._periods)
