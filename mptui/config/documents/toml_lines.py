"""Finds the line of each key of a TOML text; tomli doesn't tell them."""

import re
from collections.abc import Iterator

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")

Keys = tuple[str, ...]


def key_lines(text: str) -> dict[Keys, int]:
    """Return the line, from 1, of each table and key of a TOML text, without keys of inline tables."""
    lines: dict[Keys, int] = {}
    table: Keys = ()
    for keys, is_header, number in _statements(text):
        if is_header:
            table = keys
        lines.setdefault(keys if is_header else (*table, *keys), number)
    return lines


def _statements(text: str) -> Iterator[tuple[Keys, bool, int]]:
    in_string = False
    for number, line in enumerate(text.splitlines(), start=1):
        header = None if in_string else _HEADER.match(line)
        match = header or (None if in_string else _KEY.match(line))
        if match:
            keys = tuple(part.strip().strip("\"'") for part in match[1].split("."))
            yield keys, header is not None, number
        in_string ^= (line.count('"""') + line.count("'''")) % 2 == 1
