"""Reads a YAML file of settings by the core schema of YAML 1.2.

PyYAML's own rules, of YAML 1.1, would read `compile: off` as false and `lr: 1e-3` as text.
"""

import re
from typing import Any

import yaml

from mptui.config.documents.toml_lines import Keys
from mptui.config.documents.yaml_nodes import PLAIN, NotPlainYamlError, compose, not_yaml


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
