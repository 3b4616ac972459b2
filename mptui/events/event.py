"""The base of all events."""

import time
from dataclasses import dataclass, field
from typing import ClassVar

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields of every event.

    `kind` is its name in `events.jsonl`, `time` seconds since the epoch, `step` the number of optimizer steps
    tried so far.
    """

    kind: ClassVar[str] = ""

    time: float = field(default_factory=time.time)
    step: int = 0
