"""Values of a configuration file with their positions."""

from dataclasses import dataclass
from pathlib import Path

from mptui.errors import ConfigError

Value = str | int | float | bool | None
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value of a file, and its position.

    `line` counts from 1; `start` and `end` are the columns of the value in that line. All are None if the
    position is unknown. `quoted`: whether a YAML value is text because of quotes.
    """

    keys: Keys
    value: Value
    line: int | None = None
    start: int | None = None
    end: int | None = None
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """All values of a file in order; a duplicate key is listed twice."""

    path: Path
    lines: tuple[str, ...]
    values: tuple[ConfigValue, ...]

    def location(self, setting: ConfigValue) -> str:
        """Return the position: `train.yaml:3`."""
        return f"{self.path}:{setting.line}" if setting.line else str(self.path)

    def written(self, setting: ConfigValue) -> str:
        """Return the setting as written: `amp: False`."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {setting.value}"
        return _bare(line[: setting.end], setting)

    def corrected(self, setting: ConfigValue, value: str) -> str:
        """Return the setting as it should be written for `value`, without the rest of the line."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {value}"
        return _bare(line[: setting.start] + value, setting)

    def _line(self, setting: ConfigValue) -> str | None:
        """Return the line of a value, if its position is known."""
        known = setting.line is not None and setting.start is not None and setting.line <= len(self.lines)
        return self.lines[setting.line - 1] if known and setting.line else None


def _bare(text: str, setting: ConfigValue) -> str:
    """Return the text from the key on: several settings can share a line."""
    key = setting.keys[-1]
    at = text.rfind(key, 0, setting.start)
    quote = 1 if at > 0 and text[at - 1] in "\"'" else 0
    return text[max(0, at - quote) :].strip()


def refused(path: Path, why: str, line: int | None = None) -> ConfigError:
    """Return the error for a file that is refused."""
    place = f"{path}:{line}" if line else str(path)
    return ConfigError(f"{place}: {why}", hint="use a configuration file with plain values")
