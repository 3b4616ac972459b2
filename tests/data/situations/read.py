"""What a set is understood to be, for the tests of situations."""

import os
from pathlib import Path

from mptui.config.schema import DataConfig
from mptui.data.dataset import FileSplit, MaskedSplit
from mptui.data.open import open_dataset


def opened(path, kind, **settings):
    """Open a set; return it and its warnings."""
    heard: list[str] = []
    dataset = open_dataset(
        DataConfig(path=str(path), **settings),
        kind=kind,
        side=32,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=heard.append,
    )
    return dataset, heard


def labelled(root, split):
    """Return the files of each class of a split, relative to the set."""
    assert isinstance(split, FileSplit | MaskedSplit)
    found: dict[int, list[str]] = {}
    for index in range(len(split)):
        request = split.request(index)
        found.setdefault(getattr(request, "label", 0), []).append(os.path.relpath(request.path, root))
    return {label: sorted(files) for label, files in found.items()}


def images_in(root, folder):
    """Return the images that lie directly in a folder, relative to the set."""
    return sorted(os.path.relpath(file, root) for file in Path(root, folder).glob("*.png"))
