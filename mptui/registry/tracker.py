"""What an experiment tracker does; `mptui.registry.trackers` lists them."""

from typing import Any, Protocol

from mptui.events import Event

Kept = dict[str, Any]
"""What a tracker needs to go on later, as JSON: its own entries, and those that every tracker has.

`position`: it has the journal up to this byte. `id`: an ID for the run at the tracker, the same after each
resume.
"""


class Tracker(Protocol):
    """Receives the events of a run, in a thread of its own in a process of its own; may wait and fail."""

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Log the scalars of an event by name; most events have none."""

    def flush(self) -> Kept | None:
        """Store what was logged, and return the tracker's own entries.

        None if it is not certain yet that it is stored: after a kill, the events since the last certain ones
        come again.
        """

    def close(self) -> Kept | None:
        """Store what was logged as `flush` does, and close; the run may be resumed."""
