"""`--data LIST.csv`: the file, the half and the class of each image, by the names that people use."""

import csv
import unicodedata
from itertools import chain

import numpy as np
import pytest
from PIL import Image

from mptui.cli.main import _exit_code
from mptui.data.layouts.table import read_table
from mptui.data.types import IGNORE
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.images import photo
from tests.data.opening import opened


def write(path, *lines):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(lines)
    return path


def save(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    photo(20, 16, seed=seed).save(path)


def halves(dataset):
    """Return (image, class) of each half, the image relative to the folder of the set."""
    found = []
    for split in (dataset.train, dataset.val):
        requests = [split.request(index) for index in range(len(split))]
        found.append(sorted((each.path.rsplit("/", 1)[1], dataset.classes[each.label]) for each in requests))
    return tuple(found)


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        save(tmp_path / "images" / f"{number}.png", number)
    return tmp_path


ROWS = [(0, "cat"), (1, "dog"), (2, "cat"), (3, "dog"), (4, "cat"), (5, "dog")]
SPLIT = ["train", "train", "train", "train", "val", "val"]
EXPECTED = [(f"{n}.png", name) for n, name in ROWS[:4]], [(f"{n}.png", name) for n, name in ROWS[4:]]


@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("image", "label"),
        ("Filename", "class"),
        ("path", "category"),
        ("img_path", "Breed"),
        ("id", "anything"),
        ("image_id", "label"),
        ("\ufefffile_name", "class"),
    ],
)
def test_columns_have_the_names_that_people_use(folder, image, label):
    lines = [(f"images/{n}.png", name, split) for (n, name), split in zip(ROWS, SPLIT, strict=True)]
    dataset = opened(write(folder / "list.csv", (image, label, "split"), *lines))
    assert halves(dataset) == EXPECTED
    assert (dataset.reading.layout, dataset.reading.split) == (
        "list of images", "column split of the list: train and val",
    )  # fmt: skip


@pytest.mark.parametrize("words", [("Training", "Validation"), ("train", "test"), ("TRAIN", "dev")])
def test_splits_have_the_words_that_people_use(folder, words):
    lines = [(n, name, words[split == "val"]) for (n, name), split in zip(ROWS, SPLIT, strict=True)]
    assert halves(opened(write(folder / "list.tsv", ("id", "label", "subset"), *lines))) == EXPECTED


@pytest.mark.parametrize(
    ("column", "train", "val"),
    [
        ("type", "train", "val"),
        ("dataset", "TRAIN", "TEST"),
        ("is_valid", "False", "True"),
        ("is_train", 1, 0),
    ],
)
def test_a_column_of_another_name_is_the_split_by_its_words(folder, column, train, val):
    lines = [
        (n, name, val if split == "val" else train) for (n, name), split in zip(ROWS, SPLIT, strict=True)
    ]
    dataset = opened(write(folder / "list.csv", ("id", "label", column), *lines))
    assert halves(dataset) == EXPECTED
    assert dataset.reading.split.startswith(f"column {column} of the list: train and ")


@pytest.mark.parametrize("written", ["{split}_images/{name}", "{name}"])
def test_folders_of_splits_in_a_list_are_its_split(tmp_path, written):
    lines = []
    for (number, name), split in zip(ROWS, SPLIT, strict=True):
        save(tmp_path / f"{split}_images" / f"{number}.png", number)
        lines.append((written.format(split=split, name=f"{number}.png"), name))
    dataset = opened(write(tmp_path / "list.csv", ("file_name", "label"), *lines))
    assert halves(dataset) == EXPECTED
    assert dataset.reading.split == "folders of the list's images: train and val"


def test_images_are_known_by_their_endings_where_no_name_says_so(folder):
    header = ("image_id", "Finding Labels", "sat_path", "Patient ID")
    lines = [(90 + n, name, f"images/{n}.png", 7) for n, name in ROWS]
    dataset = opened(write(folder / "list.csv", header, *lines))
    assert sorted(chain(*halves(dataset))) == sorted(chain(*EXPECTED))
    assert list(dataset.warnings) == ["columns of the list that are not read: image_id, Patient ID"]


def test_one_hot_columns_may_have_words_of_splits(folder):
    lines = [(n, int(name == "cat"), int(name == "dog")) for n, name in ROWS]
    dataset = opened(write(folder / "list.csv", ("id", "train", "bus"), *lines))
    assert (dataset.classes, dataset.held_out) == (("bus", "train"), True)


def test_a_list_in_a_folder_beside_finds_the_images_in_several(tmp_path):
    for number, _ in ROWS:
        save(tmp_path / f"images_part_{number % 2}" / f"{number}.png", number)
    (tmp_path / "truth").mkdir()
    dataset = opened(write(tmp_path / "truth" / "list.csv", ("image", "label"), *ROWS))
    assert sorted(chain(*halves(dataset))) == sorted(chain(*EXPECTED))
    assert any("in folders beside its own" in line for line in dataset.warnings)


def test_a_parquet_file_of_paths_is_a_list(folder):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "image_path": [f"images/{n}.png" for n, _ in ROWS],
        "label": [n for _, n in ROWS],
        "split": SPLIT,
    }
    pq.write_table(pa.table(columns), folder / "list.parquet")
    assert halves(opened(folder / "list.parquet")) == EXPECTED


def test_without_a_header_the_first_column_is_the_image(folder):
    dataset = opened(write(folder / "list.csv", *((f"images/{n}.png", name) for n, name in ROWS)))
    assert sorted(chain(*halves(dataset))) == sorted(chain(*EXPECTED))
    assert dataset.held_out


def test_numbers_are_classes_and_a_number_and_a_word_for_each_are_the_words(folder):
    path = folder / "list.csv"
    write(path, ("id", "label"), *((n, float(10 * (name == "dog"))) for n, name in ROWS))
    assert opened(path).classes == ("0", "10")
    write(path, ("id", "class_id", "class_name"), *((n, int(name == "cat"), name) for n, name in ROWS))
    assert opened(path).classes == ("cat", "dog")
    write(path, ("image", "cat", "dog"), *((n, int(name == "cat"), int(name == "dog")) for n, name in ROWS))
    assert sorted(chain(*halves(opened(path)))) == sorted(chain(*EXPECTED))


def test_the_folder_of_the_images_is_found_beside_the_list(tmp_path):
    for number in range(6):
        save(tmp_path / "train" / f"{number}.png", number)
        save(tmp_path / "test" / f"{number}.png", number)
    dataset = opened(write(tmp_path / "train.csv", ("id", "label"), *ROWS))
    assert all("/train/" in path for path in dataset.train.files)
    with pytest.raises(DataError, match=r"in two folders:\n.*test: .*\n.*train: ") as raised:
        opened(write(tmp_path / "list.csv", ("id", "label"), *ROWS))
    assert "images/1.jpg" in raised.value.hint
    dataset = opened(
        write(tmp_path / "list.csv", ("id", "label"), *((f"test/{n}", name) for n, name in ROWS))
    )
    assert all("/test/" in path for path in dataset.train.files)


def test_a_name_in_other_unicode_characters_is_found(tmp_path):
    for number in range(4):
        save(tmp_path / unicodedata.normalize("NFD", f"ü{number}.png"), number)
    lines = [(unicodedata.normalize("NFC", f"ü{number}.png"), "ab"[number % 2]) for number in range(4)]
    assert len(opened(write(tmp_path / "list.csv", ("image", "label"), *lines)).train) == 2


def test_the_split_is_that_of_class_folders_of_the_same_images(tmp_path):
    for number in range(20):
        save(tmp_path / "data" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    files = sorted((tmp_path / "data").rglob("*.png"), reverse=True)
    path = write(tmp_path / "list.csv", ("image", "label"), *((file, file.parent.name) for file in files))
    assert halves(opened(path, val_fraction=0.3)) == halves(opened(tmp_path / "data", val_fraction=0.3))


def test_masks_are_listed_and_read_by_the_class_file_beside(tmp_path):
    for number in range(4):
        save(tmp_path / "images" / f"{number}.png", number)
        (tmp_path / "masks").mkdir(exist_ok=True)
        mask = np.zeros((16, 20), np.uint8)
        mask[:4], mask[4:6] = 7, 255
        Image.fromarray(mask).save(tmp_path / "masks" / f"{number}.png")
    (tmp_path / "classes.toml").write_text("ground = 0\nthing = 7\n")
    path = write(tmp_path / "list.csv", ("image", "mask"), *((n, n) for n in range(4)))
    dataset = opened(path, kind=SampleKind.MASK, ignore_index=255)
    assert (dataset.classes, len(dataset.train)) == (("ground", "thing"), 3)
    read = dataset.train.request(0).read()
    assert np.unique(read.mask_HW, return_counts=True)[0].tolist() == [IGNORE, 0, 1]


def test_what_is_left_out_is_counted_by_its_reason(folder):
    lines = [*ROWS, (0, "cat"), (7, "dog"), (5, "dog")]
    lines[1] = (1, "")
    dataset = opened(write(folder / "list.csv", ("id", "label"), *lines), bad_sample_budget=0.5)
    assert {each.reason: list(each.files) for each in dataset.reading.left_out} == {
        "is listed again": [str(folder / "images" / f"{n}.png") for n in (0, 5)],
        "has no label": [str(folder / "images" / "1.png")],
        "no such file": ["7"],
    }


@pytest.mark.parametrize(
    ("lines", "told", "remedy"),
    [
        (
            [("photo_of", "what"), ("images/0", "cat")],
            "none of its columns is called image",
            "first line",
        ),
        (
            [("id", "a", "b"), (0, "x", "y"), (1, "x", "z")],
            "none of its columns is called label or mask",
            "rename",
        ),
        (
            [("id", "label", "class"), (0, "a", "x"), (1, "b", "x")],
            r"label: 2 classes\n  class: 1 classes",
            "remove",
        ),
        ([("id", "label", "mask"), (0, "a", "x")], "a mask and a label", "remove"),
        ([("id", "EncodedPixels"), (0, "1 2 3")], "run lengths", "PNG"),
        ([("id", "label"), (0, "0.25"), (1, "0.5")], "line 2: its label is the fraction 0.25", "its number"),
        ([("id", "label", "split"), (0, "a", "fold1")], "line 2: its split is 'fold1'", "train, val or test"),
        (
            [("id", "label"), (0, "a"), (1, "b"), (0, "b")],
            r"line 2 and list.csv, line 4 say different",
            "remove",
        ),
        (
            [("id", "label", "split"), (0, "a", "train"), (1, "b", "train"), (0, "a", "val")],
            r"train a\n  .*: val a",
            "one split",
        ),
        ([("id", "label"), (0, "a"), (1, "a")], "only one class: a", "diffusion"),
        (
            [("id", "label"), ("x", "a"), ("y", "b")],
            "no usable image for training: x: no such file",
            "images/1.jpg",
        ),
        (
            [("id", "label", "split"), (0, "cat", "train"), (1, "dog", "train"), (2, "Cat", "val")],
            r"training lacks: Cat\n.*capitals alone: cat",
            "same capitals",
        ),
        (
            [("id", "labels"), (0, "rust|scab"), (1, "scab"), (2, "rust")],
            r"several, with \| between them: 2 labels: rust, scab\n  one: 3 classes",
            "write + instead",
        ),
        (
            [("id", "tags"), *enumerate(("dry hot", "hot wet", "dry wet", "dry hot wet"))],
            "several, with blanks between them: 3 labels: dry, hot, wet",
            "one class for each image",
        ),
        ([("id", "label"), (0, "a", "b")], "line 2: 3 values, where the first line has 2", "double quotes"),
    ],
)
def test_what_can_be_read_in_two_ways_or_not_at_all_is_refused(folder, lines, told, remedy):
    with pytest.raises(DataError, match=told) as raised:
        opened(write(folder / "list.csv", *lines))
    assert remedy in raised.value.hint


def test_two_files_of_one_name_are_refused(folder):
    save(folder / "images" / "0.jpg")
    with pytest.raises(DataError, match=r"two files fit 0"):
        opened(write(folder / "list.csv", ("id", "label"), *ROWS))


@pytest.mark.parametrize(
    "place", [*(pytest.param(place, marks=pytest.mark.slow) for place in ("", "images")), "images/more"]
)
def test_a_list_in_a_folder_of_images_is_offered_and_trains(tmp_path, place, capsys):
    for number in range(6):
        save(tmp_path / place / f"{number}.png", number)
    run = [
        "run",
        "--model",
        "small_cnn",
        "--device",
        "cpu",
        "--workers",
        "0",
        "--no-compile",
        "--max-steps",
        "1",
    ]
    run += ["--set", "data.image_size=32", "--runs-dir", str(tmp_path / "runs"), "--data"]
    write(tmp_path / "sample_submission.csv", ("id", "label"), *ROWS)
    lost = write(tmp_path / "solution.csv", ("id", "label"), ("gone", "cat"))
    path = write(tmp_path / "train labels.csv", ("id", "label"), *ROWS)
    assert _exit_code([*run, str(tmp_path)], debug=False) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert f"--data '{path}'" in told
    assert str(lost) not in told
    assert _exit_code([*run, str(path)], debug=False) == 0


def test_of_a_list_that_is_only_looked_at_the_first_rows_are_read(tmp_path):
    lines = [("image", "label"), *((f"{number}.png", "cat") for number in range(9)), ("a", "row", "too long")]
    assert read_table(str(write(tmp_path / "list.csv", *lines)), 2).rows == [
        ["0.png", "cat"],
        ["1.png", "cat"],
    ]
