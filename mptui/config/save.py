"""Writes a profile of one's own: from a configuration, or as a copy of another profile."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli
import tomli_w

from mptui.config.dump import values_of, written
from mptui.config.profiles import find_profile, user_folder
from mptui.config.schema import RunConfig
from mptui.config.validate import read_document
from mptui.errors import ConfigError, DiskError
from mptui.text import clean

_NAME = re.compile(r"\w[\w.\- ]{0,63}")
_DESCRIPTION = re.compile(r"^description\s*=.*$", re.MULTILINE)


def save_profile(
    name: str, config: RunConfig, description: str, environ: Mapping[str, str] = os.environ
) -> Path:
    """Save what differs from the defaults as a profile in the user's folder.

    Raises:
        ConfigError: The name can't be a file's, or is taken.
        DiskError: The folder can't be written.
    """
    return _write(name, _differences(config, description), environ)


def save_profile_file(path: Path, config: RunConfig, description: str) -> Path:
    """Save what differs from the defaults as a profile of that path.

    Raises:
        ConfigError: There is such a file.
        DiskError: It can't be written.
    """
    return _write_file(path, _differences(config, description), hint="choose a folder that can be written")


def _differences(config: RunConfig, description: str) -> str:
    default = values_of(RunConfig())
    changed = {key: value for key, value in values_of(config).items() if value != default.get(key)}
    return written(description, changed)


def copy_profile(name: str, origin: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Copy a profile, comments and all, into the user's folder; its description says what it is a copy of.

    Raises:
        ConfigError: The name can't be a file's or is taken, or `origin` is missing or not TOML.
        DiskError: The folder can't be written.
    """
    source = find_profile(origin, environ)
    text, document = read_document(source)
    document["description"] = f"A copy of {source.stem}"
    line = f"description = {json.dumps(document['description'], ensure_ascii=False)}"
    edited = _DESCRIPTION.sub(lambda _: line, text, count=1)
    if not _says(edited, document):
        edited = f"{line}\n{text}"
    return _write(name, edited if _says(edited, document) else tomli_w.dumps(document), environ)


def _says(text: str, document: dict[str, Any]) -> bool:
    try:
        return tomli.loads(text) == document
    except ValueError:
        return False


def _write(name: str, text: str, environ: Mapping[str, str]) -> Path:
    if not _NAME.fullmatch(name) or name.endswith(".toml"):
        raise ConfigError(
            f"\"{clean(name, limit=80)}\" can't be a profile's name",
            hint="use letters, digits, '-', '_' and '.', with a letter or a digit first, and no path",
        )
    path = user_folder(environ) / f"{name}.toml"
    hint = "make the folder writable, or choose another one with MPTUI_CONFIG_DIR"
    return _write_file(path, text, hint=hint)


def _write_file(path: Path, text: str, *, hint: str) -> Path:
    if path.exists():
        raise ConfigError(
            f"there is a profile {path.stem} already: {path}", hint="choose another name, or edit that file"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DiskError(f"{path}: {error.strerror}", hint=hint) from error
    return path
