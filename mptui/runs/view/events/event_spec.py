"""What every reader of events needs to know of one kind."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from mptui.events import Event
from mptui.runs.view.log_lines import Tone
from mptui.runs.view.view_state import ViewState

E = TypeVar("E", bound=Event)


def nothing(*_: object) -> tuple[()]:
    """Do nothing, say nothing: for a reader to which a kind of event does not matter."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpec(Generic[E]):
    """One kind of event. The five functions have no default: where there is nothing to do, say `nothing`.

    Args:
        event: The event's class; its `kind` is the name in `events.jsonl`.
        handle: Updates the state that screens show.
        log_lines: The lines it adds to the log of the live screen.
        console_lines: The lines it prints on a console without bars.
        summarize: Updates the document of summary.json.
        scalars: What trackers log, by name; a value of None is left out.
        thinned: What is kept of many such events where a long journal is read in blocks: some of them, the
            last one, or none.
        shown_at_once: Whether the live screen draws it at once; otherwise with the next due drawing.
        is_progress: Whether the watchdog takes it as a sign that the run does not hang.
    """

    event: type[E]
    handle: Callable[[ViewState, E], object]
    log_lines: Callable[[E], Iterable[tuple[str, Tone]]]
    console_lines: Callable[[E], Sequence[str]]
    summarize: Callable[[dict[str, Any], E], object]
    scalars: Callable[[E], Iterable[tuple[str, float | None]]]
    thinned: Literal["some", "last", "none"] = "some"
    shown_at_once: bool = True
    is_progress: bool = True
