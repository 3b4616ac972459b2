"""A configuration file of any program as flat settings with their places. Nothing in it is ever executed.

Hostile files are refused in one line: too large, no text, tags that ask for Python objects, aliases that
grow beyond all bounds, nesting without end.
"""

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mptui.errors import ConfigError

LARGEST_BYTES = 256 * 1024
MOST_VALUES = 20_000
"""A configuration has some hundred values; beyond this it is no configuration."""

Value = str | int | float | bool | None
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a file, and where it is written.

    `line` counts from 1; `start` and `end` are the columns of the value in that line. All are None where the
    place is not known. `quoted` says that a YAML value is text by its quotes.
    """

    keys: Keys
    value: Value
    line: int | None = None
    start: int | None = None
    end: int | None = None
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All values of a file in its order; a key that is written twice is there twice."""

    path: Path
    lines: tuple[str, ...]
    values: tuple[Setting, ...]

    def place(self, setting: Setting) -> str:
        """Where it is written: `train.yaml:3`."""
        return f"{self.path}:{setting.line}" if setting.line else str(self.path)

    def written(self, setting: Setting) -> str:
        """How it is written: `amp: False`."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {setting.value}"
        return _bare(line[: setting.end], setting)

    def mended(self, setting: Setting, value: str) -> str:
        """How it is to be written for `value`, without what surrounds it in the line."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {value}"
        return _bare(line[: setting.start] + value, setting)

    def _line(self, setting: Setting) -> str | None:
        """The line that a value is in, if its place is known."""
        known = setting.line is not None and setting.start is not None and setting.line <= len(self.lines)
        return self.lines[setting.line - 1] if known and setting.line else None


def _bare(text: str, setting: Setting) -> str:
    """From the key on: several may share a line."""
    key = setting.keys[-1]
    at = text.rfind(key, 0, setting.start)
    quote = 1 if at > 0 and text[at - 1] in "\"'" else 0
    return text[max(0, at - quote) :].strip()


Reader = Callable[[Path, str], list[Setting]]


def read_settings(path: Path) -> Settings:
    """Read a configuration file: YAML, TOML, JSON, or the literals of a Python file, by its ending.

    Raises:
        ConfigError: It can't be read, is too large, is not what its ending says, or holds what no
            configuration has.
    """
    reader = _reader(path)
    text = _text(path)
    try:
        values = reader(path, text)
    except (RecursionError, MemoryError) as error:
        raise refused(path, "nested too deeply") from error
    if len(values) > MOST_VALUES:
        raise refused(path, f"more than {MOST_VALUES:,} values")
    return Settings(path, tuple(text.split("\n")), tuple(values))


def refused(path: Path, why: str, line: int | None = None) -> ConfigError:
    """The error of a file that is not taken."""
    place = f"{path}:{line}" if line else str(path)
    return ConfigError(f"{place}: {why}", hint="name a configuration file of plain values")


def _reader(path: Path) -> Reader:
    # each reader loads its own parser: a TOML file needs no YAML
    match path.suffix.lower():
        case ".yaml" | ".yml":
            from mptui.lab.doctor.yaml_file import read_yaml

            return read_yaml
        case ".toml" | ".json":
            from mptui.lab.doctor.data_files import read_json, read_toml

            return read_toml if path.suffix.lower() == ".toml" else read_json
        case ".py":
            from mptui.lab.doctor.python_file import read_python

            return read_python
    raise ConfigError(
        f"{path}: not a kind of file that is known",
        hint="name a .yaml, .yml, .toml, .json or .py file",
    )


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            raise refused(path, "not a file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a file that can be read") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"{path}: no name of a file", hint="name a file that can be read") from error
    if len(raw) > LARGEST_BYTES:
        raise refused(path, f"larger than any configuration ({LARGEST_BYTES // 1024} KiB at most)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refused(path, f"not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise refused(path, "binary, not text")
    return text.replace("\r\n", "\n").replace("\r", "\n")
