"""Warnings, alerts, diagnoses and recoveries."""

from dataclasses import dataclass, field
from typing import ClassVar

from mptui.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned(Event):
    """A setting or a resource is not as requested; the run continues."""

    kind: ClassVar[str] = "warning"

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert(Event):
    """A condition of the run that lasts until an event with the same `code` has `over` set.

    `code` is diverging: the loss is finite, but far above its best and above chance; or disk: few further
    checkpoints fit on it.
    """

    kind: ClassVar[str] = "alert"

    code: str
    message: str
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """Origin of a step's non-finite numbers, found by computing its batch again.

    `where` is input, weights, forward, loss, backward, or empty if the numbers were finite this time. `files`
    are those of the batch, or of its bad samples. `loss_scales` are the last changes of the scale (step ->
    scale), `moves` the recoveries tried so far, `advice` what the user can try.
    """

    kind: ClassVar[str] = "diagnosed"

    problem: str
    epoch: int
    precision: str
    where: str
    layer: str
    operation: str
    detail: str
    files: list[str] = field(default_factory=list)
    loss_scales: dict[str, float] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The run recovered from a problem that would have ended it.

    `problem` is divergence, bad batch, out of memory, host memory or disk; `action` is the remedy.
    """

    kind: ClassVar[str] = "recovered"

    problem: str
    action: str
