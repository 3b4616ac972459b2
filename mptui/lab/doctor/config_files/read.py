"""Reads a configuration file of any program as flat values with their positions, without executing it.

Hostile files are refused with one line: too large, not text, tags for Python objects, exponentially growing
aliases, endless nesting.
"""

import stat
from collections.abc import Callable
from pathlib import Path

from mptui.config.documents.yaml_nodes import MOST_VALUES
from mptui.errors import ConfigError
from mptui.lab.doctor.config_files.values import ConfigFile, ConfigValue, refused

LARGEST_BYTES = 256 * 1024

Reader = Callable[[Path, str], list[ConfigValue]]


def read_config_file(path: Path) -> ConfigFile:
    """Read a configuration file: YAML, TOML, JSON, or the literals of a Python file, by its ending.

    Raises:
        ConfigError: It can't be read, is too large, is not of the format of its suffix, or has unsupported
            content.
    """
    reader = _reader(path)
    text = _text(path)
    try:
        values = reader(path, text)
    except (RecursionError, MemoryError) as error:
        raise refused(path, "nested too deeply") from error
    if len(values) > MOST_VALUES:
        raise refused(path, f"more than {MOST_VALUES:,} values")
    return ConfigFile(path, tuple(text.split("\n")), tuple(values))


def _reader(path: Path) -> Reader:
    # each reader loads its own parser: a TOML file needs no YAML
    match path.suffix.lower():
        case ".yaml" | ".yml":
            from mptui.lab.doctor.config_files.yaml_format import read_yaml

            return read_yaml
        case ".toml" | ".json":
            from mptui.lab.doctor.config_files.toml_json_format import read_json, read_toml

            return read_toml if path.suffix.lower() == ".toml" else read_json
        case ".py":
            from mptui.lab.doctor.config_files.python_format import read_python

            return read_python
    raise ConfigError(
        f"{path}: unknown kind of file",
        hint="use a .yaml, .yml, .toml, .json or .py file",
    )


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            raise refused(path, "not a file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="use a readable file") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"{path}: not a file name", hint="use a readable file") from error
    if len(raw) > LARGEST_BYTES:
        raise refused(path, f"too large for a configuration (limit: {LARGEST_BYTES // 1024} KiB)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refused(path, f"not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise refused(path, "binary, not text")
    return text.replace("\r\n", "\n").replace("\r", "\n")
