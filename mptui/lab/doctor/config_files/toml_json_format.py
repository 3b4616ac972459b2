"""Reads TOML and JSON files as flat settings."""

import json
import re
from pathlib import Path
from typing import Any

import tomli

from mptui.config.documents.toml_lines import key_lines
from mptui.lab.doctor.config_files.values import ConfigValue, Keys, Value, refused

_VALUE = r'\s*[=:]\s*("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,#}\]]+)'

_Places = dict[str, list[tuple[int, re.Match[str]]]]

_JSON_KEY = re.compile(r'("(?:[^"\\]|\\.)*")' + _VALUE)


def read_toml(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a TOML text.

    Raises:
        ConfigError: It is not TOML.
    """
    try:
        document = tomli.loads(text)
    except ValueError as error:
        raise refused(path, f"not TOML: {error}") from error
    places = key_lines(text)
    lines = text.split("\n")
    return [_toml_setting(keys, value, lines, places.get(keys)) for keys, value in _flat(document, ())]


def read_json(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a JSON text; a duplicate key is listed twice.

    Raises:
        ConfigError: It is not JSON, or not a table.
    """
    try:
        document = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise refused(path, f"not JSON: {error.msg}", error.lineno) from error
    except ValueError as error:  # a number of thousands of digits
        raise refused(path, f"not JSON: {str(error).partition(';')[0]}") from error
    if not isinstance(document, _Pairs):
        raise refused(path, "not a table of keys and values")
    places = _json_places(text.split("\n"))
    return [_json_setting(keys, value, places) for keys, value in _flat(document, ())]


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, in order."""


def _flat(value: Any, keys: Keys) -> list[tuple[Keys, Value]]:  # noqa: ANN401 - any JSON or TOML value
    if isinstance(value, dict):
        value = _Pairs(value.items())
    if isinstance(value, list):
        pairs = value if isinstance(value, _Pairs) else [(str(i), item) for i, item in enumerate(value)]
        return [flat for name, item in pairs for flat in _flat(item, (*keys, name))]
    return [(keys, value if isinstance(value, str | int | float | None) else str(value))]


def _toml_setting(keys: Keys, value: Value, lines: list[str], line: int | None) -> ConfigValue:
    if line is None:
        return ConfigValue(keys, value)
    match = re.search(re.escape(keys[-1]) + r"[\"']?" + _VALUE, lines[line - 1])
    return (
        ConfigValue(keys, value, line, match.start(1), match.end(1))
        if match
        else ConfigValue(keys, value, line)
    )


def _json_places(lines: list[str]) -> _Places:
    """Return the position of each key: its line, and a match whose groups are the key and its value."""
    places: _Places = {}
    for number, line in enumerate(lines, 1):
        for match in _JSON_KEY.finditer(line):
            places.setdefault(match[1], []).append((number, match))
    return places


def _json_setting(
    keys: Keys, value: Value, places: dict[str, list[tuple[int, re.Match[str]]]]
) -> ConfigValue:
    """Return the setting, with its line if its key occurs only once."""
    found = places.get(json.dumps(keys[-1]), [])
    if len(found) != 1:
        return ConfigValue(keys, value)
    line, match = found[0]
    return ConfigValue(keys, value, line, match.start(2), match.end(2))
