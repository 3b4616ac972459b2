"""The files of the pictures of validations."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mptui.data.pictures import ClassShare
from mptui.runs.store.files import Records
from mptui.runs.store.pictures import FOLDER, read
from tests.hostile import NAMES
from tests.runs.made_pictures import BLUE, RED, pictures, sample


@pytest.fixture
def records(tmp_path):
    records = Records(tmp_path)
    yield records
    records.close()


def kept(path):
    """Read a record that is there."""
    record = read(path)
    assert record is not None
    return record


def test_each_sample_is_found_in_the_picture_with_what_is_predicted(tmp_path, records):
    path = records.write_pictures(pictures())
    assert path == "predictions/epoch-0001-step-10.png"
    record = kept(tmp_path / path)
    first, second = record.groups["worst"]
    assert (first.index, first.file, first.truth, first.predicted) == (7, "data/7.png", 0, 1)
    assert (first.error, first.probability) == (2.5, 0.75)
    assert record.classes == ["cat", "dog"]
    assert record.confusion == [[1, 1, 9], [0, 0, 5], [0, 1, 2]]
    with Image.open(tmp_path / path) as sheet:
        for each, colour in ((first, RED), (second, BLUE), (record.groups["random"][0], BLUE)):
            left, top, width, height = each.box
            assert (width, height) == (96, 96)  # small images are enlarged
            part = sheet.convert("RGB").crop((left, top, left + width, top + height))
            assert part.getcolors() == [(96 * 96, colour)]


def test_the_most_probable_classes_are_kept_and_files_of_earlier_versions_open(tmp_path, records):
    top = [ClassShare(1, 0.75), ClassShare(0, 0.25)]
    path = tmp_path / records.write_pictures(pictures(groups={"worst": [sample(7, RED, top=top)]}))
    assert kept(path).groups["worst"][0].top == top
    described = path.with_suffix(".json")
    written = json.loads(described.read_text())
    for number, damaged in ((2, True), (0, False)):
        written["groups"]["worst"][0]["top"][0]["number"] = number
        described.write_text(json.dumps(written))
        assert (read(path) is None) == damaged
    del written["groups"]["worst"][0]["top"]
    described.write_text(json.dumps({**written, "version": 2}))
    assert kept(path).groups["worst"][0].top == []
    assert kept(path).groups["worst"][0].probability == 0.75


def test_the_newest_and_the_best_are_kept(tmp_path, records):
    for epoch in range(1, 7):
        assert records.write_pictures(pictures(epoch, 10 * epoch, best_epoch=min(epoch, 2), keep=2))
    left = {path.name for path in (tmp_path / FOLDER).iterdir()}
    names = [f"epoch-{epoch:04}-step-{10 * epoch}" for epoch in (2, 5, 6)]
    assert left == {f"{name}{end}" for name in names for end in (".png", ".json")}
    # back to an earlier step: what was just written stays
    assert records.write_pictures(pictures(3, 30, best_epoch=2, keep=2))
    assert (tmp_path / FOLDER / "epoch-0003-step-30.png").exists()


def test_a_disk_that_takes_nothing_is_told_and_ends_nothing(tmp_path, records):
    (tmp_path / FOLDER).write_text("in the way")
    assert records.write_pictures(pictures()) == ""


def test_names_of_all_kinds_are_shown_safely(tmp_path, records):
    groups = {"worst": [sample(number, RED, file=name, truth=number) for number, name in enumerate(NAMES)]}
    path = records.write_pictures(
        pictures(classes=NAMES, groups=groups, confusion=np.eye(len(NAMES), dtype=int))
    )
    record = kept(tmp_path / path)
    texts = [*record.classes, *(each.file for each in record.groups["worst"])]
    assert len(record.classes) == len({*record.classes}) == len(NAMES)
    assert not any(mark in text for text in texts for mark in "\x1b\x9b\n\r\x07\u202e")


def test_a_task_with_masks_has_no_class_of_an_image_and_any_group_may_be_empty(tmp_path, records):
    masks = sample(4, RED, (64, 192), truth=None, predicted=None, probability=None, error=0.25)
    path = records.write_pictures(pictures(groups={"worst": [masks], "random": []}))
    record = kept(tmp_path / path)
    assert record.groups["worst"][0].truth is None
    assert record.groups["worst"][0].box[2:] == [192, 64]
    assert record.groups["random"] == []
    assert records.write_pictures(pictures(groups={"worst": []}, step=11))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("classes"),
        lambda record: record.update(confusion=[[0, 5, 1]]),
        lambda record: record.update(confusion=[[0, 1]]),
        lambda record: record.update(confusion=[[0, 0, -1]]),
        lambda record: record["groups"]["worst"][0].update(truth=-1),
        lambda record: record["groups"]["worst"][0].update(box=[1, 2, 3]),
        lambda record: record["groups"]["worst"][0].update(box=[-1, 2, 3, 4]),
        lambda record: record["groups"]["worst"][0].update(file=3),
    ],
)
def test_a_damaged_record_is_none(tmp_path, records, change):
    path = tmp_path / records.write_pictures(pictures())
    document = json.loads(path.with_suffix(".json").read_text())
    change(document)
    path.with_suffix(".json").write_text(json.dumps(document))
    assert read(path) is None
    path.with_suffix(".json").write_text("{")
    assert read(path) is None
    path.with_suffix(".json").unlink()
    assert read(path) is None


def test_a_person_s_pictures_stay(tmp_path, records):
    theirs: dict[Path, bytes] = {}
    for folder, names in {
        FOLDER: ["epoch-0001-step-1.png", "epoch-0002-step-2.json", "mine.png"],
        "samples": ["epoch-0001.png", "epoch-best.png", "epoch-1.png"],
    }.items():
        (tmp_path / folder).mkdir()
        theirs |= {tmp_path / folder / name: b"precious" for name in names}
    for path in theirs:
        path.write_bytes(b"precious")
    for epoch in range(1, 7):
        records.write_pictures(pictures(epoch, epoch, best_epoch=0, keep=1))
        records.write_images(epoch, np.zeros((4, 8, 8, 3), np.uint8), keep=1)
    assert {path: path.read_bytes() for path in theirs if path.suffix == ".png"} == {
        path: content for path, content in theirs.items() if path.suffix == ".png"
    }
    assert len(list((tmp_path / "samples").iterdir())) == 4
    assert [path.name for path in (tmp_path / FOLDER).glob("*-step-[2-6].png")] == ["epoch-0006-step-6.png"]


@pytest.mark.parametrize("folder", [FOLDER, "samples"])
def test_a_folder_that_is_a_link_is_not_followed(tmp_path, records, folder):
    target = tmp_path / "mine"
    target.mkdir()
    (tmp_path / folder).symlink_to(target)
    assert records.write_pictures(pictures()) == "" or folder != FOLDER
    assert records.write_images(1, np.zeros((4, 8, 8, 3), np.uint8), keep=1) == "" or folder == FOLDER
    assert list(target.iterdir()) == []
