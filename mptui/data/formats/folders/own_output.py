"""Recognizes what mptui wrote: directories of runs, checkpoints, and results beside other files."""

from collections.abc import Collection
from pathlib import Path

from mptui.io.marker import is_checkpoint, is_run
from mptui.io.written_files import LIST, written_files

OUTPUT_SIGNS = frozenset(
    {".mptui-run.json", "run.toml", "events.jsonl", "checkpoints", "manifest.json", LIST}
)
"""One of them is in each folder that mptui wrote to: others need no look at their files."""


def is_output_folder(folder: str) -> bool:
    """Whether a folder is the directory of a run, or a checkpoint."""
    return is_run(Path(folder)) or is_checkpoint(Path(folder))


def written_names(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the names of the results that mptui wrote into a folder with these signs."""
    return frozenset(written_files(Path(folder))) if LIST in names else frozenset()
