"""Saves a user's profile: from a configuration, or as a copy of another profile."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli
import tomli_w

from mptui.config.documents.document import SUFFIXES, read_document
from mptui.config.dump import document_text, values_of
from mptui.config.keys import SETTINGS, UNSET
from mptui.config.profiles import find_profile, is_built_in, user_folder
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError, DiskError
from mptui.io.atomic import replace_file
from mptui.io.places import expanded
from mptui.text import clean

_NAME = re.compile(r"\w[\w.\- ]{0,63}")
_DESCRIPTION = re.compile(r"^description\s*=.*$", re.MULTILINE)


def save_profile(
    name: str, config: RunConfig, description: str, environ: Mapping[str, str] = os.environ
) -> Path:
    """Save the values that differ from the defaults as a profile in the user's folder.

    Raises:
        ConfigError: The name is not a valid file name, is that of a built-in profile, or is in use.
        DiskError: The folder can't be written.
    """
    return write_profile(_path_of_name(name, environ), profile_text(config, description))


def profile_path(where: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file to save a profile in: a path, or a name in the user's folder.

    Raises:
        ConfigError: The name is not a valid file name, or is that of a built-in profile, or the path ends in
            .yaml or .yml.
    """
    if where.endswith(SUFFIXES[1:]):
        hint = f"name it {Path(where).with_suffix(SUFFIXES[0])}"
        raise ConfigError(f"{clean(where)}: profiles are saved as TOML", hint=hint)
    if os.sep in where or where.endswith(SUFFIXES):
        return expanded(where)
    return _path_of_name(where, environ)


def check_free(path: Path, *, hint: str = "choose another name, or edit that file") -> None:
    """Check that `path` doesn't exist.

    Raises:
        ConfigError: It exists.
    """
    if path.exists():
        raise ConfigError(f"profile {path.stem} exists already: {path}", hint=hint)


def profile_text(config: RunConfig, description: str, comments: Sequence[str] = ()) -> str:
    """Write the values that differ from the defaults as TOML, below `comments`, one per line."""
    default = values_of(RunConfig())
    changed = {key: value for key, value in values_of(config).items() if value != default.get(key)}
    head = [f"# {clean(line, limit=1000)}\n" for line in comments]
    return "".join(head) + document_text(description, changed)


def copy_profile(name: str, origin: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Copy a profile into the user's folder, as TOML; the description names the original.

    Comments are kept, but for those of a YAML file.

    Raises:
        ConfigError: The name is not a valid file name, is that of a built-in profile, or is in use, or
            `origin` is missing or can't be read.
        DiskError: The folder can't be written.
    """
    source = find_profile(origin, environ)
    read = read_document(source)
    text, document = read.text, _without_nulls(read.values)
    document["description"] = f"A copy of {source.stem}"
    line = f"description = {json.dumps(document['description'], ensure_ascii=False)}"
    edited = _DESCRIPTION.sub(lambda _: line, text, count=1)
    if not _says(edited, document):
        edited = f"{line}\n{text}"
    text = edited if _says(edited, document) else tomli_w.dumps(document)
    return write_profile(_path_of_name(name, environ), text)


def _without_nulls(table: dict[str, Any]) -> dict[str, Any]:
    """Write YAML's null as TOML's text for it, and leave out tables without keys."""
    settings = {setting.name for setting in SETTINGS.values()}
    return {
        key: _without_nulls(value) if isinstance(value, dict) else UNSET if value is None else value
        for key, value in table.items()
        if value is not None or key in settings
    }


def _says(text: str, document: dict[str, Any]) -> bool:
    try:
        return tomli.loads(text) == document
    except ValueError:
        return False


def write_profile(path: Path, text: str, *, replace: bool = False) -> Path:
    """Write a profile atomically.

    Raises:
        ConfigError: The file exists, and `replace` is not set.
        DiskError: It can't be written.
    """
    if not replace:
        check_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), mode=0o666)
    except OSError as error:
        hint = "choose a writable folder; profiles given by name are saved below MPTUI_CONFIG_DIR"
        raise DiskError(f"{path}: {error.strerror}", hint=hint) from error
    return path


def _path_of_name(name: str, environ: Mapping[str, str]) -> Path:
    if not _NAME.fullmatch(name) or name.endswith(SUFFIXES):
        raise ConfigError(
            f'"{clean(name, limit=80)}" is not a valid profile name',
            hint="use letters, digits, '-', '_' and '.', starting with a letter or a digit, without a path",
        )
    if is_built_in(name):
        raise ConfigError(
            f"{name} is a built-in profile; a profile of yours with this name would replace it",
            hint=f"choose another name, such as my-{name}",
        )
    return user_folder(environ) / f"{name}{SUFFIXES[0]}"
