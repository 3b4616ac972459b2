"""All kinds of events.

To add a kind, define its class in `mptui/events/` and its `EventSpec` here or in a file beside this one.
"""

from collections.abc import Mapping
from typing import Any

from mptui.codec import from_record
from mptui.events import Event
from mptui.runs.view.events.control_specs import CONTROL
from mptui.runs.view.events.event_spec import EventSpec
from mptui.runs.view.events.lifecycle_specs import LIFECYCLE
from mptui.runs.view.events.precision_specs import PRECISION
from mptui.runs.view.events.recovery_specs import RECOVERY
from mptui.runs.view.events.training_specs import TRAINING

EVENTS: dict[str, EventSpec[Any]] = {
    spec.event.kind: spec for spec in (*LIFECYCLE, *TRAINING, *PRECISION, *RECOVERY, *CONTROL)
}


def event_of(record: Mapping[str, Any]) -> Event | None:
    """Convert a record of a journal to its event; None for an unknown kind or a damaged record."""
    spec = EVENTS.get(str(record.get("event")))
    return None if spec is None else from_record(record, spec.event)
