"""Where the time of a step goes: one step in each reporting interval is measured, part by part.

The others pay one comparison a part. On CUDA the parts lie between events that are read at a later step, when
the device has long passed them: nothing waits for it.
"""

from dataclasses import dataclass

import torch

from mptui.engine.reporting.late_reads import Moment

PARTS = ("copy", "forward", "backward", "optimizer", "other")
"""copy: a batch on its way to the device, and made ready there; other: metrics, seeds and notes."""


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Seconds of one step by part, and whether the device was done by the time all work was handed to it.

    `starved` is None where host and device are one.
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
        device: Where the step is computed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._armed = True
        self._measuring = False
        self._marks: list[_Mark] = []
        self._starved: bool | None = None
        self._under_way = False

    def arm(self) -> None:
        """Measure the next step, unless one is still to be read."""
        self._armed = not self._under_way

    def begin(self) -> None:
        """A step begins; one under way that never ended is forgotten."""
        if self._armed or self._measuring:
            self._armed, self._measuring = False, True
            self._marks = []
            self.mark("")

    def mark(self, part: str) -> None:
        """The work since the last mark was `part`."""
        if self._measuring:
            self._marks.append(_Mark(part, Moment(self._device)))

    def end(self) -> None:
        """The step is over; what came after the last mark was `other`."""
        if not self._measuring:
            return
        self.mark("other")
        self._measuring, self._under_way = False, True
        computed = next((m.moment for m in reversed(self._marks) if m.part == "backward"), None)
        # still at work on the backward pass: it has more to do. Done with it by now: it waits for the host
        self._starved = None if computed is None else computed.passed

    def read(self) -> StepSplit | None:
        """The step measured last, once; None where there is none, or the device has not finished it."""
        if not self._under_way:
            return None
        if self._marks[-1].moment.passed is False:
            return None
        self._under_way = False
        seconds = dict.fromkeys(PARTS, 0.0)
        for before, mark in zip(self._marks, self._marks[1:], strict=False):
            seconds[mark.part] += mark.moment.seconds_since(before.moment)
        return StepSplit(seconds, self._starved)
