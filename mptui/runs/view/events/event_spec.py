"""Specification of a kind of event, for all readers of events."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from mptui.events import Event
from mptui.runs.view.log_lines import Tone
from mptui.runs.view.view_state import ViewState

E = TypeVar("E", bound=Event)


def _nothing(*_: object) -> tuple[()]:
    """Do nothing and return nothing, for readers that ignore a kind of event."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec(Generic[E]):
    """One kind of event, and what its readers do with it; by default only the state on screens changes.

    Args:
        event: The event's class; its `kind` is the name in `events.jsonl`.
        handle: Updates the state on screens.
        log_lines: Returns the lines for the log of the live screen.
        console_lines: Returns the lines for a console without bars.
        summarize: Updates the document of summary.json.
        scalars: Returns the values for trackers, by name; None is omitted.
        thinned: Which of many such events are returned when a long journal is read in blocks: some of them,
            the last one, or none.
        shown_at_once: Whether the live screen draws it at once; otherwise with the next due drawing.
        is_progress: Whether the watchdog counts it as progress.
    """

    event: type[E]
    handle: Callable[[ViewState, E], object]
    log_lines: Callable[[E], Iterable[tuple[str, Tone]]] = _nothing
    console_lines: Callable[[E], Sequence[str]] = _nothing
    summarize: Callable[[dict[str, Any], E], object] = _nothing
    scalars: Callable[[E], Iterable[tuple[str, float | None]]] = _nothing
    thinned: Literal["some", "last", "none"] = "some"
    shown_at_once: bool = True
    is_progress: bool = True
