"""What a setting is: meaning, values, default, where it acts and when it changes; all from the schema."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from mptui.config.keys import ELSEWHERE, RENAMED, RETIRED, SETTINGS, UNSET, Setting, nearest_setting, shown
from mptui.config.schema import Table
from mptui.registry.tasks import TASKS

_UNITS = {"gib": "GiB", "minutes": "minutes", "s": "seconds", "epochs": "epochs", "steps": "steps"}
"""Last word of a setting's name -> the unit of its values; of others, the help has the unit."""
_KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_LIMITS = {
    "minimum": "{:g} or more",
    "exclusiveMinimum": "above {:g}",
    "maximum": "at most {:g}",
    "exclusiveMaximum": "below {:g}",
}
_ANY = 10**9
"""A limit that only keeps values from overflow is not worth a word."""


def find_settings(word: str) -> list[str]:
    """Return the settings with all words of `word` in their name or help; of a foreign name, what it means.

    Without such a setting, the one whose name is closest.
    """
    if word in RETIRED:
        return []
    words = word.lower().split()
    found = [
        key
        for key, setting in SETTINGS.items()
        if all(part in f"{key} {setting.help} {' '.join(setting.choices)}".lower() for part in words)
    ]
    meant = nearest_setting(word.strip())
    if meant and (not found or word.strip().lower() in {*ELSEWHERE, *RENAMED}):
        return [meant, *(key for key in found if key != meant)]
    return found


def replacement(word: str) -> str:
    """Return what there is in the place of a setting of an earlier version; "" for other words."""
    if word in RENAMED:
        now, values = RENAMED[word]
        pairs = ", ".join(f"{shown(old)}: {now}={new}" for old, new in values.items())
        return f"use {now} ({pairs})"
    return RETIRED.get(word, "")


def document(key: str) -> dict[str, Any]:
    """Return what there is to know of a setting.

    `values` is a JSON Schema of its values, where null stands for `none`. `choices` are its words, where they
    are few, `item_choices` those of items of a list. `acts_with` are lists of tasks, networks or settings:
    it does nothing in a run that is in none of a list. `changes` is "live" (between two steps), "resume"
    (before a resume) or "never", and `why`.
    """
    setting = SETTINGS[key]
    default = setting.field.get_default(call_default_factory=True)
    return {
        "key": key,
        "help": setting.help,
        "unit": _UNITS.get(key.rpartition("_")[2].rpartition(".")[2]),
        "values": _values(setting),
        "choices": setting.choices,
        "item_choices": setting.item_choices,
        "default": default,
        "default_by_task": {
            name: value
            for name, task in TASKS.items()
            if (value := {**task.defaults, **task.recipe}.get(key)) is not None
        },
        "acts_with": [scope.where() for scope in setting.scopes],
        "changes": "live" if setting.live else "never" if setting.fixed else "resume",
        "why": setting.fixed or None,
        "may_be_unset": setting.may_be_unset,
    }


def lines(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what `document` returned as pairs of a word and a sentence, for a person."""
    unit = f", in {about['unit']}" if about["unit"] else ""
    yield (
        "takes",
        _words(about["values"], about["choices"], about["item_choices"])
        + unit
        + (f"; {UNSET} unsets it" if about["may_be_unset"] else ""),
    )
    defaults = [_default(about["default"])]
    defaults += [f"{task}: {_default(value)}" for task, value in about["default_by_task"].items()]
    yield "default", "; ".join(defaults)
    for where in about["acts_with"]:
        yield "acts with", ", ".join(where)
    yield "changes", _changes(about["changes"], about["why"])


def _changes(when: str, why: str | None) -> str:
    if when == "never":
        return f"never in a run that has begun: {why}"
    return "live, between two steps of a run" if when == "live" else "with a resume: mptui resume RUN --set …"


def _default(value: object) -> str:
    return "unset" if value is None else value if isinstance(value, str) else json.dumps(value)


def _values(setting: Setting) -> dict[str, Any]:
    of_table: dict[str, Any] = _schema(setting.table)[setting.name]
    return {
        name: value for name, value in of_table.items() if name not in {"default", "description", "title"}
    }


@cache
def _schema(table: type[Table]) -> dict[str, Any]:
    properties: dict[str, Any] = table.model_json_schema()["properties"]
    return properties


def _words(values: Mapping[str, Any], choices: Sequence[str], of_items: Sequence[str] = ()) -> str:
    """Say in words what a JSON Schema of values allows; null is left out.

    Args:
        values: The schema, in which text is any text.
        choices: The words that there are for text; empty: any.
        of_items: The same for the items of a list.
    """
    if "anyOf" in values:
        kinds = [each for each in values["anyOf"] if each.get("type") != "null"]
        return ", or ".join(_words(each, choices, of_items) for each in kinds)
    if "const" in values:
        return str(values["const"])
    if "enum" in values:
        return " | ".join(values["enum"])
    if values["type"] == "array":
        count = f"{values['minItems']} " if values.get("maxItems") == values.get("minItems", 0) else ""
        return f"a list of {count}values, each {_words(values['items'], of_items)}"
    if values["type"] == "string" and choices:
        return " | ".join(choices)
    limits = " and ".join(_limits(values))
    return f"{_KINDS[values['type']]}, {limits}" if limits else _KINDS[values["type"]]


def _limits(values: Mapping[str, Any]) -> Iterator[str]:
    for name, limit in _LIMITS.items():
        if (value := values.get(name)) is not None and abs(value) < _ANY:
            yield limit.format(value)
