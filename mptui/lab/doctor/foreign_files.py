"""Reads configuration files of other programs as flat values with their positions, without executing them."""

import ast
import json
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli
import yaml

from mptui.config.documents import MOST_VALUES, PLAIN, NotPlainYamlError, compose, key_lines
from mptui.errors import ConfigError

# Values of a configuration file with their positions
# ---------------------------------------------------

Value = str | int | float | bool | None
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value of a file, and its position; as text, what a person finds there: `train.yaml:3: amp: False`.

    Attributes:
        path: The file.
        keys: The keys of the tables that it is in, and its own.
        value: The value.
        line: Number of its line, from 1 on; None: unknown.
        text: The text of that line.
        columns: The first column of the value in it, and the first after it; None: unknown.
        quoted: Whether a YAML value is text because of quotes.
    """

    path: Path
    keys: Keys
    value: Value
    line: int | None = None
    text: str = ""
    columns: tuple[int, int] | None = None
    quoted: bool = False

    def __str__(self) -> str:
        return f"{self.location}: {self.written}"

    @property
    def location(self) -> str:
        """The position: `train.yaml:3`."""
        return f"{self.path}:{self.line}" if self.line else str(self.path)

    @property
    def written(self) -> str:
        """The setting as written: `amp: False`."""
        return self.corrected(str(self.value) if self.columns is None else self.text[slice(*self.columns)])

    def corrected(self, value: str) -> str:
        """Return the setting as it should be written for `value`, without the rest of the line."""
        key = self.keys[-1]
        if self.columns is None:
            return f"{'.'.join(self.keys)} = {value}"
        before = self.text[: self.columns[0]]
        at = before.rfind(key)
        quote = 1 if at > 0 and before[at - 1] in "\"'" else 0
        return f"{before[max(0, at - quote) :]}{value}".strip()  # several settings can share a line


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """All values of a file in order; a duplicate key is listed twice."""

    path: Path
    values: tuple[ConfigValue, ...]


def refused(path: Path, why: str, line: int | None = None) -> ConfigError:
    """Return the error for a file that is refused."""
    place = f"{path}:{line}" if line else str(path)
    return ConfigError(f"{place}: {why}", hint="use a configuration file with plain values")


# Reads a file by the kind that its ending names
# ----------------------------------------------
# Hostile files are refused with one line: too large, not text, tags for Python objects, exponentially
# growing aliases, endless nesting.

LARGEST_BYTES = 256 * 1024


class _Text:
    """The text of a file, for its reader."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.split("\n")

    def value(
        self,
        keys: Keys,
        value: Value,
        line: int | None = None,
        columns: tuple[int, int] | None = None,
        *,
        quoted: bool = False,
    ) -> ConfigValue:
        """Return a value at a position."""
        text = self.lines[line - 1] if line and line <= len(self.lines) else ""
        return ConfigValue(self.path, keys, value, line, text, columns if text else None, quoted)


def read_config_file(path: Path) -> ConfigFile:
    """Read a configuration file: YAML, TOML, JSON, or the literals of a Python file, by its ending.

    Raises:
        ConfigError: It can't be read, is too large, is not of the format of its suffix, or has unsupported
            content.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        hint = "use a .yaml, .yml, .toml, .json or .py file"
        raise ConfigError(f"{path}: unknown kind of file", hint=hint)
    text = _text(path)
    try:
        values = tuple(reader(_Text(path, text)))
    except (RecursionError, MemoryError) as error:
        raise refused(path, "nested too deeply") from error
    if len(values) > MOST_VALUES:
        raise refused(path, f"more than {MOST_VALUES:,} values")
    return ConfigFile(path, values)


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


# Reads the literals of a Python file; the file is parsed, never executed or imported
# -----------------------------------------------------------------------------------
# Reads assignments of a module and of its classes, and tables written as `{...}` or `dict(...)`. Values
# that aren't literals (calls, names, expressions) are ignored; of two assignments the later one counts.


def _read_python(file: _Text) -> Iterator[ConfigValue]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the file don't matter
            module = ast.parse(file.text)
    except SyntaxError as error:
        raise refused(file.path, f"not Python: {error.msg}", error.lineno) from error
    except ValueError as error:
        raise refused(file.path, f"not Python: {error}") from error
    yield from {setting.keys: setting for setting in _of_body(file, module.body, ())}.values()


def _of_body(file: _Text, body: list[ast.stmt], keys: Keys) -> Iterator[ConfigValue]:
    for statement in body:
        match statement:
            case ast.ClassDef(name=name, body=inner):
                yield from _of_body(file, inner, (*keys, name))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if not isinstance(target, ast.Tuple | ast.List | ast.Starred):
                        yield from _of_value(file, value, (*keys, *_names(target)))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _of_value(file, value, (*keys, *_names(target)))


def _names(target: ast.expr) -> Keys:
    """`config.amp` and `config["amp"]` both name the key amp of config."""
    match target:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=outer, attr=name):
            return (*_names(outer), name)
        case ast.Subscript(value=outer, slice=ast.Constant(value=name)):
            return (*_names(outer), str(name))
    return ("?",)


def _of_value(file: _Text, value: ast.expr, keys: Keys) -> Iterator[ConfigValue]:
    match value:
        case ast.Dict(keys=names, values=items):
            for name, item in zip(names, items, strict=True):
                if isinstance(name, ast.Constant):
                    yield from _of_value(file, item, (*keys, str(name.value)))
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg is not None:
                    yield from _of_value(file, keyword.value, (*keys, keyword.arg))
        case _:
            yield from _literal(file, value, keys)


def _literal(file: _Text, value: ast.expr, keys: Keys) -> Iterator[ConfigValue]:
    try:
        read = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        return
    if not isinstance(read, Value):
        return
    line, end = value.lineno, value.end_col_offset
    # columns count bytes; in a line with other characters before the value they are unknown
    known = end is not None and value.end_lineno == line and file.lines[line - 1].isascii()
    yield file.value(keys, read, line, (value.col_offset, end or 0) if known else None)


# Reads TOML and JSON files
# -------------------------

_VALUE = r'\s*[=:]\s*("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,#}\]]+)'
_JSON_KEY = re.compile(r'("(?:[^"\\]|\\.)*")' + _VALUE)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, in order."""


def _read_toml(file: _Text) -> Iterator[ConfigValue]:
    try:
        document = tomli.loads(file.text)
    except ValueError as error:
        raise refused(file.path, f"not TOML: {error}") from error
    lines = key_lines(file.text)
    for keys, value in _flat(document, ()):
        line = lines.get(keys)
        found = line and re.search(re.escape(keys[-1]) + r"[\"']?" + _VALUE, file.lines[line - 1])
        yield file.value(keys, value, line, found.span(1) if found else None)


def _read_json(file: _Text) -> Iterator[ConfigValue]:
    try:
        document = json.loads(file.text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise refused(file.path, f"not JSON: {error.msg}", error.lineno) from error
    except ValueError as error:  # a number of thousands of digits
        raise refused(file.path, f"not JSON: {str(error).partition(';')[0]}") from error
    if not isinstance(document, _Pairs):
        raise refused(file.path, "not a table of keys and values")
    places: dict[str, list[tuple[int, tuple[int, int]]]] = {}
    for number, line in enumerate(file.lines, 1):
        for match in _JSON_KEY.finditer(line):
            places.setdefault(match[1], []).append((number, match.span(2)))
    for keys, value in _flat(document, ()):
        found = places.get(json.dumps(keys[-1]), [])
        # a key that occurs more than once has no known position
        yield file.value(keys, value, *(found[0] if len(found) == 1 else ()))


def _flat(value: Any, keys: Keys) -> Iterator[tuple[Keys, Value]]:  # noqa: ANN401 - any JSON or TOML value
    if isinstance(value, dict):
        value = _Pairs(value.items())
    if isinstance(value, list):
        pairs = value if isinstance(value, _Pairs) else [(str(i), item) for i, item in enumerate(value)]
        for name, item in pairs:
            yield from _flat(item, (*keys, name))
    else:
        yield keys, value if isinstance(value, Value) else str(value)


# Reads a YAML file as PyYAML's safe loader does
# ----------------------------------------------

_TRUE = {"true", "yes", "on"}
_NULL = {"", "~", "null"}


def _read_yaml(file: _Text) -> Iterator[ConfigValue]:
    try:
        _, root = compose(file.text, yaml.SafeLoader)
    except NotPlainYamlError as error:
        raise refused(file.path, str(error), error.line) from error
    if root is not None and not isinstance(root, yaml.MappingNode):
        raise refused(file.path, "not a table of keys and values")
    return iter(()) if root is None else _of_node(file, root, ())


def _of_node(file: _Text, node: yaml.Node, keys: Keys) -> Iterator[ConfigValue]:
    if isinstance(node, yaml.MappingNode):
        own = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        for key, child in node.value:
            if key.tag == f"{PLAIN}merge":
                yield from _merged(file, child, own, keys)
            else:
                name = key.value if isinstance(key, yaml.ScalarNode) else "?"
                yield from _of_node(file, child, (*keys, name))
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield from _of_node(file, child, (*keys, str(index)))
    else:
        start, end = node.start_mark, node.end_mark
        columns = (start.column, end.column) if start.line == end.line else None
        yield file.value(keys, _value(node), start.line + 1, columns, quoted=node.style is not None)


def _merged(file: _Text, node: yaml.Node, own: set[str], keys: Keys) -> Iterator[ConfigValue]:
    """Merge the tables of `<<`: keys of the table itself take precedence, then those of earlier tables."""
    for table in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if isinstance(table, yaml.MappingNode):
            brought = list(_of_node(file, table, keys))
            yield from (setting for setting in brought if setting.keys[len(keys)] not in own)
            own = own | {setting.keys[len(keys)] for setting in brought}


def _value(node: yaml.Node) -> Value:
    """Return the value as read by PyYAML's safe loader; text if that fails."""
    text = str(node.value)
    match node.tag.removeprefix(PLAIN):
        case "bool":
            return text.lower() in _TRUE
        case "null":
            return None if text.lower() in _NULL else text
        case "int" | "float" as kind:
            digits = text.replace("_", "")
            try:
                return int(digits, 0) if kind == "int" else float(digits)
            except ValueError:  # octal and sexagesimal numbers, infinities, which no setting here uses
                return text
    return text


_READERS: dict[str, Callable[[_Text], Iterator[ConfigValue]]] = {
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".toml": _read_toml,
    ".json": _read_json,
    ".py": _read_python,
}
