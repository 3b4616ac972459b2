"""Reads a YAML file as flat settings, as PyYAML's safe loader reads them."""

from pathlib import Path

import yaml

from mptui.config.documents.yaml_nodes import PLAIN, NotPlainYamlError, compose
from mptui.lab.doctor.config_files.values import ConfigValue, Keys, Value, refused

_TRUE = {"true", "yes", "on"}
_NULL = {"", "~", "null"}


def read_yaml(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a YAML text.

    Raises:
        ConfigError: It is not YAML, has more than one document, a tag for other than plain values, or
            aliases that expand beyond `MOST_VALUES`.
    """
    try:
        _, root = compose(text, yaml.SafeLoader)
    except NotPlainYamlError as error:
        raise refused(path, str(error), error.line) from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise refused(path, "not a table of keys and values")
    values: list[ConfigValue] = []
    _flatten(root, (), values)
    return values


def _flatten(node: yaml.Node, keys: Keys, values: list[ConfigValue]) -> None:
    if isinstance(node, yaml.MappingNode):
        own = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        for key, child in node.value:
            if key.tag == f"{PLAIN}merge":
                _merge(child, own, keys, values)
            else:
                name = key.value if isinstance(key, yaml.ScalarNode) else "?"
                _flatten(child, (*keys, name), values)
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _flatten(child, (*keys, str(index)), values)
    else:
        values.append(_setting(node, keys))


def _merge(node: yaml.Node, own: set[str], keys: Keys, values: list[ConfigValue]) -> None:
    """Merge the tables of `<<`: keys of the table itself take precedence, then those of earlier tables."""
    for table in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if not isinstance(table, yaml.MappingNode):
            continue
        brought: list[ConfigValue] = []
        _flatten(table, keys, brought)
        values += [setting for setting in brought if setting.keys[len(keys)] not in own]
        own = own | {setting.keys[len(keys)] for setting in brought}


def _setting(node: yaml.Node, keys: Keys) -> ConfigValue:
    start, end = node.start_mark, node.end_mark
    one_line = start.line == end.line
    return ConfigValue(
        keys,
        _value(node),
        line=start.line + 1,
        start=start.column if one_line else None,
        end=end.column if one_line else None,
        quoted=node.style is not None,
    )


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
