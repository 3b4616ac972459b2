"""Checks a profile against the schema and reports all faults at once, each with its line."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mptui.config.base_tables import Table
from mptui.config.documents.document import read_document
from mptui.config.documents.toml_lines import Keys
from mptui.config.keys import RENAMED, RETIRED, SETTINGS, TABLES, UNSET, Setting, nearest_setting, subtable
from mptui.config.schema import RunConfig
from mptui.registry.precisions import LONG_NAMES
from mptui.registry.tasks import TASKS
from mptui.text import clean

VERSION = 1
"""Format version of profiles and run.toml; a file without one has version 1."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile as read: its values by table.key, and those of its task tables."""

    path: Path
    description: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    retired: list[str] = field(default_factory=list)
    """The settings of earlier versions that it has."""


def read_profile(path: Path) -> tuple[Profile, list[str]]:
    """Read a profile, and its faults, one line each, in the order of the file.

    Raises:
        ConfigError: The file can't be read, is not UTF-8, or is not TOML or plain YAML.
    """
    read = read_document(path)
    document = dict(read.values)
    reader = _Reader()
    reader.version(document.pop("version", VERSION))
    profile = Profile(
        path,
        description=reader.description(document.pop("description", "")),
        by_task={task: reader.task_tables(task, document.pop(task)) for task in TASKS if task in document},
        values=reader.table(document, RunConfig, ()),
        retired=reader.retired,
    )
    located = sorted((_line(read.lines, keys), fault) for keys, fault in reader.faults)
    return profile, [f"{path}:{line}: {fault}" if line else f"{path}: {fault}" for line, fault in located]


def check_value(setting: Setting, value: object) -> tuple[Any, str | None]:
    """Check one value against its key.

    Returns:
        The value ("none" turned into None where the key may be unset, `bfloat16` into `bf16`), and its fault
        or None.
    """
    if isinstance(value, str) and LONG_NAMES.get(value) in setting.choices:
        return LONG_NAMES[value], None
    if value in (UNSET, None) and setting.may_be_unset:
        return None, None
    try:
        setting.table.model_validate({setting.name: value})
    except ValidationError as error:
        errors = error.errors(include_url=False)
        wanted = dict.fromkeys(_wanted(e) for e in errors)
        return value, f"must be {' or '.join(wanted)}{_nearest_choice(value, errors)}"
    return value, None


def shown(value: object) -> str:
    """Format a value as in its file, shortened for a message."""
    if isinstance(value, bool | None):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number beyond 64 bits"
    return clean(f'"{value}"' if isinstance(value, str) else str(value), limit=60)


class _Reader:
    """Flattens the tables of a document and collects their faults."""

    def __init__(self) -> None:
        self.faults: list[tuple[Keys, str]] = []
        self.retired: list[str] = []

    def version(self, value: object) -> None:
        """Refuse files of a later version, whose keys may have other meanings."""
        if type(value) is not int or value > VERSION:
            fault = f"version = {shown(value)}: this mptui reads profiles of version {VERSION}"
            self.faults.append((("version",), fault))

    def description(self, value: object) -> str:
        if isinstance(value, str):
            return value
        self.faults.append((("description",), f"description = {shown(value)}: must be text in quotes"))
        return ""

    def task_tables(self, task: str, tables: object) -> dict[str, Any]:
        if isinstance(tables, dict | None):
            return self.table(tables or {}, RunConfig, (task,))
        self.faults.append(((task,), f"{task} = {shown(tables)}: must be a table"))
        return {}

    def table(self, values: Mapping[str, Any], table: type[Table], place: Keys) -> dict[str, Any]:
        """Return the values of `table` and of its subtables, as {"table.key": value}."""
        flat: dict[str, Any] = {}
        for name, value in values.items():
            keys = (*place, name)
            known = table.model_fields.get(name)
            inner = known and subtable(known)
            dotted = ".".join(keys[1:] if keys[0] in TASKS else keys)
            if inner and isinstance(value, dict | None):  # None: a table of YAML without keys
                flat |= self.table(value or {}, inner, keys)
            elif inner:
                self.faults.append((keys, f"{_location(keys)} = {shown(value)}: must be a table"))
            elif dotted in SETTINGS:
                flat[dotted], wrong = check_value(SETTINGS[dotted], value)
                if wrong:
                    self.faults.append((keys, f"{_location(keys)} = {shown(value)}: {wrong}"))
            elif dotted in RENAMED and isinstance(value, bool):
                now, meant = RENAMED[dotted]
                flat.setdefault(now, meant[value])
            elif dotted in RETIRED:
                self.retired.append(dotted)
            else:
                self.faults.append((keys, _unknown(keys, dotted, value)))
        return flat


def _location(keys: Keys) -> str:
    *tables, name = keys
    return clean(f"[{'.'.join(tables)}] {name}" if tables else name, limit=100)


def _unknown(keys: Keys, dotted: str, value: object) -> str:
    if isinstance(value, dict):
        near = get_close_matches(dotted, [*TABLES, *TASKS, "precision.grad_scaler"], n=1)
        what = f"[{clean('.'.join(keys), limit=100)}]: unknown table"
    else:
        near = [key] if (key := nearest_setting(dotted)) else []
        what = f"{_location(keys)}: unknown key"
    return f"{what}; nearest: {near[0]}" if near else what


_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list, in brackets",
    "string_type": "text in quotes",
    "string_unicode": "Unicode text",
    "literal_error": "{expected}",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}",
    "less_than_equal": "{le:g} or less",
}


def _wanted(error: ErrorDetails) -> str:
    template = _WANTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else f"otherwise: {error['msg']}"


# names for values of settings, to suggest the right one
_SYNONYMS = {**LONG_NAMES, "half": "fp16", "float": "fp32"}


def _nearest_choice(value: object, errors: list[ErrorDetails]) -> str:
    """Return the nearest choice for the end of a message; "" if none is similar."""
    choices = [
        choice
        for error in errors
        if error["type"] == "literal_error"
        for choice in re.findall(r"'([^']+)'", error["ctx"]["expected"])
    ]
    if not isinstance(value, str) or not choices:
        return ""
    meant = value.lower().removeprefix("torch.")
    near = get_close_matches(_SYNONYMS.get(meant, meant), choices, n=1)
    return f"; nearest: {near[0]}" if near else ""


def _line(lines: dict[Keys, int], keys: Keys) -> int:
    """Return the line of a key, or of the innermost listed table around it; 0: unknown."""
    return next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), 0)
