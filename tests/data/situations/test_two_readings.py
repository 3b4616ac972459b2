"""Folders that two layouts explain equally well: refused with both readings, and the remedy works."""

import shutil

import numpy as np
import pytest
from PIL import Image

from mptui.errors import DataError
from mptui.registry.names import SampleKind

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


@pytest.mark.parametrize("name", ["images_00{}", "HAM_images_part_{}", "batch{}"])
def test_parts_that_differ_by_a_number_are_refused_as_classes_and_a_list_says_the_classes(tmp_path, name):
    folders = [name.format(number) for number in (1, 2)]
    fill(tmp_path, *folders)
    with pytest.raises(DataError, match=rf"\n  parts of one set: {folders[0]}.*\n  classes: 2") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "LIST.csv" in caught.value.hint
    assert opened(tmp_path, SampleKind.CLASS, class_folders="outer")[0].classes == tuple(folders)
    lines = [f"{folder}/{number}.png,{'ab'[number % 2]}" for folder in folders for number in range(4)]
    (tmp_path / "list.csv").write_text("image,label\n" + "\n".join(lines))
    assert opened(tmp_path / "list.csv", SampleKind.CLASS)[0].class_counts == [3, 3]


@pytest.mark.parametrize("folder", ["images", "a"])
def test_splits_in_the_names_of_images_are_refused_until_folders_have_them(tmp_path, folder):
    kind = SampleKind.MASK if folder == "images" else SampleKind.CLASS
    for place in (folder, "masks" if folder == "images" else "b"):
        fill(tmp_path / "set", place)
        for split in ("train", "testA"):
            for number in range(2):
                file = tmp_path / "set" / place / f"{number + 2 * (split == 'train')}.png"
                file.rename(file.with_name(f"{split}_{file.name}"))
    with pytest.raises(DataError, match=r"names: 4 train, 4 test|names: 2 train, 2 test") as caught:
        opened(tmp_path / "set", kind)
    assert "LIST.csv" in caught.value.hint
    for file in [*tmp_path.rglob("*.png")]:
        split = "train" if file.name.startswith("train") else "test"
        place = tmp_path / "sorted" / split / file.parent.name
        place.mkdir(parents=True, exist_ok=True)
        file.rename(place / file.name)
    dataset, _ = opened(tmp_path / "sorted", kind)
    assert dataset.reading.split == "folders train and test"


@pytest.mark.parametrize(
    "folders",
    [
        ("class_1", "class_2"),
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
    assert "move" in caught.value.hint
    shutil.rmtree(tmp_path / "images")
    shutil.rmtree(tmp_path / "masks")
    dataset, _ = opened(tmp_path, SampleKind.MASK)
    assert (len(dataset.train), len(dataset.val)) == (4, 4)


SPLITS = ("train/a", "train/b", "val/a", "val/b")


def test_other_class_folders_beside_splits_are_refused_and_the_setting_decides(tmp_path):
    fill(tmp_path, *SPLITS, "c", "d")
    with pytest.raises(
        DataError, match=r"class folders: 16 images.*train and val\n  class folders beside them: 8 .*c, d"
    ) as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "data.class_folders=outer if the splits alone are meant" in caught.value.hint
    assert opened(tmp_path, SampleKind.CLASS, class_folders="outer")[0].classes == ("a", "b")
    with pytest.raises(DataError, match=r"\n  all images: with 8 more, as [cd]/") as caught:
        opened(tmp_path, SampleKind.IMAGE)
    assert "LIST.csv" in caught.value.hint


@pytest.mark.parametrize("beside", [("a", "b"), ("pred",), ("data/train/a", "data/train/b")])
def test_copies_of_the_splits_and_unlabelled_images_beside_them_are_left_out_with_a_word(tmp_path, beside):
    fill(tmp_path, *SPLITS, *beside)
    for kind in (SampleKind.CLASS, SampleKind.IMAGE):
        dataset, heard = opened(tmp_path, kind)
        assert (len(dataset.train), len(dataset.val)) == (8, 8)
        assert any("lies beside the folders of the splits" in line for line in heard)
