"""Sets that need no decision: odd names, few files, transparency; and what is no set: an archive, paths."""

import shutil

import numpy as np
import pytest
from PIL import Image

from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.situations.packed import parquet

from .pictures import classes_of, pairs, photo_of, photos, put
from .read import labelled, opened


def test_names_may_have_blanks_quotes_and_signs(tmp_path):
    names = ("class one", "ümlaut 🐞", "quo'te\"s")
    for name in names:
        for number in range(4):
            put(tmp_path / name / f"pic {number} %20 #.png", photo_of(classes_of(number)))
    dataset, heard = opened(tmp_path, SampleKind.CLASS)
    assert ({*dataset.classes}, heard) == ({*names}, [])
    assert all(len(files) == 3 for files in labelled(tmp_path, dataset.train).values())


def test_two_images_a_class_and_two_pairs_are_enough(tmp_path):
    photos(tmp_path / "classes", "a:2 b:2")
    pairs(tmp_path / "masks", "images/{}.png", "masks/{}.png", 2)
    for folder, kind, count in (("classes", SampleKind.CLASS, 2), ("masks", SampleKind.MASK, 1)):
        dataset, _ = opened(tmp_path / folder, kind)
        assert (len(dataset.train), len(dataset.val)) == (count, count)


def test_transparent_pixels_of_coloured_masks_are_the_background(tmp_path):
    for number in range(5):
        classes_HW = classes_of(number)
        put(tmp_path / f"images/{number}.png", photo_of(classes_HW))
        put(
            tmp_path / f"masks/{number}.png",
            Image.fromarray(np.array([[0] * 4, [255, 0, 0, 255]], np.uint8)[classes_HW]),
        )
    dataset, _ = opened(tmp_path, SampleKind.MASK)
    assert dataset.classes == ("#000000", "#ff0000")
    sample = dataset.train.request(0).read()
    assert np.array_equal(sample.mask_HW == 1, sample.image_HWC[..., 0] == 60)


def test_a_class_that_validation_masks_have_alone_is_named(tmp_path):
    for split, classes in (("train", 2), ("val", 3)):
        values = {0: 0, 1: 1, 2: 2}
        pairs(tmp_path / split, "images/{}.png", "masks/{}.png", 3, values=values, classes=classes)
    dataset, heard = opened(tmp_path, SampleKind.MASK)
    assert dataset.classes == ("class_0", "class_1", "class_2")
    assert "classes without a pixel in any training mask: class_2" in heard


@pytest.mark.parametrize("form", ["zip", "gztar"])
def test_an_archive_is_to_be_unpacked(tmp_path, form):
    photos(tmp_path / "set", "a:2 b:2")
    archive = shutil.make_archive(str(tmp_path / "packed"), form, tmp_path / "set")
    with pytest.raises(DataError) as caught:
        opened(archive, SampleKind.CLASS)
    assert "unpack it" in caught.value.hint
    shutil.unpack_archive(archive, tmp_path / "out")
    assert opened(tmp_path / "out", SampleKind.CLASS)[0].classes == ("a", "b")


def test_a_parquet_file_of_paths_says_that_it_lacks_the_images(tmp_path):
    parquet(tmp_path / "train-0.parquet", 6, rows=[{"bytes": None, "path": f"{n}.png"} for n in range(6)])
    with pytest.raises(DataError, match="only the path of an image, not its bytes") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "bytes of its images" in caught.value.hint
