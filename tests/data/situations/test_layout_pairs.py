"""Two layouts in one folder: refused, or one is read, and each file of the other is left out with a word."""

import os
import re
import shutil
from functools import cache

import pytest

from mptui.config.schema import DataConfig
from mptui.data.address import joined_files
from mptui.data.open import files_of
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.situations.packed import parquet, shard

from .pictures import pairs, photos


def class_folders(root):
    photos(root, "a:4 b:4")


def splits_of_classes(root):
    photos(root, "train/c:4 train/d:4 val/c:2 val/d:2")


def images_alone(root):
    photos(root, ".:6")


def splits_of_images(root):
    photos(root, "training:6 validation:3")


def images_and_masks(root):
    pairs(root, "images/{}.png", "masks/{}.png")


def splits_of_masks(root):
    for split in ("train", "val"):
        pairs(root / split, "images/{}.png", "masks/{}.png")


def ade20k(root):
    for split in ("training", "validation"):
        pairs(root, f"images/{split}/{{}}.png", f"annotations/{split}/{{}}.png")


def camvid(root):
    for split in ("train", "val"):
        pairs(root, f"{split}/{{}}.png", f"{split}annot/{{}}.png")


def voc(root):
    pairs(root, "JPEGImages/{}.jpg", "SegmentationClass/{}.png")
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for split, names in (("train", "0\n1\n2\n"), ("val", "3\n4\n")):
        (root / f"ImageSets/Segmentation/{split}.txt").write_text(names)


def a_folder_an_image(root):
    for number in range(4):
        pairs(root / f"id{number}", "images/{}.png", "masks/{}.png", 1)


def masks_beside(root):
    pairs(root, "x{}.png", "x{}_mask.png")


def tar_shards(root):
    shard(root / "train-0.tar", 6)
    shard(root / "val-0.tar", 6)


def parquet_files(root):
    parquet(root / "train-0.parquet", 6)
    parquet(root / "val-0.parquet", 6)


def listed_masks(root):
    pairs(root, "pictures/{}.png", "drawn/{}.png")
    lines = [f"pictures/{number}.png,drawn/{number}.png" for number in range(5)]
    (root / "list.csv").write_text("image,mask\n" + "\n".join(lines))


MASKS = r"masks|has the images, and|has them, and"
IMAGES = r"images alone|all images|train"
CLASSES = r"class|splits: |train: is train"
LAYOUTS = {
    class_folders: CLASSES,
    splits_of_classes: CLASSES,
    images_alone: IMAGES,
    splits_of_images: IMAGES,
    images_and_masks: MASKS,
    splits_of_masks: MASKS,
    ade20k: MASKS,
    camvid: MASKS,
    voc: MASKS,
    a_folder_an_image: MASKS,
    masks_beside: MASKS,
    tar_shards: "tar shards",
    parquet_files: "Parquet files",
    listed_masks: r"list of images: list\.csv|drawn|pictures|--data .*list\.csv",
}
"""Each layout, and how a refusal names it."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """The folder of each layout."""
    found = {}
    for layout in LAYOUTS:
        found[layout] = tmp_path_factory.mktemp(layout.__name__)
        layout(found[layout])
    return found


def read(root, kind):
    """Return the files of a set, or the error by which it is refused."""
    try:
        return files_of(DataConfig(path=str(root)), kind, lambda done, total: None, lambda: False)[2]
    except DataError as error:
        return error


@cache
def serves(root, kind):
    return not isinstance(read(root, kind), DataError)


def used_files(root, found):
    """Return the files of a set that its samples are in."""
    if found.layout == "Parquet files":  # read from copies of their images
        return {file for file in files_in(root) if file.endswith(".parquet")}
    addresses = [*found.images, *(found.masks or ())]
    return {file.partition("\0")[0] for address in addresses for file in joined_files(address)}


def files_in(folder):
    return {str(file) for file in folder.rglob("*") if file.is_file()}


FAST = {images_alone, splits_of_images, images_and_masks, masks_beside}


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=() if first in FAST else pytest.mark.slow) for first in LAYOUTS]
)
def test_of_two_layouts_none_is_read_without_a_word(tmp_path, trees, first):
    seen = 0
    for second in LAYOUTS:
        if second is first:
            continue
        root = tmp_path / second.__name__
        shutil.copytree(trees[first], root, copy_function=os.link)
        own = files_in(root)
        kinds = [kind for kind in SampleKind if serves(trees[first], kind) or serves(trees[second], kind)]
        shutil.copytree(trees[second], root, copy_function=os.link, dirs_exist_ok=True)
        for kind in kinds:
            found = read(root, kind)
            if isinstance(found, DataError):
                assert_both_are_named(found, root, kind, first, second)
                continue
            seen += 1
            used, everything = used_files(root, found), files_in(root)
            of_both = used & own and used - own
            assert not of_both or found.classes == ("image",), (second.__name__, found.layout)
            left = {file for each in found.left_out for file in each.files} | {*found.test}
            unpaired = {problem.path for problem in found.unpaired}
            assert used | left | unpaired == everything, (second.__name__, found.layout)
            assert used == everything or found.warnings or found.unpaired, (second.__name__, found.layout)
            both_serve = serves(trees[first], kind) and serves(trees[second], kind)
            assert not both_serve or of_both or found.unpaired or kind is SampleKind.IMAGE, second.__name__
    assert seen or first is listed_masks


def assert_both_are_named(error, root, kind, *layouts):
    """Check a refusal; each of its ways out is that the other layout lies elsewhere, or a path to give."""
    assert error.exit_code == 3
    _, *readings = error.message.split("\n  ")
    assert len(readings) == 2, (error.message, kind)
    for layout in layouts:
        known = LAYOUTS[layout] + "|images" * (kind is SampleKind.IMAGE)
        assert any(re.search(known, line) for line in (*readings, error.hint)), (error.message, kind)
    assert re.match("move .* out of it|sort the images", error.hint), (error.message, error.hint)
    if given := re.search(rf"--data ({root}\S*) for the second", error.hint):
        assert any(serves(given[1], other) for other in SampleKind)
