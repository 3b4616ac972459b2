"""A journal as the source of a live screen: some lines at each look, so that a long one never blocks."""

import json
from collections.abc import Sequence
from pathlib import Path

from mptui.errors import RunDirectoryError
from mptui.events import Event, from_record

LINES_A_LOOK = 2000


class ReplaySource:
    """The events of a file `events.jsonl`, from its beginning to its last whole line.

    Raises:
        RunDirectoryError: The file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        self.profiles: Sequence[str] = ()
        self.run = self.request = None
        self.hosted = False
        self.can_detach = False
        self.finished = False
        try:
            self._file = path.open(encoding="utf-8", errors="replace")
        except OSError as error:
            raise RunDirectoryError(
                f"can't read {path}: {error.strerror}", hint="name the events.jsonl of a run"
            ) from None

    def poll(self) -> list[Event]:
        """Read on; a line that is no event this version knows is passed over."""
        events = []
        for _ in range(LINES_A_LOOK):
            line = "" if self.finished else self._file.readline()
            if not line.endswith("\n"):
                self.finished = True
                self._file.close()
                break
            event = _event(line)
            if event is not None:
                events.append(event)
        return events

    def send(self, command: str, argument: str | None = None) -> None:
        """Nobody is there to take a command."""


def _event(line: str) -> Event | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return from_record(record) if isinstance(record, dict) else None
