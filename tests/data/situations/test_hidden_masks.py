"""Masks among photographs whose names do not say so: known by their pixels, refused, and the remedy works."""

import os
import shutil
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from mptui.data.layouts.masks_by_pixels import mask_among
from mptui.errors import DataError
from mptui.registry.names import SampleKind

from .pictures import classes_of, photo_of, photos, put
from .read import opened

SIZE = 40, 48


def photograph(number):
    """Return a noisy picture with a bright disc."""
    noise_HWC = np.random.default_rng(number).integers(0, 120, (*SIZE, 3))
    return Image.fromarray((noise_HWC + 120 * disc(number)[..., None]).astype(np.uint8))


def disc(number):
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    return (rows - 20) ** 2 + (columns - 20 - number) ** 2 < 90


def mask(number):
    return Image.fromarray(disc(number).astype(np.uint8) * 255)


def fill(root, masks, images="{}.png", save=mask):
    """Save five photographs and masks in each folder; `{}` in the names is their number."""
    for start, folder in enumerate("ab"):
        for number in range(5 * start, 5 * start + 5):
            put(root / folder / images.format(number), photograph(number))
            put(root / masks.format(number, folder=folder), save(number))


NAMES = {
    "affix": ("{}.png", "{folder}/{}_roi.png"),
    "numbered": ("{}.png", "{folder}/{}_roi_1.png"),
    "ending": ("{}.jpg", "{folder}/{}.png"),
    "with loss": ("{}.png", "{folder}/{} m.jpg"),
    "a folder": ("{}.png", "c/{}.png"),
}


def renamed(root, masks):
    """Rename each mask as its image with _mask at the end."""
    for number in range(10):
        folder = "ab"[number // 5]
        file = root / masks.format(number, folder=folder)
        file.rename(root / folder / f"{number}_mask{file.suffix}")


@pytest.mark.parametrize("name", NAMES)
def test_masks_among_photographs_are_refused_and_the_remedies_work(tmp_path, name):
    images, masks = NAMES[name]
    fill(tmp_path, masks, images)
    two = r"class folders: 20 images.*\n  images and masks: by its pixels, .* is the mask of [ab]/\d"
    for kind in (SampleKind.CLASS, SampleKind.IMAGE):
        with pytest.raises(DataError, match=two) as caught:
            opened(tmp_path, kind)
        assert caught.value.exit_code == 3
    as_they_are, _ = opened(tmp_path, SampleKind.CLASS, class_folders="outer")
    assert len(as_they_are.train) + len(as_they_are.val) == 20
    renamed(tmp_path, masks)
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    for kind in SampleKind:
        dataset, _ = opened(tmp_path, kind)
        assert len(dataset.train) + len(dataset.val) == 10


def drawing(number):
    return Image.fromarray(np.pad(np.asarray(mask(number)), 1))


def square(number):
    return mask(number).resize((32, 32), Image.Resampling.NEAREST)


@pytest.mark.parametrize(
    ("masks", "save", "kinds"),
    [
        ("c/{}.png", drawing, (SampleKind.CLASS, SampleKind.IMAGE)),  # of another size
        ("c/{}.bmp", mask, (SampleKind.CLASS, SampleKind.IMAGE)),  # as large a file as its photograph
        ("c/x{}.png", mask, (SampleKind.CLASS, SampleKind.IMAGE)),  # of another name
        ("c/x{}.png", square, (SampleKind.IMAGE,)),  # of another name and shape: a class, perhaps
        ("c/{}.png", square, (SampleKind.IMAGE,)),
    ],
)
def test_a_folder_of_masks_of_other_names_or_sizes_is_refused_until_it_lies_elsewhere(
    tmp_path, masks, save, kinds
):
    fill(tmp_path / "set", masks, save=save)
    for kind in kinds:
        with pytest.raises(DataError, match=r"images and masks: by its pixels, c/.* is the mask of [ab]/"):
            opened(tmp_path / "set", kind)
    assert opened(tmp_path / "set", SampleKind.CLASS, class_folders="outer")[0].classes == ("a", "b", "c")
    names = "\n".join(f"{'ab'[number // 5]}/{number}.png" for number in range(10))
    (tmp_path / "set" / "photographs.csv").write_text(f"image\n{names}\n")
    named, _ = opened(tmp_path / "set" / "photographs.csv", SampleKind.IMAGE)
    assert len(named.train) + len(named.val) == 10
    (tmp_path / "set" / "c").rename(tmp_path / "c")
    for kind in kinds:
        dataset, _ = opened(tmp_path / "set", kind)
        assert len(dataset.train) + len(dataset.val) == 10


@pytest.mark.parametrize(
    "masks", [("{}_roi.png",), pytest.param(("{}_roi.png",) * 2, marks=pytest.mark.slow), ("z/{}.png",) * 2]
)
def test_few_masks_among_many_photographs_are_refused(tmp_path, masks):
    put(tmp_path / "0.png", photograph(0))
    for number in range(1, 1500):
        os.link(tmp_path / "0.png", tmp_path / f"{number}.png")
    for number, name in enumerate(masks, 17):
        put(tmp_path / name.format(number), mask(0))
    with pytest.raises(DataError, match=r"images and masks: by its pixels, .*1[78].* is the mask of 1[78]"):
        opened(tmp_path, SampleKind.IMAGE)


@pytest.mark.parametrize("patient", ["id{}", "a/id{}", "b/x/{}"])
def test_masks_in_a_folder_of_masks_beside_one_of_images_are_left_out_with_a_word(tmp_path, patient):
    photos(tmp_path, "a:4 b:4")
    for number in range(4):
        place = patient.format(number)
        put(tmp_path / place / "images" / f"x{number}.png", photograph(number))
        put(tmp_path / place / "masks" / "1.png", mask(number))
        put(tmp_path / place / "masks" / "2.png", mask(number))
    kinds = (SampleKind.IMAGE,) if patient == "id{}" else (SampleKind.CLASS, SampleKind.IMAGE)
    for kind in kinds:
        dataset, heard = opened(tmp_path, kind)
        assert len(dataset.train) + len(dataset.val) == 12
        assert any("left out, 8 files" in line and "lies in a folder of masks" in line for line in heard)


def grey(number):
    """Return another photograph, of fewer bytes."""
    return photograph(number + 50).convert("L").resize((24, 20)).resize(SIZE[::-1])


@pytest.mark.parametrize(
    ("masks", "save"),
    [
        ("{folder}/{}_2.png", photograph),  # a second photograph
        ("c/{}.png", grey),
        ("c/{}.png", square),  # of another shape
        ("c/x{}.png", square),
        ("{folder}/{}_roi.png", lambda number: grey(number) if number == 3 else mask(number)),
        ("c/{}.png", lambda number: Image.new("L", SIZE[::-1])),  # empty, whatever it is
    ],
)
def test_other_pictures_beside_photographs_are_photographs(tmp_path, masks, save):
    fill(tmp_path, masks, save=save)
    dataset, _ = opened(tmp_path, SampleKind.CLASS)
    assert len(dataset.train) + len(dataset.val) == 20


def test_pictures_that_all_have_few_values_are_no_masks(tmp_path):
    for folder in "abc":
        for number in range(5):
            put(tmp_path / folder / f"{number}.png", mask(number + ord(folder) - 97))
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == ("a", "b", "c")


class _ManyPaths(Sequence[str]):
    """A million paths of a few files."""

    def __init__(self, root):
        self.root, self.seen = root, 0

    def __len__(self):
        return 1_000_000

    def __getitem__(self, row):
        self.seen += 1
        return f"{self.root}/{'ab'[row // 5 % 2]}/{row % 10}{'_roi' * (row // 10 % 2)}.png"


def test_of_a_large_set_a_sample_is_looked_at(tmp_path):
    fill(tmp_path, "{folder}/{}_roi.png")
    paths = _ManyPaths(tmp_path)
    pair = mask_among(paths, lambda: False)
    assert pair is not None
    assert pair.mask == pair.photograph.replace(".png", "_roi.png")
    assert paths.seen < 1500


@pytest.mark.parametrize("name", ["{}.bmp", "a/{}.tif", "a/b{}/x.tif"])
def test_images_of_any_ending_and_no_masks_are_read_alone(tmp_path, name):
    for number in range(6):
        put(tmp_path / name.format(number), photo_of(classes_of(number)))
    assert len(opened(tmp_path, SampleKind.IMAGE)[0].train) == 5
