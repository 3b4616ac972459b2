"""Class folders and images alone as people have them: each half, or a refusal whose remedy works."""

import json
import shutil
import unicodedata

import pytest
from PIL import Image

from mptui.errors import DataError
from mptui.registry.names import SampleKind

from .pictures import photos, put
from .read import images_in, labelled, opened

NFC, NFD = (unicodedata.normalize(form, "Käfer") for form in ("NFC", "NFD"))


def assert_right(root, train, val, **settings):
    """Check which class each file of the halves has; `train` and `val` give the folders of each class."""
    dataset, heard = opened(root, SampleKind.CLASS, **settings)
    assert dataset.classes == tuple(train)
    for split, folders in ((dataset.train, train), (dataset.val, val)):
        expected = {}
        for number, name in enumerate(train):
            if files := [
                file for folder in folders.get(name, "").split() for file in images_in(root, folder)
            ]:
                expected[number] = sorted(files)
        if folders is not None and val:
            assert labelled(root, split) == expected
    return dataset, heard


def both(name, train, val):
    return {f"{name}{end}": f"{train}/{end}" for end in "ab"}, {
        f"{name}{end}": f"{val}/{end}" for end in "ab"
    }


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("train", "val"),
        ("training_set", "test_set"),
        ("train2017", "val2017"),
        ("Train", "Validation"),
        ("training", "dev"),
        ("seg_train", "seg_test"),
        ("birds-train", "birds-valid"),
        ("trainset", "testset"),
        ("traincrop", "valcrop"),
    ],
)
def test_words_of_splits_are_known_with_affixes(tmp_path, train, val):
    photos(tmp_path, f"{train}/a:4 {train}/b:3 {val}/a:2 {val}/b:2")
    dataset, _ = assert_right(tmp_path, *both("", train, val))
    assert dataset.reading.split == f"folders {train} and {val}"


def test_splits_in_folders_of_the_same_name_and_one_without_labels(tmp_path):
    photos(tmp_path, "seg_train/seg_train/a:3 seg_train/seg_train/b:3 seg_test/seg_test/a:2")
    photos(tmp_path, "seg_test/seg_test/b:2 seg_pred/seg_pred:5")
    dataset, _ = assert_right(tmp_path, *both("", "seg_train/seg_train", "seg_test/seg_test"))
    assert {each.reason: each.count for each in dataset.reading.left_out} == {
        "lies beside the folders of the splits": 5
    }


def test_a_test_half_is_not_read_where_there_is_a_validation_half(tmp_path):
    photos(tmp_path, "train/a:3 train/b:3 val/a:2 val/b:2 test/a:4 test/b:4")
    dataset, _ = assert_right(tmp_path, *both("", "train", "val"))
    assert len(dataset.reading.test) == 8


@pytest.mark.parametrize(
    "classes", [("bus", "train"), ("bullet_train", "crash_test"), ("plane", "test_bench")]
)
def test_classes_may_have_words_of_splits_in_their_names(tmp_path, classes):
    photos(tmp_path, " ".join(f"{name}:4" for name in classes))
    dataset, _ = opened(tmp_path, SampleKind.CLASS)
    assert dataset.classes == classes


def test_an_index_by_the_first_letter_is_no_class(tmp_path):
    for half, count in (("train", 4), ("val", 2)):
        photos(tmp_path, " ".join(f"{half}/{each}:{count}" for each in ("a/airfield", "a/alley", "b/beach")))
    names = ("a/airfield", "a/alley", "b/beach")
    assert_right(tmp_path, {name: f"train/{name}" for name in names}, {name: f"val/{name}" for name in names})


def test_inner_folders_of_one_name_are_no_classes(tmp_path):
    photos(tmp_path, "train/a/images:3 train/b/images:3 val/a/images:1 val/b/images:1")
    assert_right(
        tmp_path,
        {"a": "train/a/images", "b": "train/b/images"},
        {"a": "val/a/images", "b": "val/b/images"},
    )


def test_two_levels_of_classes_are_refused_and_the_setting_decides(tmp_path):
    for half, count in (("train", 3), ("val", 2)):
        inner = ("birds/owl", "birds/wren", "fish/cod", "fish/eel")
        photos(tmp_path, " ".join(f"{half}/{name}:{count}" for name in inner))
    with pytest.raises(DataError, match=r"outer: 2 classes.*\n.*inner: 4 classes") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert caught.value.exit_code == 3
    assert "data.class_folders=outer" in caught.value.hint
    inner = ("birds/owl", "birds/wren", "fish/cod", "fish/eel")
    assert_right(
        tmp_path,
        {name: f"train/{name}" for name in inner},
        {name: f"val/{name}" for name in inner},
        class_folders="inner",
    )
    outer = {"birds": "{0}/birds/owl {0}/birds/wren", "fish": "{0}/fish/cod {0}/fish/eel"}
    halves = ({name: at.format(half) for name, at in outer.items()} for half in ("train", "val"))
    assert_right(tmp_path, *halves, class_folders="outer")


def sorted_into_classes(root):
    for half in ("train", "test"):
        for number, file in enumerate(sorted((root / half).glob("*.png"))):
            (root / half / "ab"[number % 2]).mkdir(exist_ok=True)
            file.rename(root / half / "ab"[number % 2] / file.name)


def test_splits_without_class_folders_are_refused_and_not_two_classes(tmp_path):
    photos(tmp_path, "train:6 test:4")
    with pytest.raises(DataError, match=r"train are splits.*\n.*classes") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "class folders" in caught.value.hint
    sorted_into_classes(tmp_path)
    assert_right(tmp_path, *both("", "train", "test"))


def test_a_list_beside_splits_is_offered_and_read(tmp_path):
    photos(tmp_path, "train:6 test:4")
    lines = [f"{number}.png,{'ab'[number % 2]}" for number in range(6)]
    (tmp_path / "train.csv").write_text("id,label\n" + "\n".join(lines))
    with pytest.raises(DataError) as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert "train.csv" in caught.value.hint
    dataset, _ = opened(tmp_path / "train.csv", SampleKind.CLASS)
    assert (dataset.classes, len(dataset.train) + len(dataset.val)) == (("a", "b"), 6)


def move_loose(root):
    for file in root.glob("*.png"):
        file.unlink()


def lower_case(root):
    for name in ("cat", "dog"):
        (root / "val" / name.title()).rename(root / "val" / f"{name}_")
        (root / "val" / f"{name}_").rename(root / "val" / name)


def remove_val(root):
    shutil.rmtree(root / "val")


def remove_link(root):
    (root / "a" / "gone.png").unlink()


@pytest.mark.parametrize(
    ("folders", "said", "remedy", "classes"),
    [
        ("a:6 b:6 .:5", "beside the class folders", move_loose, ("a", "b")),
        ("train/a:6 train/b:6 val:4", "no class folders with images", remove_val, ("a", "b")),
        (
            "train/cat:4 train/dog:4 val/Cat:2 val/Dog:2",
            r"that training lacks: Cat, Dog\n  classes of training that differ in capitals alone: cat, dog",
            lower_case,
            ("cat", "dog"),
        ),
        (
            "train_a/x:4 train_a/y:4 train_b/x:4 val_a/x:2 val_b/x:2 val_a/y:2",
            "two folders of one split",
            None,
            (),
        ),
        (
            "traincrop:4 valcrop:4",
            r"traincrop and valcrop are splits by name",
            lambda root: photos(root, "traincrop/a:2 traincrop/b:2 valcrop/a:1 valcrop/b:1"),
            ("a", "b"),
        ),
        ("a:4", "only one class folder", lambda root: photos(root, "b:4"), ("a", "b")),
    ],
)
def test_what_is_no_set_of_classes_is_refused_and_the_remedy_works(tmp_path, folders, said, remedy, classes):
    photos(tmp_path, folders)
    with pytest.raises(DataError, match=said):
        opened(tmp_path, SampleKind.CLASS)
    if remedy is not None:
        remedy(tmp_path)
        assert opened(tmp_path, SampleKind.CLASS)[0].classes == classes


def test_a_folder_around_the_classes_is_named(tmp_path):
    photos(tmp_path, "flowers/a:5 flowers/b:5")
    with pytest.raises(DataError, match="only one class") as caught:
        opened(tmp_path, SampleKind.CLASS)
    assert str(tmp_path / "flowers") in caught.value.hint
    assert opened(tmp_path / "flowers", SampleKind.CLASS)[0].classes == ("a", "b")


def test_few_images_beside_class_folders_are_left_out_with_a_word(tmp_path):
    photos(tmp_path, "a:6 b:6 .:1")
    _, heard = opened(tmp_path, SampleKind.CLASS)
    assert any("0.png lies beside the class folders" in line for line in heard)


def test_a_broken_link_counts_as_a_sample(tmp_path):
    photos(tmp_path, "a:5 b:5")
    (tmp_path / "a" / "gone.png").symlink_to("/nowhere.png")
    with pytest.raises(DataError, match=r"gone\.png"):
        opened(tmp_path, SampleKind.CLASS)
    remove_link(tmp_path)
    opened(tmp_path, SampleKind.CLASS)


def test_names_in_two_spellings_are_one_class(tmp_path):
    photos(tmp_path, f"train/{NFC}:3 train/b:3 val/{NFD}:2 val/b:2")
    dataset, _ = opened(tmp_path, SampleKind.CLASS)
    assert labelled(tmp_path, dataset.val) == {
        dataset.classes.index(NFC): images_in(tmp_path, f"val/{NFD}"),
        dataset.classes.index("b"): images_in(tmp_path, "val/b"),
    }


def test_masks_beside_photographs_are_no_photographs(tmp_path):
    photos(tmp_path, "benign:4 malignant:4")
    for folder in ("benign", "malignant"):
        for number in range(4):
            put(tmp_path / folder / f"{number}_mask.png", Image.new("L", (9, 8)))
    for kind in (SampleKind.CLASS, SampleKind.IMAGE):
        dataset, heard = opened(tmp_path, kind)
        assert len(dataset.train) + len(dataset.val) == 8
        assert any("is a mask by its name" in line for line in heard)


def test_a_link_upwards_brings_nothing_into_another_class(tmp_path):
    photos(tmp_path, "train/a:3 train/b:3 val/a:2 val/b:2")
    (tmp_path / "train" / "b" / "up").symlink_to(tmp_path)
    dataset, heard = assert_right(tmp_path, *both("", "train", "val"))
    assert any("up is a link to a folder above it" in line for line in heard)
    assert dataset.class_counts == [3, 3]


def test_a_folder_or_a_file_that_is_reached_twice_is_in_one_place(tmp_path):
    photos(tmp_path, "a:4 b:4 c:4")
    (tmp_path / "b" / "again").symlink_to(tmp_path / "c")
    (tmp_path / "b" / "linked.png").symlink_to(tmp_path / "c" / "0.png")
    (tmp_path / "z").symlink_to(tmp_path / "a")
    dataset, heard = opened(tmp_path, SampleKind.CLASS)
    assert (dataset.classes, len(dataset.train) + len(dataset.val)) == (("a", "b", "c"), 12)
    assert any("is a link to what is in the set already" in line for line in heard)


def test_classes_of_links_to_the_files_in_one_folder_are_refused_until_that_is_moved(tmp_path):
    photos(tmp_path / "set", "all:8")
    for name, numbers in (("a", range(4)), ("b", range(4, 8))):
        (tmp_path / "set" / name).mkdir()
        for number in numbers:
            (tmp_path / "set" / name / f"{number}.png").symlink_to(tmp_path / "set" / "all" / f"{number}.png")
    with pytest.raises(DataError, match=r"a has 4 links to images in all:\n  of a: .*\n  of all: ") as caught:
        opened(tmp_path / "set", SampleKind.CLASS)
    assert "move all out of it if links" in caught.value.hint
    shutil.move(tmp_path / "set" / "all", tmp_path / "files")
    for link in (tmp_path / "set").rglob("*.png"):
        link.unlink()
        link.symlink_to(tmp_path / "files" / link.name)
    dataset, _ = opened(tmp_path / "set", SampleKind.CLASS)
    assert (dataset.classes, dataset.class_counts) == (("a", "b"), [3, 3])


def test_what_mptui_wrote_is_no_data(tmp_path):
    photos(tmp_path, "a:4 b:4")
    photos(tmp_path, "runs/first/predictions:5 runs/second/samples:5")
    for run in (tmp_path / "runs").iterdir():
        (run / "events.jsonl").write_text('{"event": "run_started", "time": 1, "step": 0}\n')
        (run / "run.toml").write_text("")
    dataset, heard = opened(tmp_path, SampleKind.CLASS)
    assert (dataset.classes, len(dataset.train) + len(dataset.val)) == (("a", "b"), 8)
    assert any("was written by mptui" in line for line in heard)
    assert not any("class folders without images" in line for line in heard)
    alone, _ = opened(tmp_path, SampleKind.IMAGE)
    assert len(alone.train) + len(alone.val) == 8


def test_results_beside_the_data_are_no_data(tmp_path):
    photos(tmp_path, "a:4 b:4 overlays:3")
    lines = [json.dumps({"file": f"{number}.png", "sha256": "0" * 64}) for number in range(3)]
    (tmp_path / "overlays" / ".mptui-files.jsonl").write_text("\n".join(lines) + "\n")
    dataset, heard = opened(tmp_path, SampleKind.CLASS)
    assert (dataset.classes, len(dataset.train) + len(dataset.val)) == (("a", "b"), 8)
    assert any("was written by mptui" in line for line in heard)


def test_a_class_without_validation_images_is_named(tmp_path):
    photos(tmp_path, "train/0:4 train/90:4 train/180:4 val/0:2 val/90:2 test/0:1")
    (tmp_path / "val" / "180").mkdir()
    dataset, heard = opened(tmp_path, SampleKind.CLASS)
    assert (dataset.classes, len(dataset.val), len(dataset.reading.test)) == (("0", "90", "180"), 4, 1)
    assert "classes without validation images: 180" in heard
