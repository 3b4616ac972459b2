"""Advice, commands, and switches of the profile."""

from dataclasses import dataclass, field
from typing import ClassVar

from mptui.events.event import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Event):
    """A suggestion for this run, with the setting that applies it (`table.key=value`) if there is one."""

    kind: ClassVar[str] = "advice"

    code: str
    message: str
    setting: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswered(Event):
    """State of a command from a key, a signal or the socket: asked, taken, done or refused.

    `id` is the one that its client gave it; "": none did.
    """

    kind: ClassVar[str] = "command"

    command: str
    state: str
    detail: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetSwitched(Event):
    """The run uses another profile from this step on; `changes` maps `table.key` to [old, new] as text.

    `lr` is the effective learning rate (after scaling, warm-up and schedule, at this step) before and after;
    `batch` is the effective batch before and after. The rate changes over `ramp_steps` steps;
    `planned_lr` has [step, learning rate] from this step to the last. `undone`: the
    previous switch was undone, and the run is back at the step before it.
    """

    kind: ClassVar[str] = "preset_switched"

    profile: str
    previous: str
    changes: dict[str, list[str]] = field(default_factory=dict)
    undone: bool = False
    lr: list[float] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)
    ramp_steps: int = 0
    planned_lr: list[list[float]] = field(default_factory=list)
