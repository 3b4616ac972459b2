"""Reads a file of settings, TOML or YAML by its ending, with the line of each key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from mptui.config.documents.toml_lines import Keys, key_lines
from mptui.errors import ConfigError
from mptui.regular import OddFileError, read_regular
from mptui.text import clean

SUFFIXES = (".toml", ".yaml", ".yml")
"""Endings of files of settings; of several with one name the first is taken."""

_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Document:
    """A file of settings as read."""

    text: str
    values: dict[str, Any]
    lines: dict[Keys, int]
    """The line, from 1, of each table and key."""


def read_document(path: Path) -> Document:
    """Read a file of settings: YAML if it ends in .yaml or .yml, else TOML.

    Raises:
        ConfigError: The file can't be read, is not UTF-8, or is not TOML or plain YAML.
    """
    faulty = f"correct the file, then check it with `mptui profiles validate {path}`"
    try:
        text = read_regular(path, _LARGEST).decode("utf-8-sig")
        if path.suffix.lower() not in SUFFIXES[1:]:
            return Document(text, tomli.loads(text), key_lines(text))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8"
        ) from error
    except RecursionError as error:
        raise _nested(path) from error
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}", hint=faulty) from error
    except OddFileError as error:
        hint = "name a profile: a small TOML or YAML file"
        raise ConfigError(f"{path}: {error.strerror}", hint=hint) from error
    except OSError as error:
        hint = "name a profile file that can be read, or see `mptui profiles list`"
        raise ConfigError(f"{path}: {error.strerror}", hint=hint) from error
    return _yaml(path, text, faulty)


def _yaml(path: Path, text: str, hint: str) -> Document:
    from mptui.config.documents.yaml_document import read_yaml_document
    from mptui.config.documents.yaml_nodes import NotPlainYamlError

    try:
        return Document(text, *read_yaml_document(text))
    except NotPlainYamlError as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise ConfigError(f"{place}: {clean(str(error), limit=200)}", hint=hint) from error
    except RecursionError as error:
        raise _nested(path) from error


def _nested(path: Path) -> ConfigError:
    return ConfigError(f"{path}: nested too deeply", hint="a profile only has tables of keys")
