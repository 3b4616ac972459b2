"""A run of a Trackio project: one over all resumes of the run here."""

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mptui.events import Event
from mptui.registry.tracker import Kept

PROJECT = "mptui"
"""Of a run that names none."""


class TrackioRun:
    """Logs to Trackio's database on this machine (TRACKIO_DIR), for its dashboard and `trackio sync`.

    `trackio.log` writes later, and drops what it can't write. So this writes by the function beneath it,
    which returns when the rows are stored, and ignores a row whose ID it has.
    """

    def __init__(self, run: Path, config: Mapping[str, Any], kept: Kept) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._store, self._config = SQLiteStorage, dict(config)
        self._project = config["logging"]["trackio_project"] or PROJECT
        self._name, self._id = run.resolve().name, kept["id"]
        rows = kept.get("rows")
        self._rows = rows if kept["position"] and isinstance(rows, int) else 0
        self._waiting: list[tuple[Event, dict[str, float]]] = []

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Keep the scalars for the next `flush`."""
        if scalars:
            self._waiting.append((event, scalars))

    def flush(self) -> Kept:
        """Store the scalars."""
        first, events = self._rows, [event for event, _ in self._waiting]
        self._store.bulk_log(
            self._project,
            self._name,
            [scalars for _, scalars in self._waiting],
            steps=[event.step for event in events],
            timestamps=[datetime.fromtimestamp(event.time, timezone.utc).isoformat() for event in events],
            config=None if first else self._config,
            log_ids=[f"{self._id}-{row}" for row in range(first, first + len(events))],
            run_id=self._id,
        )
        self._rows += len(events)
        self._waiting = []
        return {"rows": self._rows}

    def close(self) -> Kept:
        """Store the scalars."""
        return self.flush()
