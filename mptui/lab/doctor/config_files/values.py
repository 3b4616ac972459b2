"""Values of a configuration file with their places in it."""

from dataclasses import dataclass
from pathlib import Path

from mptui.errors import ConfigError

MOST_VALUES = 20_000
"""A configuration has some hundred values; beyond this it is no configuration."""

Value = str | int | float | bool | None
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigValue:
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
class ConfigFile:
    """All values of a file in its order; a key that is written twice is there twice."""

    path: Path
    lines: tuple[str, ...]
    values: tuple[ConfigValue, ...]

    def place(self, setting: ConfigValue) -> str:
        """Where it is written: `train.yaml:3`."""
        return f"{self.path}:{setting.line}" if setting.line else str(self.path)

    def written(self, setting: ConfigValue) -> str:
        """How it is written: `amp: False`."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {setting.value}"
        return _bare(line[: setting.end], setting)

    def mended(self, setting: ConfigValue, value: str) -> str:
        """How it is to be written for `value`, without what surrounds it in the line."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {value}"
        return _bare(line[: setting.start] + value, setting)

    def _line(self, setting: ConfigValue) -> str | None:
        """The line that a value is in, if its place is known."""
        known = setting.line is not None and setting.start is not None and setting.line <= len(self.lines)
        return self.lines[setting.line - 1] if known and setting.line else None


def _bare(text: str, setting: ConfigValue) -> str:
    """From the key on: several may share a line."""
    key = setting.keys[-1]
    at = text.rfind(key, 0, setting.start)
    quote = 1 if at > 0 and text[at - 1] in "\"'" else 0
    return text[max(0, at - quote) :].strip()


def refused(path: Path, why: str, line: int | None = None) -> ConfigError:
    """The error of a file that is not taken."""
    place = f"{path}:{line}" if line else str(path)
    return ConfigError(f"{place}: {why}", hint="name a configuration file of plain values")
