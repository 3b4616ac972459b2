"""Reads files of settings with the lines of their values: TOML, and YAML by the core schema of 1.2."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomli
import yaml

from mptui.errors import ConfigError
from mptui.io.files import OddFileError, read_regular
from mptui.text import clean, shell_word

# Finds the line of each key of a TOML text; tomli doesn't tell them
# ------------------------------------------------------------------

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")

Keys = tuple[str, ...]


def key_lines(text: str) -> dict[Keys, int]:
    """Return the line, from 1, of each table and key of a TOML text, without keys of inline tables."""
    lines: dict[Keys, int] = {}
    table: Keys = ()
    for keys, is_header, number in _statements(text):
        if is_header:
            table = keys
        lines.setdefault(keys if is_header else (*table, *keys), number)
    return lines


def _statements(text: str) -> Iterator[tuple[Keys, bool, int]]:
    in_string = False
    for number, line in enumerate(text.splitlines(), start=1):
        header = None if in_string else _HEADER.match(line)
        match = header or (None if in_string else _KEY.match(line))
        if match:
            keys = tuple(part.strip().strip("\"'") for part in match[1].split("."))
            yield keys, header is not None, number
        in_string ^= (line.count('"""') + line.count("'''")) % 2 == 1


# Reads a file of settings, TOML or YAML by its ending, with the line of each key
# -------------------------------------------------------------------------------

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
    faulty = f"correct the file, then check it with `mptui profiles validate {shell_word(path)}`"
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

    try:
        return Document(text, *read_yaml_document(text))
    except NotPlainYamlError as error:
        place = f"{path}:{error.line}" if error.line else str(path)
        raise ConfigError(f"{place}: {clean(str(error), limit=200)}", hint=hint) from error
    except RecursionError as error:
        raise _nested(path) from error


def _nested(path: Path) -> ConfigError:
    return ConfigError(f"{path}: nested too deeply", hint="a profile only has tables of keys")


# Parses YAML of any origin into nodes: tags never create objects, and aliases can't grow without bound
# -----------------------------------------------------------------------------------------------------
# Only PyYAML's parser in Python is used (the C parser recurses on the stack). Nodes are counted with all
# aliases expanded before anything walks over them.

PLAIN = "tag:yaml.org,2002:"
MOST_VALUES = 20_000
"""Largest number of values; a configuration usually has some hundred."""

_KNOWN = {
    PLAIN + name for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp")
}


class NotPlainYamlError(ValueError):
    """Not YAML, or not plain values.

    Attributes:
        line: Where, from 1; None if unknown.
    """

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self.line = line


Loader = TypeVar("Loader", bound=yaml.SafeLoader)


def compose(text: str, kind: type[Loader]) -> tuple[Loader, yaml.Node | None]:
    """Parse a text into nodes, with the tags of a kind of loader; None: it is empty.

    Raises:
        NotPlainYamlError: It is not YAML, has more than one document, a tag for other than plain values, or
            aliases that expand beyond `MOST_VALUES`.
    """
    try:
        loader = kind(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise not_yaml(error) from error
    except (yaml.YAMLError, ValueError) as error:  # ReaderError: characters that YAML doesn't allow
        raise NotPlainYamlError(f"not YAML: {str(error).partition(chr(10))[0]}") from error
    if root is not None:
        _Counter().count(root)
    return loader, root


def not_yaml(error: yaml.MarkedYAMLError) -> NotPlainYamlError:
    """Return the error of a text that PyYAML refuses."""
    line = error.problem_mark.line + 1 if error.problem_mark else None
    return NotPlainYamlError(f"not YAML: {error.problem or error.context}", line)


class _Counter:
    """Counts nodes with all aliases expanded."""

    def __init__(self) -> None:
        self._sizes: dict[int, int | None] = {}

    def count(self, node: yaml.Node) -> int:
        """Count `node` and all below it.

        Raises:
            NotPlainYamlError: There are too many nodes, a cycle, or a tag for other than plain values.
        """
        if node.tag not in _KNOWN:
            raise NotPlainYamlError(f"a tag is not allowed: {node.tag}", node.start_mark.line + 1)
        if id(node) in self._sizes:
            known = self._sizes[id(node)]
            if known is None:
                raise NotPlainYamlError("an alias that contains itself", node.start_mark.line + 1)
            return known
        self._sizes[id(node)] = None
        size = 1
        for child in _children(node):
            size += self.count(child)
            if size > MOST_VALUES:
                raise NotPlainYamlError(f"more than {MOST_VALUES:,} values with expanded aliases")
        self._sizes[id(node)] = size
        return size


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


# Reads a YAML file of settings by the core schema of YAML 1.2
# ------------------------------------------------------------
# PyYAML's own rules, of YAML 1.1, would read `compile: off` as false and `lr: 1e-3` as text.


class _CoreLoader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
    """Resolves plain scalars by YAML 1.2.2, section 10.3.2, and the merge key `<<`."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's class attribute, not to be inherited

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Read 0x and 0o as such; a leading zero is decimal."""
        text = str(node.value)
        return int(text, 0) if text[:2] in {"0x", "0o"} else int(text)


_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _name, _pattern, _first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("merge", "<<", "<"),
):
    _CoreLoader.add_implicit_resolver(PLAIN + _name, re.compile(f"^(?:{_pattern})$"), list(_first))
_CoreLoader.add_constructor(f"{PLAIN}int", _CoreLoader.construct_yaml_int)


def read_yaml_document(text: str) -> tuple[dict[str, Any], dict[Keys, int]]:
    """Read the tables of a YAML text, and the line, from 1, of each table and key.

    Raises:
        NotPlainYamlError: It is not YAML, not a table, has a key twice, or other than plain values.
    """
    loader, root = compose(text, _CoreLoader)
    lines: dict[Keys, int] = {}
    if root is None:
        return {}, lines
    if not isinstance(root, yaml.MappingNode):
        raise NotPlainYamlError("not a table of keys and values", root.start_mark.line + 1)
    try:
        return _table(loader, root, (), lines), lines
    except yaml.MarkedYAMLError as error:
        raise not_yaml(error) from error


def _table(
    loader: _CoreLoader, node: yaml.MappingNode, place: Keys, lines: dict[Keys, int]
) -> dict[str, Any]:
    _refuse_twice(node)
    loader.flatten_mapping(node)  # tables of `<<` first, so that keys of the table itself win
    table: dict[str, Any] = {}
    for key, child in node.value:
        keys = (*place, str(key.value))
        lines[keys] = key.start_mark.line + 1
        table[keys[-1]] = (
            _table(loader, child, keys, lines)
            if isinstance(child, yaml.MappingNode)
            else loader.construct_object(child, deep=True)
        )
    return table


def _refuse_twice(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise NotPlainYamlError("a key that is not a word", key.start_mark.line + 1)
        if key.value in seen:
            raise NotPlainYamlError(f"the key {key.value} is there twice", key.start_mark.line + 1)
        seen.add(key.value)
