"""The base of all events."""

import time
from dataclasses import dataclass, field
from typing import ClassVar

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields of every event.

    `kind` is its name in `events.jsonl`, `time` seconds since the epoch, `step` the number of optimizer steps
    tried so far. `clock` is the time in seconds of the monotonic clock when the run's process reported the
    event: durations are taken from it, as the wall's clock may be set, and an event may tell of an earlier
    time. It is None in older journals, and for events of other processes.
    """

    kind: ClassVar[str] = ""

    time: float = field(default_factory=time.time)
    step: int = 0
    clock: float | None = None

    @property
    def instant(self) -> float:
        """Time in seconds from which durations are taken: by the monotonic clock if it is known."""
        return self.time if self.clock is None else self.clock
