"""Makes the texts of events and files safe to show, as they come from files, libraries and users."""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from operator import is_not
from types import NoneType
from typing import Any

from mptui.events import Event, RunFinished, Step
from mptui.text import clean, clean_lines

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
