"""Converts events to JSON and back.

JSON has no NaN or infinity; these are stored as the strings "nan", "inf" and "-inf".
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from mptui.events import Event
from mptui.fields import Read, as_time, reader_of

E = TypeVar("E", bound=Event)


def to_record(event: Event) -> dict[str, Any]:
    """Convert an event to a JSON-ready dict that starts with `event`, `time` and `step`."""
    values = asdict(event)
    return {
        "event": event.kind,
        "time": round(values.pop("time"), 3),
        "step": values.pop("step"),
        **_clock_of(values.pop("clock")),
        **{name: finite_json(value) for name, value in values.items()},
    }


def _clock_of(clock: float | None) -> dict[str, float]:
    return {} if clock is None else {"clock": round(clock, 3)}


def from_record(record: Mapping[str, Any], kind: type[E]) -> E | None:
    """Convert a record of a journal to an event of this class.

    None for a record of another kind, and for one that lacks a field or has a field of another type: a
    damaged line must not bring down its reader.
    """
    if record.get("event") != kind.kind:
        return None
    try:
        readers = _readers(kind)  # type: ignore[arg-type] # a class is hashable, whatever its instances are
        return kind(**{name: read(record[name]) for name, read in readers if name in record})
    except (TypeError, ValueError, KeyError, OverflowError):
        return None


@functools.cache
def _readers(kind: type[Event]) -> list[tuple[str, Read]]:
    return [(f.name, as_time if f.name in {"time", "clock"} else reader_of(f.type)) for f in fields(kind)]


def finite_json(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Replace each non-finite float in a JSON-ready value by its name as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: finite_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(v) for v in value]
    return value
