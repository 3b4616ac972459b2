"""Parses YAML of any origin into nodes: tags never create objects, and aliases can't grow without bound.

Only PyYAML's parser in Python is used (the C parser recurses on the stack). Nodes are counted with all
aliases expanded before anything walks over them.
"""

from typing import TypeVar

import yaml

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
