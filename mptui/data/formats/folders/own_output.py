"""Recognizes what mptui wrote itself: directories of runs, and checkpoints."""

from collections.abc import Collection
from pathlib import Path

from mptui.io.marker import is_checkpoint, is_run

_SIGNS = frozenset({".mptui-run.json", "run.toml", "checkpoints", "manifest.json"})
"""One of them is in each such folder: others need no look at their files."""


def is_output_folder(folder: str, names: Collection[str]) -> bool:
    """Whether a folder with these entries is the directory of a run, or a checkpoint."""
    if _SIGNS.isdisjoint(names):
        return False
    return is_run(Path(folder)) or is_checkpoint(Path(folder))
