"""Writes the classes of files as CSV or as JSON lines, a row for each file."""

import csv
import json
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

from mptui.text import cell, clean_name

_LONGEST = 4096
_DIGITS = 6

COLUMNS = ("file", "class", "probability")
LAST_COLUMNS = ("precision", "error")


class PredictionTable(Protocol):
    """A table that is being written."""

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""


class CsvTable:
    """CSV: file, class, its probability, and a column for the probability of each class, called p_CLASS.

    Then follow the precision of the forward pass, and why a file has no prediction.
    """

    def __init__(self, stream: TextIO, classes: Sequence[str], precision: str) -> None:
        self._rows, self._classes = csv.writer(stream, lineterminator="\n"), [cell(name) for name in classes]
        self._precision = precision
        # formatted at once: of a thousand classes, one by one would take longer than the network
        self._template = ",".join([f"%.{_DIGITS}g"] * len(classes))
        self._rows.writerow([*COLUMNS, *(f"p_{name}" for name in classes), *LAST_COLUMNS])

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        texts, best = (self._template % tuple(probabilities)).split(","), _best(probabilities)
        name = cell(clean_name(file, _LONGEST))
        self._rows.writerow([name, self._classes[best], texts[best], *texts, self._precision, ""])

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""
        empty = [""] * (len(COLUMNS) - 1 + len(self._classes))
        self._rows.writerow(
            [cell(clean_name(file, _LONGEST)), *empty, "", cell(clean_name(reason, _LONGEST))]
        )


class JsonLines:
    """A JSON object per line: file, class, probability, the probabilities by class, precision and error."""

    def __init__(self, stream: TextIO, classes: Sequence[str], precision: str) -> None:
        self._stream, self._classes, self._precision = stream, classes, precision

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        self._append({**_row(file, probabilities, self._classes), "precision": self._precision})

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""
        self._append({**_error_row(file, reason), "precision": None})

    def _append(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row, ensure_ascii=False) + "\n")


class RowList:
    """Keeps the rows for a JSON document."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._classes = classes

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        self.rows.append(_row(file, probabilities, self._classes))

    def write_error(self, file: str, reason: str) -> None:
        """Append the row of a file that could not be read."""
        self.rows.append(_error_row(file, reason))


def _row(file: str, probabilities: Sequence[float], classes: Sequence[str]) -> dict[str, Any]:
    """Return the row of a file, ready for JSON."""
    rounded = [float(f"{probability:.{_DIGITS}g}") for probability in probabilities]
    best = _best(probabilities)
    return {
        "file": clean_name(file, _LONGEST),
        "class": classes[best],
        "probability": rounded[best],
        "probabilities": dict(zip(classes, rounded, strict=True)),
        "error": None,
    }


def _error_row(file: str, reason: str) -> dict[str, Any]:
    return {
        "file": clean_name(file, _LONGEST),
        "class": None,
        "probability": None,
        "probabilities": None,
        "error": clean_name(reason, _LONGEST),
    }


def _best(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)
