"""Tar shards and Parquet files as people have them: what is in each half, or a refusal whose remedy works."""

import itertools
import json
import tarfile

import pytest

from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.packed_sets import add, png
from tests.data.situations.packed import NAMES, parquet, shard

from .read import opened


def assert_right(root, train, val):
    dataset, heard = opened(root, SampleKind.CLASS)
    assert (len(dataset.train), len(dataset.val)) == (train, val)
    for split in (dataset.train, dataset.val):
        for index in range(len(split)):
            request = split.request(index)
            number = int(
                "".join(
                    filter(
                        str.isdigit, request.name.rpartition("/")[2].rpartition(":")[2].split(".png")[0][-3:]
                    )
                )
            )
            assert dataset.classes[request.label] == NAMES[number % 3]
    return dataset, heard


NAMES_OF_SPLITS = [
    ("train-0000", "val-0000"),
    ("imagenet12k-train-0000", "imagenet12k-validation-0000"),
    ("birds_training_00", "birds_dev_00"),
    ("data/train/0000", "data/validation/0000"),
    ("my-data-train-00000-of-00001", "my-data-validation-00000-of-00001"),
    ("plain_text/train-00000-of-00001", "plain_text/test-00000-of-00001"),
    ("default/train/0000", "default/validation/0000"),
    ("snapshots/0123abcd/data/train-0", "snapshots/0123abcd/data/validation-0"),
]


@pytest.mark.parametrize(
    ("names", "kind"), [*zip(NAMES_OF_SPLITS, itertools.cycle(["tar", "parquet"]), strict=False)]
)
def test_the_split_of_a_file_is_a_word_of_its_name_or_of_its_folder(tmp_path, names, kind):
    train, val = names
    write = shard if kind == "tar" else parquet
    write(tmp_path / f"{train}.{kind}", 9)
    write(tmp_path / f"{val}.{kind}", 6)
    (tmp_path / "README.md").write_text("x")
    dataset, _ = assert_right(tmp_path, 9, 6)
    assert dataset.reading.split
    assert [each.count for each in dataset.reading.left_out] == [1]


def test_a_file_without_a_split_beside_others_is_left_out_with_a_word(tmp_path):
    shard(tmp_path / "train-0.tar", 9)
    shard(tmp_path / "val-0.tar", 6)
    shard(tmp_path / "extra.tar", 3)
    _, heard = assert_right(tmp_path, 9, 6)
    assert any("extra.tar has no split in its name" in line for line in heard)


@pytest.mark.parametrize("key", ["street.{:03}", "a.b.{:03}"])
def test_keys_with_dots_lose_no_sample(tmp_path, key):
    shard(tmp_path / "train-0.tar", 9, key)
    shard(tmp_path / "val-0.tar", 6, key)
    assert_right(tmp_path, 9, 6)


def test_labels_by_other_keys_of_json_are_read(tmp_path):
    for name, count in (("train-0.tar", 9), ("val-0.tar", 6)):
        with tarfile.open(tmp_path / name, "w") as tar:
            for number in range(count):
                add(tar, f"{number}.png", png(number))
                add(tar, f"{number}.json", json.dumps({"class_name": NAMES[number % 3]}).encode())
    assert_right(tmp_path, 9, 6)


@pytest.mark.parametrize("words", [NAMES, ("0", "1", "2")])
def test_labels_in_members_of_text_are_read_as_words_or_numbers(tmp_path, words):
    for name, count in (("train-0.tar", 9), ("val-0.tar", 6)):
        with tarfile.open(tmp_path / name, "w") as tar:
            for number in range(count):
                add(tar, f"{number}.png", png(number))
                add(tar, f"{number}.txt", f"{words[number % 3]}\n".encode())
    if words != NAMES:
        (tmp_path / "classes.txt").write_text("\n".join(NAMES))
    _, heard = assert_right(tmp_path, 9, 6)
    assert not heard


def test_the_text_of_a_sample_with_a_label_is_no_label(tmp_path):
    for name, count in (("train-0.tar", 9), ("val-0.tar", 6)):
        with tarfile.open(tmp_path / name, "w") as tar:
            for number in range(count):
                add(tar, f"{number}.png", png(number))
                add(tar, f"{number}.cls", NAMES[number % 3].encode())
                add(tar, f"{number}.txt", f"picture {number}".encode())
    with tarfile.open(tmp_path / "train-1.tar", "w") as tar:
        for number in range(9, 109):
            add(tar, f"{number}.png", png(number))
            add(tar, f"{number}.cls", NAMES[number % 3].encode())
        add(tar, "109.png", png(9))
        add(tar, "109.txt", b"a caption")
    dataset, heard = assert_right(tmp_path, 109, 6)
    assert [problem.reason for problem in dataset.problems] == ["has no label"]
    assert any("9 members of other kinds: .txt" in line for line in heard)


def test_captions_are_no_classes_and_their_images_are_read_alone(tmp_path):
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for number in range(9):
            add(tar, f"{number}.png", png(number))
            add(tar, f"{number}.txt", f"a photograph of {number} {NAMES[number % 3]}s".encode())
    with pytest.raises(
        DataError, match=r"9 texts of 9 images in \.txt members:\n  captions: .*\n  classes: 9"
    ) as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "--model diffusion_unet" in caught.value.hint
    assert ".cls" in caught.value.hint
    dataset, _ = opened(tmp_path, SampleKind.IMAGE)
    assert len(dataset.train) + len(dataset.val) == 9


def test_shards_without_labels_say_where_labels_are_looked_for(tmp_path):
    shard(tmp_path / "train-0.tar", 9, ending="caption")
    with pytest.raises(DataError, match="images alone, but the model needs images in classes"):
        opened(tmp_path, SampleKind.CLASS)
    shard(tmp_path / "train-0.tar", 9)
    shard(tmp_path / "val-0.tar", 6)
    assert_right(tmp_path, 9, 6)


def test_a_class_file_may_begin_with_a_byte_order_mark(tmp_path):
    shard(tmp_path / "train-0.tar", 9)
    shard(tmp_path / "val-0.tar", 6)
    (tmp_path / "classes.txt").write_text("\n".join(NAMES), "utf-8-sig")
    assert assert_right(tmp_path, 9, 6)[0].classes == NAMES


def test_files_that_declare_classes_in_another_order_agree_by_name(tmp_path):
    parquet(tmp_path / "train-0.parquet", 9)
    parquet(tmp_path / "validation-0.parquet", 6, names=("dog", "cow", "cat"))
    assert_right(tmp_path, 9, 6)


def test_a_test_half_with_hidden_labels_is_no_validation_half(tmp_path):
    parquet(tmp_path / "train-0.parquet", 12)
    parquet(tmp_path / "test-0.parquet", 6, labels=[-1] * 6)
    dataset, _ = opened(tmp_path, SampleKind.CLASS)
    assert (len(dataset.train) + len(dataset.val), len(dataset.reading.test)) == (12, 1)


def test_of_two_columns_with_classes_the_one_of_a_usual_name_is_read_and_that_is_said(tmp_path):
    parquet(tmp_path / "train-0.parquet", 6, label="fine_label", more=["coarse_label"])
    parquet(tmp_path / "val-0.parquet", 3, label="fine_label", more=["coarse_label"])
    dataset, _ = assert_right(tmp_path, 6, 3)
    assert (
        "the labels are those of the column fine_label; coarse_label has classes, too, and is not read"
        in dataset.warnings
    )


def test_two_columns_with_classes_and_no_usual_name_are_refused_until_one_has_it(tmp_path):
    parquet(tmp_path / "train-0.parquet", 6, label="species", more=["family"])
    with pytest.raises(DataError, match="may be in family or in species") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "rename_column" in caught.value.hint
    assert len(opened(tmp_path, SampleKind.IMAGE)[0].train) == 5
    parquet(tmp_path / "train-0.parquet", 6, label="label", more=["family"])
    assert opened(tmp_path, SampleKind.CLASS)[0].classes == NAMES


def test_several_sets_in_one_folder_are_refused_and_one_of_them_is_read(tmp_path):
    for config in ("small", "large"):
        parquet(tmp_path / config / "train-0.parquet", 9)
        parquet(tmp_path / config / "validation-0.parquet", 6)
    with pytest.raises(DataError, match="2 folders with sets of their own") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert str(tmp_path / "large") in caught.value.hint
    assert_right(tmp_path / "large", 9, 6)
