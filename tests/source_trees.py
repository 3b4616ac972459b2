"""The package's modules as syntax trees: what tests of its calls look through."""

import ast
from functools import cache
from pathlib import Path

import mptui


@cache
def source_trees():
    """Each module's path, relative to the package, and its tree."""
    root = Path(mptui.__file__).parent
    return {str(path.relative_to(root)): ast.parse(path.read_text()) for path in root.rglob("*.py")}
