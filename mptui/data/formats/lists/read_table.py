"""Reads a table as text: a CSV or TSV file in UTF-8, or a Parquet file of plain columns."""

import csv
import io
import os
from dataclasses import dataclass

from mptui.data.formats.packed.parquet import text_columns
from mptui.errors import DataError
from mptui.regular import read_regular
from mptui.text import clean_name

ENDINGS = (".csv", ".tsv", ".parquet")

_MOST_BYTES = 1 << 30
_DELIMITERS = ",;\t"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Attributes:
        path: Its file.
        header: The cells of the first line.
        rows: The cells of each further line; a missing value is "".
    """

    path: str
    header: list[str]
    rows: list[list[str]]

    def name(self, row: int) -> str:
        """Return the name of a row in messages: the file, and the number of the line."""
        return f"{clean_name(os.path.basename(self.path))}, line {row + 2}"


def read_table(path: str, rows: int | None = None) -> Table:
    """Read a table, or its first rows.

    Args:
        path: The file.
        rows: Number of rows to read; None: all.

    Raises:
        ConfigError: A Parquet file, but pyarrow is not installed.
        DataError: The file can't be read.
    """
    if path.lower().endswith(".parquet"):
        header, lines = text_columns(path, rows)
        return Table(path, header, lines)
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
        first = text.partition("\n")[0]
        delimiter = "\t" if path.lower().endswith(".tsv") else max(_DELIMITERS, key=first.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        lines = []
        for line in reader:
            if any(cell.strip() for cell in line):
                lines.append([cell.strip() for cell in line])
            if rows is not None and len(lines) > rows:
                break
    except UnicodeDecodeError as error:
        raise DataError(f"{clean_name(path)}: not in UTF-8", hint="Save it as CSV in UTF-8.") from error
    except (OSError, csv.Error) as error:
        raise DataError(
            f"{clean_name(path)}: {getattr(error, 'strerror', None) or error}",
            hint="Save it as CSV in UTF-8.",
        ) from error
    if not lines:
        raise DataError(f"{clean_name(path)}: the list is empty", hint="Write a line for each image.")
    header = lines[0]
    for number, line in enumerate(lines):
        if len(line) > len(header):
            raise DataError(
                f"{clean_name(os.path.basename(path))}, line {number + 1}: {len(line)} values,"
                f" where the first line has {len(header)}",
                hint="Put a value that has a comma between double quotes.",
            )
        line += [""] * (len(header) - len(line))
    return Table(path, header, lines[1:])
