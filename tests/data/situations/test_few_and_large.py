"""Sets of very few or very large pictures, and masks of 0 and 255 in the folders of VOC."""

import numpy as np
import pytest
from PIL import Image

from mptui.errors import DataError
from mptui.registry.names import SampleKind

from .read import opened


def pair(root, number, images="images", masks="masks"):
    for folder in (images, masks):
        (root / folder).mkdir(exist_ok=True)
    mask = np.zeros((40, 48), np.uint8)
    mask[10:20, 10 : 25 + number] = 255
    Image.fromarray(mask).save(root / images / f"{number}.jpg")
    Image.fromarray(mask).save(root / masks / f"{number}.png")


def test_a_single_pair_is_refused_and_a_second_helps(tmp_path):
    pair(tmp_path, 0)
    with pytest.raises(DataError, match=r"left for validation \(1 of 1") as caught:
        opened(tmp_path, SampleKind.MASK)
    assert "a set with masks, needs two" in caught.value.hint
    pair(tmp_path, 1)
    dataset, _ = opened(tmp_path, SampleKind.MASK)
    assert (len(dataset.train), len(dataset.val)) == (1, 1)


def test_a_very_large_picture_is_named_and_left_out_by_the_budget(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (40, 30), (90, 9, 9)).save(tmp_path / name / f"{number}.png")
    Image.new("1", (8000, 8000)).save(tmp_path / "a" / "mosaic.png")
    with pytest.raises(DataError, match=r"mosaic\.png: 8000x8000 pixels is too large") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "data.bad_sample_budget" in caught.value.hint
    dataset, _ = opened(tmp_path, SampleKind.CLASS, bad_sample_budget=0.1)
    assert len(dataset.train) + len(dataset.val) == 10
    assert [problem.path for problem in dataset.problems] == [str(tmp_path / "a" / "mosaic.png")]


def test_masks_of_0_and_255_in_the_folders_of_voc_have_two_classes(tmp_path):
    for number in range(6):
        pair(tmp_path, number, "JPEGImages", "SegmentationClass")
    dataset, _ = opened(tmp_path, SampleKind.MASK)
    assert dataset.classes == ("background", "foreground")
    assert not dataset.has_ignored
