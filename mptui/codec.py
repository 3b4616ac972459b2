"""Events to JSON and back.

JSON knows no NaN, and a NaN is what people most need to see, so a non-finite number travels as the string
"nan", "inf" or "-inf".
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from mptui.events import (
    Advice,
    CheckpointSaved,
    CommandAnswered,
    DeviceSample,
    Diagnosed,
    EpochFinished,
    EpochStarted,
    Event,
    LossScale,
    Numerics,
    Paused,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Progress,
    Recovered,
    Resumed,
    RunFinished,
    RunStarted,
    Step,
    StepSkipped,
    Validated,
    Warned,
)
from mptui.fields import Read, as_time, reader_of

EVENTS: dict[str, type[Event]] = {
    event.kind: event
    for event in (
        RunStarted,
        PhaseChanged,
        Progress,
        EpochStarted,
        Step,
        Validated,
        EpochFinished,
        DeviceSample,
        PrecisionChanged,
        StepSkipped,
        LossScale,
        Diagnosed,
        Numerics,
        Advice,
        Recovered,
        PresetSwitched,
        CheckpointSaved,
        Paused,
        Resumed,
        CommandAnswered,
        Warned,
        RunFinished,
    )
}

_FIELDS: dict[str, list[tuple[str, Read]]] = {
    kind: [(f.name, as_time if f.name == "time" else reader_of(f.type)) for f in fields(event)]
    for kind, event in EVENTS.items()
}


def to_record(event: Event) -> dict[str, Any]:
    """Turn an event into a JSON-ready dict with `event`, `time` and `step` first."""
    values = asdict(event)
    return {
        "event": event.kind,
        "time": round(values.pop("time"), 3),
        "step": values.pop("step"),
        **{name: finite_json(value) for name, value in values.items()},
    }


def from_record(record: Mapping[str, Any]) -> Event | None:
    """Turn a record of a journal back into its event.

    None for a kind unknown to this version, and for a record that lacks a field or has one of another type: a
    garbled line must not bring down who reads it.
    """
    kind = EVENTS.get(str(record.get("event")))
    if kind is None:
        return None
    try:
        return kind(**{name: read(record[name]) for name, read in _FIELDS[kind.kind] if name in record})
    except (TypeError, ValueError, KeyError, OverflowError):
        return None


def finite_json(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Replace each non-finite float in a JSON-ready value by its name as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {k: finite_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(v) for v in value]
    return value
