import os
from pathlib import Path

import numpy as np
import pytest

from mptui.data.dataset import PathTable, split_by_class
from mptui.data.layouts.class_folders import find_classes
from mptui.data.layouts.known import recognize
from mptui.data.layouts.pairs import find_pairs
from mptui.data.layouts.walk import natural_key, subfolders
from mptui.errors import DataError
from mptui.registry.names import SampleKind

from .images import class_folders, pairs, photo, stripes


def names(found):
    return [Path(path).name for path in found.images]


def test_class_folders_with_training_and_validation(tmp_path):
    class_folders(tmp_path, {"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 1})
    found = find_classes(str(tmp_path))
    assert found.classes == ("cat", "dog")
    assert found.labels is not None
    assert (found.train_rows, found.labels.tolist()) == (5, [0, 0, 0, 1, 1, 0, 1])
    assert [os.path.relpath(path, tmp_path) for path in found.images][-2:] == [
        "val/cat/0.png",
        "val/dog/0.png",
    ]
    assert found.warnings == ()


@pytest.mark.parametrize("name", ["val", "valid", "validation", "test", "VAL"])
def test_names_of_the_validation_folder(tmp_path, name):
    class_folders(tmp_path, {"train/cat": 1, "train/dog": 1, f"{name}/cat": 1, f"{name}/dog": 1})
    assert find_classes(str(tmp_path)).train_rows == 2


def test_val_comes_before_test_and_a_test_without_answers_is_left_alone(tmp_path):
    class_folders(tmp_path, {"train/cat": 1, "train/dog": 1, "test": 3})
    assert len(find_classes(str(tmp_path)).images) == 2
    class_folders(tmp_path, {"val/cat": 2, "val/dog": 1, "test/cat": 4})
    assert len(find_classes(str(tmp_path)).images) == 5


def test_a_class_may_be_called_train(tmp_path):
    class_folders(tmp_path, {"bus": 1, "train": 2})
    found = find_classes(str(tmp_path))
    assert (found.classes, found.train_rows) == (("bus", "train"), 3)


def test_classes_come_in_natural_order_and_files_in_a_fixed_one(tmp_path):
    class_folders(tmp_path, {"10": 1, "9": 12, "2": 1, "a": 1})
    found = find_classes(str(tmp_path))
    assert found.classes == ("2", "9", "10", "a")
    assert names(found)[1:5] == ["0.png", "1.png", "10.png", "11.png"]


def test_natural_order_tells_all_names_apart():
    assert sorted(["x10", "x9", "X1", "x01", "x1"], key=natural_key)[-2:] == ["x9", "x10"]
    assert len({natural_key(name) for name in ["1", "01", "A", "a", "²"]}) == 5


def test_what_is_no_image_or_hidden_is_left_out(tmp_path):
    class_folders(tmp_path, {"cat": 1, "dog": 1, "__MACOSX": 1, ".git": 1, "cat/deeper": 2})
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "cat" / ".hidden.png").write_text("x")
    (tmp_path / "cat" / "README").write_text("x")
    photo().save(tmp_path / "cat" / "UPPER.JPG")
    photo().save(tmp_path / "cat" / "noext", "PNG")
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    found = find_classes(str(tmp_path))
    assert found.classes == ("cat", "dog")
    assert sorted(names(found)) == ["0.png", "0.png", "0.png", "1.png", "UPPER.JPG", "noext"]
    assert ".txt" in found.warnings[0]


def test_links_are_followed_but_not_for_ever(tmp_path):
    class_folders(tmp_path / "real", {"cat": 2})
    class_folders(tmp_path / "set", {"dog": 1})
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "real" / "cat")
    (tmp_path / "real" / "cat" / "again").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    found = find_classes(str(tmp_path / "set"))
    assert found.classes == ("cat", "dog")
    assert names(found) == ["0.png", "1.png", "gone.png", "0.png"]


def test_empty_classes_and_classes_without_validation_are_named(tmp_path):
    class_folders(tmp_path, {"train/cat": 1, "train/dog": 1, "train/eel": 0, "val/cat": 1})
    found = find_classes(str(tmp_path))
    assert found.classes == ("cat", "dog")
    assert "eel" in found.warnings[0]
    assert "dog" in found.warnings[1]


def test_a_class_that_only_validation_has_is_refused_by_name(tmp_path):
    class_folders(tmp_path, {"train/cat": 1, "train/dog": 1, "val/cat": 1, "val/fox": 1})
    with pytest.raises(DataError, match="fox"):
        find_classes(str(tmp_path))


def test_links_in_a_circle_are_no_folders_and_no_images(tmp_path):
    class_folders(tmp_path, {"cat": 2, "dog": 2})
    for place in (tmp_path, tmp_path / "cat"):
        (place / "round").symlink_to("round")
    assert len(find_classes(str(tmp_path)).images) == 4


def test_hostile_names_reach_no_message_and_still_open(tmp_path):
    evil = "a\x1b]52;c;eA==\x07\nb\u202e"
    class_folders(tmp_path, {f"train/{evil}": 1, "train/dog": 1, "val/dog": 1})
    photo().save(tmp_path / "train" / "dog" / f"{evil}.png")
    (tmp_path / "train" / "dog" / os.fsdecode(b"latin-\xe9.png")).write_bytes(b"x")
    found = find_classes(str(tmp_path))
    assert all(Path(path).exists() for path in found.images)
    assert all(text.isprintable() for text in (*found.classes, *found.warnings))
    class_folders(tmp_path, {f"val/{evil}2": 1})
    with pytest.raises(DataError) as caught:
        find_classes(str(tmp_path))
    assert caught.value.message.isprintable()


def test_what_a_folder_is_for(tmp_path):
    class_folders(tmp_path / "classes", {"cat": 1, "dog": 1})
    class_folders(tmp_path / "halves", {"train/cat": 1, "train/dog": 1})
    pairs(tmp_path / "pairs", [stripes(0, 1)])
    pairs(tmp_path / "both" / "train", [stripes(0, 1)])
    kinds = [recognize(str(tmp_path / name))[1] for name in ("classes", "halves", "pairs", "both")]
    assert kinds == [SampleKind.CLASS, SampleKind.CLASS, SampleKind.MASK, SampleKind.MASK]


def test_what_is_no_set_says_what_was_looked_for_and_found(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        recognize(str(tmp_path / "missing"))
    (tmp_path / "set.zip").write_text("x")
    with pytest.raises(DataError, match="not a folder"):
        recognize(str(tmp_path / "set.zip"))
    (tmp_path / "docs").mkdir()
    with pytest.raises(DataError) as caught:
        recognize(str(tmp_path))
    assert "DATA/train/cat/1.jpg" in caught.value.message
    assert "docs/, set.zip" in caught.value.message
    class_folders(tmp_path, {"wrapper/cat": 1})
    with pytest.raises(DataError, match="only one class folder"):
        find_classes(str(tmp_path))


@pytest.mark.parametrize("suffix", ["", "_mask", "-mask", "_label", "_MASK"])
def test_masks_are_found_by_name(tmp_path, suffix):
    for name in ("a", "b.c"):
        (tmp_path / "imgs").mkdir(exist_ok=True)
        (tmp_path / "labels").mkdir(exist_ok=True)
        photo().save(tmp_path / "imgs" / f"{name}.jpg")
        photo().save(tmp_path / "labels" / f"{name}{suffix}.PNG")
    found = find_pairs(str(tmp_path))
    assert [Path(path).name for path in found.masks or ()] == [f"a{suffix}.PNG", f"b.c{suffix}.PNG"]
    assert names(found) == ["a.jpg", "b.c.jpg"]


def test_an_image_without_mask_is_a_problem_and_a_mask_without_image_a_warning(tmp_path):
    pairs(tmp_path, [stripes(0, 1)] * 3)
    (tmp_path / "masks" / "1.png").unlink()
    photo().save(tmp_path / "masks" / "extra.png")
    found = find_pairs(str(tmp_path))
    assert [(Path(p.path).name, p.reason) for p in found.unpaired] == [("1.jpg", "has no mask")]
    assert names(found) == ["0.jpg", "2.jpg"]
    assert found.warnings == ("1 masks have no image",)


@pytest.mark.parametrize("extra", ["masks/0_mask.png", "masks/0.gif", "images/0.png"])
def test_two_files_for_one_place_are_refused(tmp_path, extra):
    pairs(tmp_path, [stripes(0, 1)] * 2)
    photo().save(tmp_path / extra)
    with pytest.raises(DataError, match="two"):
        find_pairs(str(tmp_path))


def test_folders_of_pairs_that_do_not_fit_are_refused(tmp_path):
    pairs(tmp_path / "alien", [stripes(0, 1)])
    (tmp_path / "alien" / "masks" / "0.png").rename(tmp_path / "alien" / "masks" / "x.png")
    with pytest.raises(DataError, match="no mask has the name"):
        find_pairs(str(tmp_path / "alien"))
    pairs(tmp_path / "yolo", [stripes(0, 1)])
    (tmp_path / "yolo" / "masks" / "0.png").rename(tmp_path / "yolo" / "masks" / "0.txt")
    with pytest.raises(DataError, match=r"holds no images.*\.txt"):
        find_pairs(str(tmp_path / "yolo"))


def test_a_folder_that_may_not_be_listed_is_named(tmp_path):
    with pytest.raises(DataError, match="gone"):
        subfolders(str(tmp_path / "gone"))


def test_many_paths_take_little_room_and_come_back_whole():
    paths = [f"/data/train/class_{i % 7}/{i}.JPEG" for i in range(1000)] + [os.fsdecode(b"/\xff\xe9/x.png")]
    table = PathTable(iter(paths))
    assert list(table) == paths
    assert table[3:5] == paths[3:5]
    chained = PathTable.chained([PathTable(paths[:7]), PathTable(()), PathTable(paths[7:])])
    assert list(chained) == paths
    with pytest.raises(IndexError):
        table[1001]


@pytest.mark.parametrize("ends", [[], [1, 4], [0, 3], [0, 3, 2, 4]])
def test_kept_paths_whose_ends_do_not_fit_the_text_are_refused(ends):
    with pytest.raises(ValueError, match="outside"):
        PathTable.restored(np.frombuffer(b"a.pn", np.uint8), np.array(ends, np.int64))


def test_each_class_has_its_share_held_out():
    labels = np.array([0] * 10 + [1] * 2 + [2] + [3] * 100)
    rows = np.arange(len(labels))
    train, val = split_by_class(labels, rows, 0.2, seed=1)
    assert sorted([*train, *val]) == rows.tolist()
    assert np.bincount(labels[val], minlength=4).tolist() == [2, 1, 0, 20]
    assert split_by_class(labels, rows, 0.2, seed=1)[1].tolist() == val.tolist()
    assert split_by_class(labels, rows, 0.2, seed=2)[1].tolist() != val.tolist()
    assert np.bincount(labels[split_by_class(labels, rows, 0.99, seed=1)[0]]).tolist() == [1, 1, 1, 1]


def test_a_folder_that_goes_while_the_set_is_listed_is_named(tmp_path, monkeypatch):
    class_folders(tmp_path, {"cat": 1, "dog": 1})
    real = os.stat

    def gone(path, *args, **kwargs):
        if str(path).endswith("dog"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *args, **kwargs)

    monkeypatch.setattr("mptui.data.layouts.walk.os.stat", gone)
    with pytest.raises(DataError, match="dog: No such file"):
        find_classes(str(tmp_path))


def test_folders_a_thousand_deep_are_gone_through(tmp_path):
    class_folders(tmp_path, {"cat": 1, "dog": 1})
    deep = [tmp_path / "cat" / "/".join("d" * depth) for depth in range(1, 1201)]
    for folder in deep:
        folder.mkdir()
    try:
        photo().save(deep[-1] / "deep.png")
        assert "deep.png" in names(find_classes(str(tmp_path)))
    finally:
        (deep[-1] / "deep.png").unlink(missing_ok=True)
        for folder in reversed(deep):
            folder.rmdir()
