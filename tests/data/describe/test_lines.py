"""What a set was understood to be, and what a person should know of it before the first epoch."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from mptui.data.describe import data_findings, reading_changes, reading_document, reading_lines
from mptui.registry.names import SampleKind
from tests.data.images import class_folders, photo
from tests.data.opening import opened


def found(path, sampler="uniform", **settings):
    return [f"{each.what}: {each.do}" for each in data_findings(opened(path, **settings), sampler)]


def test_four_lines_say_what_a_set_is(tmp_path):
    class_folders(tmp_path, {"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 1})
    (tmp_path / "train" / "cat" / "notes.xyz").touch()
    lines = reading_lines(opened(tmp_path))
    assert lines[0].startswith(
        f"Data: {tmp_path.name}: class folders, 5 training and 2 validation images; split: "
    )
    assert lines[1:3] == [
        "Classes: 2: cat 3, dog 2 training images",
        "Images: 16 px; 3 bands of uint8",
    ]
    assert lines[3].startswith("Left out: ")


def test_a_name_that_is_not_plain_is_escaped_once(tmp_path):
    class_folders(tmp_path, {"train/a\u200eb": 2, "train/dog": 2, "val/a\u200eb": 1, "val/dog": 1})
    assert reading_lines(opened(tmp_path))[1] == r"Classes: 2: a\u200eb 2, dog 2 training images"


@pytest.mark.parametrize(
    ("ants", "words"),
    [(2, "2 training images each"), (1, "ant has the fewest training images, 1, bee the most, 2")],
)
def test_of_many_classes_the_smallest_and_the_largest_are_said_if_they_differ(tmp_path, ants, words):
    images = {"ant": ants, "bee": 2, "cat": 2, "dog": 2, "elk": 2}
    class_folders(tmp_path, {f"{half}/{name}": n for half in ("train", "val") for name, n in images.items()})
    assert reading_lines(opened(tmp_path))[1] == f"Classes: 5: ant, bee, cat, dog, …; {words}"


def test_the_code_of_masks_is_said(tmp_path):
    for number in range(4):
        for name in ("images", "masks"):
            (tmp_path / name).mkdir(exist_ok=True)
        photo(20, 16, seed=number).save(tmp_path / "images" / f"{number}.png")
        mask = np.zeros((16, 20), np.uint8)
        mask[:4] = 1
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    lines = reading_lines(opened(tmp_path, kind=SampleKind.MASK))
    assert "background 720, foreground 240 training pixels" in lines[1]
    assert "0: background" in lines[2]


def test_classes_of_very_different_sizes_are_told_unless_the_sampler_balances_them(tmp_path):
    class_folders(tmp_path, {"ship": 60, "frog": 4})
    told = found(tmp_path)
    assert told == [
        "unbalanced classes: ship has 48 images, frog 3: --set data.sampler=balanced, with"
        " training.primary_metric=balanced_accuracy"
    ]
    assert found(tmp_path, "balanced") == []


def test_a_class_with_one_image_is_told(tmp_path):
    class_folders(tmp_path, {"train/cat": 3, "train/dog": 1, "val/cat": 1, "val/dog": 1})
    assert any(each.startswith("classes with one training image: dog") for each in found(tmp_path))


def test_a_folder_that_is_training_and_validation_is_told(tmp_path):
    for label, offset in (("cat", 0), ("dog", 9)):
        for number in range(3):
            file = tmp_path / "train" / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            photo(20, 16, seed=number + offset).save(file)
    shutil.copytree(tmp_path / "train", tmp_path / "val")
    assert found(tmp_path)[0].startswith(
        "6 of 6 validation images that were compared are training images, too"
    )


def test_other_images_of_the_same_names_are_not_taken_for_the_same(tmp_path):
    for half, offset in (("train", 0), ("val", 20)):
        for label in ("cat", "dog"):
            for number in range(3):
                file = tmp_path / half / label / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                photo(20, 16, seed=number + offset).save(file)
    assert found(tmp_path) == []


def test_what_is_read_otherwise_than_it_was_is_said(tmp_path):
    class_folders(tmp_path, {"cat": 5, "dog": 5})
    before = json.loads(json.dumps(reading_document(opened(tmp_path))))
    assert reading_changes(before, reading_document(opened(tmp_path))) == []
    assert reading_changes(None, before) == []  # a record of an earlier version
    now = reading_document(opened(tmp_path, val_fraction=0.4))
    (told,) = reading_changes(before, now)
    assert told == f"its split is {now['split']!r} instead of {before['split']!r}"
    assert reading_changes(
        {**before, "mask_code": ["0: a", "1: b"]}, {**before, "mask_code": ["0: a", "2: b"]}
    ) == ["masks are read otherwise: 2: b instead of 1: b"]
