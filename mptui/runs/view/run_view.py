"""`RunView`: an event to its spec."""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from operator import is_not
from types import NoneType
from typing import Any

from mptui.events import Event, PhaseChanged, RunFinished, RunStarted, Step
from mptui.runs.view.history import State
from mptui.runs.view.specs import EVENTS
from mptui.runs.view.state import ViewState
from mptui.runs.view.words import LOSS
from mptui.text import clean, clean_lines

# The view of a run for the live screen, updated by events
# --------------------------------------------------------
# The same view serves a run of this process, a run of another one, and a journal.

_STATES: dict[str, State] = {
    "compiling": "compiling",
    "training": "training",
    "validating": "validating",
    "sampling": "validating",
    "saving": "saving",
    "paused": "paused",
}


class RunView(ViewState):
    """The state of a run on screens: `handle` updates it by an event; screens read its attributes."""

    def handle(self, event: Event) -> None:
        """Update the state and the log."""
        event = cleaned(event)
        spec = EVENTS[event.kind]
        self.version += 1
        self._pass_time(event)
        self.time = event.time
        self.step = event.step or self.step  # a validation's progress has no step
        spec.handle(self, event)
        self.write_log(event, spec.log_lines(event))
        self.timeline.reached(self.step, self.precision, self.profile)

    def _pass_time(self, event: Event) -> None:
        """Add the time since the event before to what the run did, unless nothing ran then."""
        starts = isinstance(event, PhaseChanged) and event.phase == "starting"
        if starts or isinstance(event, RunStarted) or self.finished is not None:
            self.timeline.skip_to(event.time, event.clock)
            return
        waiting = self.latest.data_wait_fraction if self.latest is not None else None
        self.timeline.advance(event.time, self._state, waiting or 0.0, event.clock)

    @property
    def _state(self) -> State:
        return "paused" if self.paused else _STATES.get(self.phase, "preparing")

    def title_of(self, chart: str, title: str = "") -> str:
        """Return the title of a chart, or of a curve in it: of a loss with its `Validated.loss_terms`."""
        terms = self.validation.loss_terms if self.validation is not None and chart == LOSS else []
        return f"{title or chart} with {', '.join(terms)}" if terms else title or chart

    @property
    def total_steps(self) -> int:
        """Number of optimizer steps of the whole run; 0 while unknown."""
        return self.started.total_steps if self.started else 0

    @property
    def fraction_done(self) -> float:
        """Completed fraction of the run."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else 0.0

    def remaining_s(self) -> float | None:
        """Return the seconds until the end of the run, including validations; None while unknown."""
        run = self.started
        if run is None or self.finished is not None or not run.total_steps:
            return None
        steps = max(0, run.total_steps - self.step)
        seconds = self.pace.remaining(steps, run.steps_per_epoch, run.val_batches)
        if seconds is not None and self.phase == "validating" and self.pace.validation_s is not None:
            left = 1 - self.progress.done / self.progress.total if self.progress else 1.0
            seconds += left * self.pace.validation_s
        return seconds


# Makes the texts of events and files safe to show, as they come from files, libraries and users
# ----------------------------------------------------------------------------------------------

_DEEPEST = 16
"""Tables and lists inside each other; a summary of ours has three. Deeper ones would exhaust the stack."""

_NUMBERS = frozenset({int, float, bool, NoneType})
"""What most fields hold."""

_LARGEST_BITS = 63
"""Of a whole number; a larger one is no count of ours, and can't be used with floats."""


def cleaned(event: Event) -> Event:
    """Return the event with all texts made safe to show."""
    if isinstance(event, Step) and _is_plain(event):
        return event
    made: Event = _cleaned(event)
    if isinstance(event, RunFinished) and isinstance(made, RunFinished):
        made = replace(made, message=clean_lines(event.message), hint=clean_lines(event.hint))
    return made


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any value of an event's field
    """Return a value with its texts made safe; the same one if they are, as nearly all."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        items = [_cleaned(item) for item in value]
        return items if any(map(is_not, items, value)) else value
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    names = _fields(value.__class__)
    old = {name: item for name in names if type(item := getattr(value, name)) not in _NUMBERS}
    changed = {name: made for name, item in old.items() if (made := _cleaned(item)) is not item}
    return replace(value, **changed) if changed else value


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _is_plain(event: Step) -> bool:
    """Whether a step's texts need no cleaning, which is usual; most events are steps."""
    return all(map(str.isidentifier, (event.bound_by or "x", *event.split, *event.ceilings, *event.metrics)))


def cleaned_json(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any JSON value
    """Make a value safe to show and to write again; None for values that no run writes."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        return None
    if not isinstance(value, dict | list):
        return value
    if depth == _DEEPEST:
        return None
    if isinstance(value, dict):
        return {clean(key): cleaned_json(item, depth + 1) for key, item in value.items()}
    return [cleaned_json(item, depth + 1) for item in value]
