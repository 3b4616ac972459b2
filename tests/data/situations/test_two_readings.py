"""Folders that two layouts explain equally well: refused with both readings, and the remedy works."""

import shutil

import numpy as np
import pytest
from PIL import Image

from mptui.errors import DataError
from mptui.registry.samples import SampleKind

from .read import opened


def fill(root, *folders):
    """Write four images into each folder; those below a folder of masks have two values."""
    for folder in folders:
        place = root / folder
        place.mkdir(parents=True)
        for number in range(4):
            pixels = np.zeros((20, 20), np.uint8)
            pixels[5:12, 5 + number : 15] = 1 if "masks" in folder else 200
            Image.fromarray(pixels).save(place / f"{number}.png")


@pytest.mark.parametrize(
    ("folders", "odd"),
    [
        (("a", "b", "val/a", "val/b"), "val"),
        (("a", "b", "test/a", "test/b"), "test"),
        (("a", "b", "test"), "test"),
        (("a", "b", "validation"), "validation"),
        (("a", "b", "predictions/a", "predictions/b"), "predictions"),
        (("a", "b", "augmented/a", "augmented/b"), "augmented"),
        (("a", "b", "masks"), "masks"),
        (("a", "b", "id0/images", "id0/masks"), "id0"),
    ],
)
def test_a_folder_that_can_be_a_class_or_another_part_is_refused(tmp_path, folders, odd):
    fill(tmp_path, *folders)
    with pytest.raises(DataError, match=rf"{odd}.*\n.*\n  a class: 3 classes: .*{odd}") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "--set data.class_folders=outer" in caught.value.hint
    as_class, _ = opened(tmp_path, SampleKind.CLASS, class_folders="outer")
    assert as_class.classes == tuple(sorted(["a", "b", odd]))
    shutil.rmtree(tmp_path / odd)
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == ("a", "b")


@pytest.mark.parametrize(
    "folders",
    [
        ("mask", "no_mask"),
        ("valid", "invalid"),
        ("with_mask", "without_mask"),
        ("train", "bus"),
        ("photo", "sketch"),
    ],
)
def test_classes_whose_names_are_such_words_by_chance_are_read(tmp_path, folders):
    fill(tmp_path, *folders)
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == tuple(sorted(folders))


def test_the_same_folders_in_each_folder_can_be_the_classes(tmp_path):
    fill(tmp_path, "art/dog", "art/horse", "photo/dog", "photo/horse")
    with pytest.raises(
        DataError, match=r"outer: 2 classes: art, photo\n  inner: 2 classes: dog, horse"
    ) as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "--set data.class_folders=outer" in caught.value.hint
    assert opened(tmp_path, SampleKind.CLASS, class_folders="outer")[0].classes == ("art", "photo")


@pytest.mark.parametrize(
    "other", [("images", "masks"), ("images/train", "masks/train", "images/val", "masks/val")]
)
def test_two_sets_of_masks_in_one_folder_are_refused(tmp_path, other):
    splits = ("train/images", "train/masks", "val/images", "val/masks")
    fill(tmp_path, *other, *splits)
    with pytest.raises(DataError, match=r"two sets.*\n.*images and masks.*\n.*train") as caught:
        opened(tmp_path, SampleKind.MASK)
    assert "Move" in caught.value.hint
    shutil.rmtree(tmp_path / "images")
    shutil.rmtree(tmp_path / "masks")
    dataset, _ = opened(tmp_path, SampleKind.MASK)
    assert (len(dataset.train), len(dataset.val)) == (4, 4)
