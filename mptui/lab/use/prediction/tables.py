"""Writes the classes of files as CSV or as JSON lines, a row for each file."""

import csv
import json
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

from mptui.text import cell, clean_name

_LONGEST = 4096
_DIGITS = 6

COLUMNS = ("file", "class", "probability")


class PredictionTable(Protocol):
    """A table that is being written."""

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""


class CsvTable:
    """CSV: file, class, its probability, and a column for the probability of each class, called p_CLASS."""

    def __init__(self, stream: TextIO, classes: Sequence[str]) -> None:
        self._rows, self._classes = csv.writer(stream, lineterminator="\n"), [cell(name) for name in classes]
        # formatted at once: of a thousand classes, one by one would take longer than the network
        self._template = ",".join([f"%.{_DIGITS}g"] * len(classes))
        self._rows.writerow([*COLUMNS, *(f"p_{name}" for name in classes)])

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        texts, best = (self._template % tuple(probabilities)).split(","), _best(probabilities)
        self._rows.writerow([cell(clean_name(file, _LONGEST)), self._classes[best], texts[best], *texts])


class JsonLines:
    """A JSON object per line: file, class, probability, and the probabilities by class."""

    def __init__(self, stream: TextIO, classes: Sequence[str]) -> None:
        self._stream, self._classes = stream, classes

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        self._stream.write(json.dumps(_row(file, probabilities, self._classes), ensure_ascii=False) + "\n")


class RowList:
    """Keeps the rows for a JSON document."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._classes = classes

    def write(self, file: str, probabilities: Sequence[float]) -> None:
        """Append the row of a file."""
        self.rows.append(_row(file, probabilities, self._classes))


def _row(file: str, probabilities: Sequence[float], classes: Sequence[str]) -> dict[str, Any]:
    """Return the row of a file, ready for JSON."""
    rounded = [float(f"{probability:.{_DIGITS}g}") for probability in probabilities]
    best = _best(probabilities)
    return {
        "file": clean_name(file, _LONGEST),
        "class": classes[best],
        "probability": rounded[best],
        "probabilities": dict(zip(classes, rounded, strict=True)),
    }


def _best(probabilities: Sequence[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)
