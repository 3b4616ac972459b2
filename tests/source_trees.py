"""The package's modules as syntax trees: what tests of its calls look through."""

import ast
import gc
import re
from functools import cache
from pathlib import Path

import mptui


def source_trees(pattern: str) -> dict[str, ast.Module]:
    """Return the modules in whose text the pattern is found: path, relative to the package, and tree."""
    root = Path(mptui.__file__).parent
    has_one = re.compile(pattern).search
    return {str(path.relative_to(root)): _tree(path) for path in root.rglob("*.py") if has_one(_text(path))}


@cache
def _text(path: Path) -> str:
    return path.read_text()


@cache
def _tree(path: Path) -> ast.Module:
    gc.disable()  # its million objects are no garbage: to look through them takes two thirds of the time
    try:
        return ast.parse(_text(path))
    finally:
        gc.enable()
