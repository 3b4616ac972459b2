"""A property: of any tree, each regular file is in one place: training, validation, test, or left out."""

import io
import os
import random
from functools import cache
from pathlib import Path

import pytest
from PIL import Image

from mptui.data.address import joined_files
from mptui.data.dataset import FileSplit, MaskedSplit
from mptui.errors import DataError
from mptui.registry.names import SampleKind

from .read import opened

FOLDERS = (
    "train",
    "val",
    "test",
    "seg_train",
    "images",
    "masks",
    "cat",
    "dog",
    "a",
    ".hidden",
    "x.b",
    "extra",
)
FILES = ("0.png", "1.png", "0_mask.png", "1_mask.png", "2.PNG", "notes.txt", ".DS_Store", "noext", "list.csv")


def png(value):
    written = io.BytesIO()
    Image.new("L", (8, 8), value).save(written, "png")
    return written.getvalue()


PICTURES = {value: png(value) for value in (0, 255)}


def grow(folder, chance, depth=0):
    """Write files and folders, and a link now and then."""
    folder.mkdir(exist_ok=True)
    for name in chance.sample(FILES, chance.randint(0, 5)):
        if name.lower().endswith(".png"):
            (folder / name).write_bytes(PICTURES[chance.choice((0, 255))])
        else:
            (folder / name).write_text("x")
    for name in chance.sample(FOLDERS, chance.randint(1, 4) if depth < 3 else 0):
        if chance.random() < 0.15:
            (folder / f"link_{name}").symlink_to(
                chance.choice([folder, *folder.parents][: depth + 1]), target_is_directory=True
            )
        grow(folder / name, chance, depth + 1)
    if chance.random() < 0.3 and (files := sorted(folder.glob("*/*.png"))):
        (folder / "linked.png").symlink_to(chance.choice(files))


def used(split):
    """Return the real files of a split, images and masks, with repetitions."""
    assert isinstance(split, FileSplit | MaskedSplit)
    files = list(split.files)
    if isinstance(split, MaskedSplit):
        files += [file for row in split.rows for file in joined_files(split.mask_paths[row])]
    return [os.path.realpath(file) for file in files]


def places(root, kind, setting):
    """Return where each real file is; that of a link that is left out counts if it is nowhere else."""
    dataset, _ = opened(root, kind, bad_sample_budget=1.0, class_folders=setting)
    found: dict[str, list[str]] = {}
    halves = {"training": used(dataset.train), "validation": used(dataset.val), "test": dataset.reading.test}
    left = {each.reason: each.files for each in dataset.reading.left_out}
    links: dict[str, list[str]] = {}
    for place, files in [*halves.items(), *left.items()]:
        for file in files:
            known = links if Path(file).is_symlink() and place in left else found
            known.setdefault(os.path.realpath(file), []).append(place)
    return {file: where for file, where in links.items() if Path(file).is_file()} | found


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folders of random trees."""
    folder = tmp_path_factory.mktemp("trees")

    @cache
    def grown(seed):
        grow(folder / f"set-{seed}", random.Random(seed))
        return folder / f"set-{seed}"

    return grown


@pytest.mark.parametrize("seeds", [range(9, 15), pytest.param(range(24), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize(
    "kind",
    [SampleKind.CLASS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(SampleKind)[1:])],
)
def test_each_file_is_in_one_place(roots, kind, seeds):
    read = 0
    for seed, root in zip(seeds, map(roots, seeds), strict=True):
        files = {str(file.resolve()) for file in walk(root)}
        for setting in ("auto", "outer"):
            try:
                found = places(root, kind, setting)
            except DataError:
                continue  # a refusal names why; nothing is trained on
            read += 1
            assert {file: where for file, where in found.items() if len(where) > 1} == {}, seed
            assert found.keys() == files, seed
    assert read >= len(seeds) // 2


def walk(root):
    for folder, _, names in os.walk(root):
        for name in names:
            if not Path(folder, name).is_symlink():
                yield Path(folder, name)
