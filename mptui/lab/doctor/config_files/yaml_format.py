"""Reads a YAML file as flat settings, from its nodes: tags never create objects.

Only PyYAML's parser in Python is used (the C parser recurses on the stack), and only to create nodes. Nodes
are counted with all aliases expanded before anything walks over them.
"""

from pathlib import Path

import yaml

from mptui.lab.doctor.config_files.values import MOST_VALUES, ConfigValue, Keys, Value, refused

_PLAIN = "tag:yaml.org,2002:"
_KNOWN = {
    _PLAIN + name for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge", "timestamp")
}
_TRUE = {"true", "yes", "on"}
_NULL = {"", "~", "null"}


def read_yaml(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a YAML text.

    Raises:
        ConfigError: It is not YAML, has more than one document, a tag for other than plain values, or
            aliases that expand beyond `MOST_VALUES`.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise refused(path, f"not YAML: {error.problem or error.context}", line) from error
    except (yaml.YAMLError, ValueError) as error:  # ReaderError: characters that YAML doesn't allow
        raise refused(path, f"not YAML: {str(error).partition(chr(10))[0]}") from error
    if root is None:
        return []
    _Counter(path).count(root)
    if not isinstance(root, yaml.MappingNode):
        raise refused(path, "not a table of keys and values")
    values: list[ConfigValue] = []
    _flatten(root, (), values)
    return values


class _Counter:
    """Counts nodes with all aliases expanded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[int, int | None] = {}

    def count(self, node: yaml.Node) -> int:
        """Count `node` and all below it.

        Raises:
            ConfigError: There are too many nodes, a cycle, or a tag for other than plain values.
        """
        if node.tag not in _KNOWN:
            raise refused(self._path, f"a tag is not allowed: {node.tag}", node.start_mark.line + 1)
        if id(node) in self._sizes:
            known = self._sizes[id(node)]
            if known is None:
                raise refused(self._path, "an alias that contains itself", node.start_mark.line + 1)
            return known
        self._sizes[id(node)] = None
        size = 1
        for child in _children(node):
            size += self.count(child)
            if size > MOST_VALUES:
                raise refused(self._path, f"more than {MOST_VALUES:,} values with expanded aliases")
        self._sizes[id(node)] = size
        return size


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _flatten(node: yaml.Node, keys: Keys, values: list[ConfigValue]) -> None:
    if isinstance(node, yaml.MappingNode):
        own = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        for key, child in node.value:
            if key.tag == f"{_PLAIN}merge":
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
    match node.tag.removeprefix(_PLAIN):
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
