"""metrics.csv in the run directory: a line for each scalar, to be pivoted by spreadsheets and pandas."""

import csv
import io
from pathlib import Path

from mptui.events import Event
from mptui.registry.tracker import Kept
from mptui.runs.trackers.growing_file import GrowingFile

NAME = "metrics.csv"
COLUMNS = ("time", "step", "metric", "value")
"""Seconds since the epoch, optimizer step, name and value of a scalar."""


class CsvFile:
    """Writes metrics.csv."""

    def __init__(self, run: Path, kept: Kept) -> None:
        self._file = GrowingFile(run / NAME, kept)
        if not self._file.size:
            self._write([COLUMNS])

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Add a line for each scalar."""
        self._write([(event.time, event.step, name, value) for name, value in scalars.items()])

    def flush(self) -> Kept:
        """Write the lines."""
        self._file.flush()
        return {"size": self._file.size}

    def close(self) -> Kept:
        """Write the lines, and close the file."""
        self._file.close()
        return {"size": self._file.size}

    def _write(self, rows: list[tuple[object, ...]]) -> None:
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(rows)
        self._file.write(lines.getvalue().encode())
