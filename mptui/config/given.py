"""Reads and checks the settings given outside files: environment variables, flags and `--set`."""

import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import tomli

from mptui.config.keys import SETTINGS, VARIABLES, Setting, nearest_setting
from mptui.config.validate import check_value, shown
from mptui.io.places import expanded
from mptui.io.typed_path import meant_path
from mptui.text import clean

Layer = dict[str, tuple[Any, str]]
"""table.key -> (value, source to show)."""

COMPILE_ON = "on"
"""Value of speed.compile for `--compile`: keeps the mode that is set, or "default" if that is off."""
EDITED, CHECKPOINT = "edited", "the checkpoint"
"""Sources of values that the picker and a checkpoint keep, while what is trained may change."""
SET_BEFORE = frozenset({EDITED, CHECKPOINT})
"""Sources of values that nobody has set for this very run: those that do nothing in it are left out."""
RESERVED_VARIABLES = frozenset(
    {"MPTUI_CONFIG_DIR", "MPTUI_GRAPHICS", "MPTUI_NOTIFY", "MPTUI_RUNS_DIR", "MPTUI_THEME"}
)
"""MPTUI_ variables that aren't settings."""


def from_person(
    environ: Mapping[str, str], flags: Mapping[str, tuple[str, Any]], sets: Sequence[str]
) -> tuple[list[Layer], list[str]]:
    """Read the layers in increasing precedence (variables, flags, `--set`), and their faults."""
    read = (_from_variables(environ), _from_flags(flags), _from_assignments(sets))
    return [layer for layer, _ in read], [fault for _, faults in read for fault in faults]


def _from_variables(environ: Mapping[str, str]) -> tuple[Layer, list[str]]:
    """Read the settings in the environment, and their faults, one line each."""
    layer: Layer = {}
    faults = []
    for name, text in environ.items():
        if name in VARIABLES:
            key = VARIABLES[name]
            value, wrong = read_value(SETTINGS[key], text)
            layer[key] = (value, name)
            faults += [f"{name} = {shown(text)}: {wrong}"] if wrong else []
        elif name.startswith("MPTUI_") and name not in RESERVED_VARIABLES:
            near = get_close_matches(name, [*VARIABLES, *RESERVED_VARIABLES], n=1)
            faults.append(_with_nearest(f"{clean(name, limit=100)}: no such variable", *near))
    return layer, faults


def _from_flags(flags: Mapping[str, tuple[str, Any]]) -> tuple[Layer, list[str]]:
    """Check the values of flags, given as table.key -> (flag, value); one line per fault."""
    layer: Layer = {}
    faults = []
    for key, (flag, given) in flags.items():
        value, wrong = (given, None) if _is_compile_on(key, given) else check_value(SETTINGS[key], given)
        layer[key] = (value, flag)
        faults += [f"{flag} = {shown(given)}: {wrong}"] if wrong else []
    return layer, faults


def _from_assignments(sets: Sequence[str]) -> tuple[Layer, list[str]]:
    """Read the arguments of `--set`, and their faults, one line each."""
    layer: Layer = {}
    faults = []
    for argument in sets:
        key, equals, text = argument.partition("=")
        key, place = key.strip(), f"--set {clean(argument, limit=100)}"
        if not equals:
            faults.append(f"{place}: not of the form table.key=value")
        elif key not in SETTINGS:
            faults.append(_with_nearest(f"{place}: unknown key", *filter(None, [nearest_setting(key)])))
        else:
            value, wrong = read_value(SETTINGS[key], text)
            layer[key] = (value, "--set")
            faults += [f"{place}: {wrong}"] if wrong else []
    return layer, faults


def data_flags(where: str, flag: str) -> dict[str, tuple[str, Any]]:
    """Return the settings for a folder or the name of a data set; both replace the profile's.

    A folder may stand in quotes, as a `file://` address, or in another Unicode form than on the disk.
    """
    where = meant_path(where)
    path = expanded(where)
    is_path = os.sep in where or os.path.exists(path)  # noqa: PTH110 - pathlib raises for a name that is too long
    return {
        "data.path": (flag, str(path) if is_path else None),
        "data.name": (flag, None if is_path else where),
    }


def in_order(files: Sequence[Layer], given: Sequence[Layer]) -> Iterator[tuple[str, Any, str]]:
    """Yield each (table.key, value, source) of the layers, in their order: a later one wins.

    A learning rate given without its batch size is not rescaled: the `lr_batch_size` of a file doesn't
    apply to it. `--compile` forces the mode that is set after it, too.
    """
    mode: Any = "off"
    forced_by = None
    for layer in [*files, *given]:
        for key, (value, source) in layer.items():
            if key != "speed.compile":
                yield key, value, source
                continue
            if value != COMPILE_ON:
                mode = value
            else:
                mode, forced_by = "default" if mode == "off" else mode, source
            yield key, mode, source if forced_by is None or mode == "off" else forced_by
    if bare_rate := _source_of_bare_rate(given):
        yield "training.lr_batch_size", None, bare_rate


def _source_of_bare_rate(given: Sequence[Layer]) -> str | None:
    """Return the source of the learning rate if no `lr_batch_size` is given with or after it."""
    source = None
    for layer in given:
        if "training.lr" in layer:
            source = layer["training.lr"][1]
        if "training.lr_batch_size" in layer:
            source = None
    return source


def _is_compile_on(key: str, value: object) -> bool:
    return key == "speed.compile" and value == COMPILE_ON


def read_value(setting: Setting, text: str) -> tuple[Any, str | None]:
    """Read a value as TOML, or as a bare word where only that is valid for the key.

    Returns:
        The value, and its fault or None.
    """
    try:
        document = tomli.loads(f"value = {text}")
    except (ValueError, RecursionError):
        document = {}
    if document.keys() != {"value"}:
        return check_value(setting, text.strip())
    value, wrong = check_value(setting, document["value"])
    if wrong:
        as_text, fault = check_value(setting, text)
        return (value, wrong) if fault else (as_text, None)
    return value, wrong


def _with_nearest(fault: str, *near: str) -> str:
    return f"{fault}; nearest: {near[0]}" if near else fault
