"""A resume reads the data as its run did, though the folder says otherwise, and says so, or is refused."""

import shutil
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mptui import resume, train
from mptui.errors import DataError
from mptui.events import Warned
from mptui.lab.use.evaluate import open_samples
from mptui.lab.use.trained import open_trained
from mptui.runs.store.directory import read_json
from mptui.runs.store.journal import read_journal
from tests.data.images import class_folders, photo, save_oriented
from tests.made.runs import QUIET, moved

SMALL: dict[str, Any] = {
    "data.image_size": 32,
    "data.workers": 0,
    "training.batch_size": 8,
    "hardware.device": "cpu",
    **QUIET,
    "speed.compile": "off",
    "training.schedule": "constant",
}


def classes(root, run):
    class_folders(root / "train", {"cat": 12, "dog": 12})
    return train(data=root, runs_dir=run, name="run", epochs=1, model="small_cnn", **SMALL).directory


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A set of two classes, and a finished run on it."""
    folder = tmp_path_factory.mktemp("made")
    classes(folder / "set", folder)
    return folder


@pytest.fixture
def run(tmp_path, made):
    """A finished run on a set of two classes beside it."""
    return moved(made, tmp_path) / "run"


def write_masks(root, values, numbers=range(8)):
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for number in numbers:
        photo(40, 40, seed=number).save(root / "images" / f"{number}.jpg")
        mask = np.full((40, 40), values[0], np.uint8)
        mask[10:30, 10:20], mask[10:30, 20:30] = values[1], values[-1]
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")


def segmented(root, run):
    small = {**SMALL, "model.width": 2, "model.depth": 1}
    return train(data=root, runs_dir=run, name="run", epochs=1, model="unet", **small).directory


def said(run):
    return [
        event.message
        for event in read_journal(run)
        if isinstance(event, Warned) and event.code.startswith("data")
    ]


def reading(run):
    return read_json(run / "data.json")["reading"]


def test_a_validation_folder_that_was_added_is_left_out(tmp_path, run):
    before = reading(run)
    class_folders(tmp_path / "set" / "val", {"cat": 3, "dog": 3})
    resume(run, epochs=2)
    now = reading(run)
    assert {**now, "left_out": []} == {**before, "left_out": []}
    (left_out,) = now["left_out"]
    assert (left_out["count"], "validation half" in left_out["reason"]) == (6, True)
    (told,) = [message for message in said(run) if "read as this run has read it before" in message]
    assert "its split is 'folders train and val' instead of 'held out by the seed: 20% of each class'" in told


def test_an_evaluation_measures_the_validation_half_of_the_run(tmp_path, run):
    class_folders(tmp_path / "set" / "val", {"cat": 3, "dog": 3})
    told: list[str] = []
    trained = open_trained(run, note=told.append)
    data = open_samples(trained, {}, on_progress=lambda done, total: None, note=told.append)

    assert (len(data.split), data.part, data.own) == (4, "validation", True)  # 2 of 12 of each class
    assert any("read as this run has read it before" in message for message in told)


def test_a_validation_folder_that_is_gone_can_not_be_had(tmp_path):
    class_folders(tmp_path / "set" / "val", {"cat": 3, "dog": 3})
    run = classes(tmp_path / "set", tmp_path / "runs")
    before = read_json(run / "data.json")
    shutil.rmtree(tmp_path / "set" / "val")
    with pytest.raises(DataError, match="this run can't read its data as it did: its split is") as refused:
        resume(run, epochs=2)
    assert "restore the data" in refused.value.hint
    assert read_json(run / "data.json") == before


def test_masks_that_were_coded_anew_are_refused(tmp_path):
    write_masks(tmp_path / "set", (0, 1, 2))
    run = segmented(tmp_path / "set", tmp_path / "runs")
    write_masks(tmp_path / "set", (0, 3, 7))
    with pytest.raises(DataError, match="value 3 of the mask is none of the classes") as refused:
        resume(run, epochs=2)
    assert "restore the data" in refused.value.hint


def test_the_masks_of_a_run_keep_their_code_when_files_are_gone(tmp_path):
    write_masks(tmp_path / "set", (0, 1, 1))
    write_masks(tmp_path / "set", (0, 1, 2), range(8, 10))
    run = segmented(tmp_path / "set", tmp_path / "runs")
    before = reading(run)["mask_code"]
    for name in ("images/8.jpg", "masks/8.png", "images/9.jpg", "masks/9.png"):
        (tmp_path / "set" / name).unlink()
    resume(run, epochs=2)
    assert reading(run)["mask_code"] == before
    assert any("read as this run has read it before" in message for message in said(run))


def test_photographs_that_were_added_do_not_turn_the_masks_of_others(tmp_path):
    """A square photograph stored turned does not say how its mask lies; the run has decided that."""
    root = tmp_path / "set"
    write_masks(root, (0, 1, 1))
    for number, size in ((0, (60, 40)), (1, (40, 40))):
        save_oriented(root / "images" / f"{number}.jpg", 6, photo(*size, seed=number))
    Image.fromarray(np.eye(40, 60, dtype=np.uint8)).save(root / "masks" / "0.png")  # as it is shown
    run = segmented(root, tmp_path / "runs")
    assert "as it is shown" in reading(run)["orientation"]
    save_oriented(root / "images" / "0.jpg", 1, photo(60, 40))  # now none shows it
    resume(run, epochs=2)
    assert "as it is shown" in reading(run)["orientation"]


def test_a_photograph_that_was_added_is_trained_on_and_said(tmp_path, run):
    photo(20, 16, seed=50).save(tmp_path / "set" / "train" / "cat" / "new.png")
    resume(run, epochs=2)
    (told,) = [message for message in said(run) if "has changed" in message]
    assert "new: 1 on top of 24 samples" in told
    assert "validation samples are drawn anew" in told
