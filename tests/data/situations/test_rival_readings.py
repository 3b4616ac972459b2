"""Folders that two layouts explain: the second is seen by what the first leaves out, or labels otherwise."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.packed_sets import pairs_to_tar
from tests.data.situations.packed import parquet, shard

from .pictures import pairs, photos
from .read import labelled, opened


def class_folders(root):
    photos(root, "a:4 b:4")


def halves(root):
    photos(root, "train/a:4 train/b:4 val/a:2 val/b:2")


def masks(root):
    pairs(root, "images/{}.png", "masks/{}.png")


def tar_files(root):
    shard(root / "more" / "train-0.tar", 6)
    shard(root / "more" / "val-0.tar", 6)


def parquet_files(root):
    parquet(root / "more" / "train-0.parquet", 6)
    parquet(root / "more" / "val-0.parquet", 6)


def tar_with_masks(root):
    pairs(root / "packed", "images/{}.png", "masks/{}.png")
    pairs_to_tar(root / "packed", root / "more")
    shutil.rmtree(root / "packed")


@pytest.mark.parametrize(
    ("first", "second", "kind", "names"),
    [
        (class_folders, tar_files, SampleKind.CLASS, ("class folders", "tar shards")),
        (class_folders, parquet_files, SampleKind.CLASS, ("class folders", "Parquet files")),
        (halves, tar_files, SampleKind.CLASS, ("class folders", "tar shards")),
        (masks, tar_with_masks, SampleKind.MASK, ("images and masks", "tar shards")),
        (tar_files, parquet_files, SampleKind.CLASS, ("tar shards", "Parquet files")),
    ],
)
def test_packed_files_beside_another_layout_are_refused_and_each_can_be_had(
    tmp_path, first, second, kind, names
):
    first(tmp_path)
    alone, before = opened(tmp_path, kind)[0], {*tmp_path.rglob("*")}
    second(tmp_path)
    with pytest.raises(DataError, match=rf"two layouts.*\n  {names[0]}: .*\n  {names[1]}: .*more/") as caught:
        opened(tmp_path, kind)
    assert caught.value.exit_code == 3
    if first is not tar_files:
        given = str(tmp_path / "more")
        assert f"--data {given}" in caught.value.hint
        assert len(opened(given, kind)[0].train) >= 4
    tmp_path.with_name("out").mkdir(exist_ok=True)
    for file in {*tmp_path.rglob("*.tar"), *tmp_path.rglob("*.parquet")} - before:
        file.rename(tmp_path.with_name("out") / f"{tmp_path.name}{file.name}")
    assert len(opened(tmp_path, kind)[0].train) == len(alone.train)


def test_a_setting_says_that_the_folders_are_the_classes(tmp_path):
    class_folders(tmp_path)
    tar_files(tmp_path)
    assert opened(tmp_path, SampleKind.CLASS, class_folders="outer")[0].classes == ("a", "b")


def test_the_archive_that_a_folder_was_unpacked_from_is_no_second_reading(tmp_path):
    class_folders(tmp_path)
    shutil.make_archive(str(tmp_path / "all"), "tar", tmp_path, "a")
    for kind in (SampleKind.CLASS, SampleKind.IMAGE):
        dataset, heard = opened(tmp_path, kind)
        assert any("left out 1 file that isn't an image" in line for line in heard)
    assert len(dataset.train) + len(dataset.val) == 8


def listed(root, labels, name="labels.csv", column="label"):
    """Write a list of the images of two folders."""
    lines = [
        f"{folder}/{number}.png,{label}"
        for folder in "ab"
        for number, label in zip(range(4), labels[folder], strict=True)
    ]
    (root / name).write_text(f"image,{column}\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "labels",
    [
        {"a": ("cat", "dog") * 2, "b": ("dog", "cat") * 2},  # the folders are batches
        {"a": ("pet",) * 4, "b": ("pet",) * 4},
        {"a": ("cat", "dog") * 2, "b": ("owl",) * 4},
    ],
)
def test_a_list_that_groups_the_images_of_class_folders_otherwise_is_refused(tmp_path, labels):
    class_folders(tmp_path)
    listed(tmp_path, labels)
    with pytest.raises(
        DataError, match=r"class folders: 8 images.*a, b\n  list of images: labels\.csv"
    ) as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "data.class_folders=outer" in caught.value.hint
    assert f"--data {tmp_path / 'labels.csv'}" in caught.value.hint
    assert opened(tmp_path, SampleKind.CLASS, class_folders="outer")[0].classes == ("a", "b")
    if len({*labels["a"], *labels["b"]}) > 1:
        named = opened(tmp_path / "labels.csv", SampleKind.CLASS)[0]
        assert named.classes == tuple(sorted({*labels["a"], *labels["b"]}))
    else:
        with pytest.raises(DataError, match="only one class: pet"):
            opened(tmp_path / "labels.csv", SampleKind.CLASS)
    (tmp_path / "labels.csv").unlink()
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "column"),
    [
        ({"a": ("cat",) * 4, "b": ("dog",) * 4}, "label"),  # it says the same
        ({"a": tuple("1234"), "b": tuple("5678")}, "patient"),  # it isn't called a label
    ],
)
def test_a_list_that_says_no_other_thing_is_no_second_reading(tmp_path, labels, column):
    class_folders(tmp_path)
    listed(tmp_path, labels, column=column)
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == ("a", "b")


def test_a_list_of_other_masks_is_refused(tmp_path):
    masks(tmp_path)
    pairs(tmp_path, "images/{}.png", "corrected/{}.png")
    lines = [f"images/{number}.png,masks/{number}.png" for number in range(5)]
    (tmp_path / "masks.csv").write_text("image,mask\n" + "\n".join(lines))
    assert len(opened(tmp_path, SampleKind.MASK)[0].train) == 4
    (tmp_path / "masks.csv").write_text("image,mask\n" + "\n".join(lines).replace("masks/", "corrected/"))
    with pytest.raises(DataError, match=r"images and masks: 5 images\n  list of images: masks\.csv"):
        opened(tmp_path, SampleKind.MASK)
    assert len(opened(tmp_path / "masks.csv", SampleKind.MASK)[0].train) == 4


@pytest.mark.parametrize("kind", [SampleKind.CLASS, SampleKind.IMAGE])
def test_a_list_by_which_some_pictures_are_masks_is_refused(tmp_path, kind):
    pairs(tmp_path, "pictures/{}.png", "drawn/{}.png")
    assert opened(tmp_path, kind)
    lines = [f"pictures/{number}.png,drawn/{number}.png" for number in range(5)]
    (tmp_path / "masks.csv").write_text("image,mask\n" + "\n".join(lines))
    with pytest.raises(DataError, match=r"10 images.*\n  list of images: masks\.csv: drawn/0\.png is a mask"):
        opened(tmp_path, kind)
    assert len(opened(tmp_path / "masks.csv", SampleKind.MASK)[0].train) == 4


def test_class_folders_beside_images_and_masks_serve_no_network_without_a_word(tmp_path):
    class_folders(tmp_path)
    masks(tmp_path)
    dataset, heard = opened(tmp_path, SampleKind.MASK)
    assert labelled(tmp_path, dataset.train)[0][0].startswith("images/")
    assert any("left out, 8 files" in line for line in heard)
    with pytest.raises(DataError, match="has images with masks, but the model needs images in classes"):
        opened(tmp_path, SampleKind.CLASS)
    shutil.rmtree(tmp_path / "images")
    shutil.rmtree(tmp_path / "masks")
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == ("a", "b")


def test_masks_beside_images_in_class_folders_serve_both_networks(tmp_path):
    class_folders(tmp_path)
    for folder in "ab":
        for number in range(4):
            Image.new("1", (9, 8), number % 2).save(tmp_path / folder / f"{number}_mask.png")
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == ("a", "b")
    assert opened(tmp_path, SampleKind.MASK)[0].classes == ("background", "foreground")


def test_splits_of_images_and_masks_are_said_to_be_for_masks(tmp_path):
    for half in ("train", "val"):
        pairs(tmp_path / half, "images/{}.png", "masks/{}.png")
    with pytest.raises(DataError, match="has images with masks") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "choose --model unet for masks" in caught.value.hint
    assert opened(tmp_path, SampleKind.MASK)[0].reading.split == "folders train and val"


def lists_of(root, folder, names, **numbers):
    """Write a list of images for each split into a folder: the numbers of its images."""
    (root / folder).mkdir(exist_ok=True)
    for split, rows in numbers.items():
        lines = (names.format(name="ab"[row % 2], number=row) for row in rows)
        (root / folder / f"{split}").with_suffix(".txt").write_text("\n".join(lines) + "\n")


def numbered(root, kind):
    if kind is SampleKind.MASK:
        pairs(root, "images/{}.png", "masks/{}.png", 10)
    else:
        pairs(root, "x/{}.png", "y/{}.png", 10)
        for number in range(10):
            place = root / "images" / "ab"[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            (root / f"x/{number}.png").rename(place / f"{number}.png")
        shutil.rmtree(root / "x")
        shutil.rmtree(root / "y")


@pytest.mark.parametrize(
    ("kind", "folder", "names"),
    [
        (SampleKind.MASK, ".", "{number}"),
        (SampleKind.MASK, "splits", "images/{number}.png"),
        (SampleKind.CLASS, "meta", "{name}/{number}"),
        (SampleKind.CLASS, ".", "{name}/{number}.png,{name},7"),
        (SampleKind.CLASS, ".", "{number}.png 1"),
    ],
)
def test_lists_of_images_in_a_set_are_its_split(tmp_path, kind, folder, names):
    numbered(tmp_path, kind)
    lists_of(tmp_path, folder, names, train=range(6), val=(6, 7), test=(8, 9))
    dataset, heard = opened(tmp_path, kind)
    assert [[int(Path(file).stem) for file in split.files] for split in (dataset.train, dataset.val)] == [
        sorted(range(6), key=lambda row: row % 2 if kind is SampleKind.CLASS else row),
        [6, 7],
    ]
    assert (dataset.reading.split, heard) == ("lists train.txt and val.txt", [])
    assert {Path(file).stem for file in dataset.reading.test} == {"8", "9"}


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"train1": range(6), "train2": range(2, 8), "val1": (8, 9)}, "2 lists of one split differ"),
        ({"train": range(8), "val": range(6, 10)}, "two splits have the same images"),
        ({"train": range(4), "test": (4, 5)}, "leave out 4 of 10 images"),
    ],
)
def test_lists_that_do_not_split_the_set_are_refused_until_they_are_moved(tmp_path, lists, said):
    numbered(tmp_path, SampleKind.CLASS)
    lists_of(tmp_path, "meta", "{number}", **lists)
    with pytest.raises(DataError, match=said) as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "out of it, or give --data LIST.csv" in caught.value.hint
    shutil.rmtree(tmp_path / "meta")
    assert opened(tmp_path, SampleKind.CLASS)[0].held_out


def test_a_file_that_may_say_the_split_and_is_no_list_is_named(tmp_path):
    numbered(tmp_path, SampleKind.CLASS)
    (tmp_path / "train_test_split.txt").write_text("".join(f"{row} {row % 2}\n" for row in range(100, 110)))
    dataset, heard = opened(tmp_path, SampleKind.CLASS)
    assert dataset.held_out
    assert any(line.startswith("not read: train_test_split.txt; if they say the split") for line in heard)
