"""`mptui data`: what a set is understood to be, and the list that says the same."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from mptui.cli.main import _exit_code
from mptui.data.pictures import bright
from tests.data.images import class_folders, photo
from tests.made.json_documents import checked


def run(capsys, *arguments):
    capsys.readouterr()
    return _exit_code([str(each) for each in arguments], debug=False), *capsys.readouterr()


@pytest.fixture
def pets(tmp_path):
    folder = tmp_path / "pets"
    class_folders(folder, {"train/cat": 3, "train/dog": 2, "val/cat": 1, "val/dog": 1})
    (folder / "train" / "dog" / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture
def roads(tmp_path):
    folder = tmp_path / "roads"
    for number in range(5):
        for name in ("images", "masks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        photo(40, 32, seed=number).save(folder / "images" / f"{number}.png")
        mask = np.zeros((32, 40), np.uint8)
        mask[8:16], mask[16:20] = 3, 255
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")
    (folder / "classes.toml").write_text("ground = 0\nroad = 3\n")
    return folder


def test_it_says_what_is_understood(pets, capsys):
    code, told, _ = run(capsys, "data", pets, "--set", "data.bad_sample_budget=0.5")
    lines = told.splitlines()
    assert code == 0
    assert "format     class folders" in lines
    assert any(line.startswith("split") and "5 training and 2 validation images" in line for line in lines)
    assert ["cat", "3", "1"] in [line.split() for line in lines]
    assert any(line.startswith("left out   1: ") and "broken.png" in line for line in lines)


def test_images_that_are_made_are_nobody_s_code(capsys):
    code, told, _ = run(capsys, "data", "shapes", "--set", "data.samples=16")
    assert (code, told.splitlines()[1]) == (0, "format     built in")


def test_the_same_as_a_document(pets, capsys):
    code, printed, _ = run(capsys, "data", pets, "--json", "--set", "data.bad_sample_budget=0.5")
    document = checked("data", json.loads(printed))
    assert (code, document["layout"], document["train_samples"], document["val_samples"]) == (
        0, "class folders", 5, 2,
    )  # fmt: skip
    assert document["classes"] == [
        {"name": "cat", "train": 3, "val": 1},
        {"name": "dog", "train": 2, "val": 1},
    ]
    assert [each["count"] for each in document["left_out"]] == [1]
    assert document["sides"] == {"smallest": 16, "median": 16, "largest": 16}


@pytest.mark.parametrize("place", [pytest.param("", marks=pytest.mark.slow), "elsewhere"])
def test_the_list_that_it_writes_is_read_as_the_same_set(pets, roads, place, tmp_path, capsys):
    budget = ("--set", "data.bad_sample_budget=0.5")
    out = tmp_path / place / "list.csv"
    out.parent.mkdir(exist_ok=True)
    for folder, settings in ((pets, budget), (roads, ("--set", "data.ignore_index=255"))):
        _, printed, _ = run(capsys, "data", folder, "--json", *settings, "--out", out, "--force")
        code, again, _ = run(capsys, "data", out, "--json", *settings)
        before, after = json.loads(printed), json.loads(again)
        assert code == 0
        for key in ("task", "train_samples", "val_samples", "classes", "sides", "mask_code"):
            assert after[key] == before[key], key


def test_the_list_pins_a_split_that_the_seed_has_drawn(roads, tmp_path, capsys):
    with_seed = ("--set", "data.ignore_index=255", "--seed")
    assert run(capsys, "data", roads, "--out", tmp_path / "list.csv", *with_seed, 3)[0] == 0
    rows = list(csv.DictReader((tmp_path / "list.csv").open()))
    assert {row["split"] for row in rows} == {"train", "val"}
    assert rows[0]["image"].startswith("roads/images/")
    kept = json.loads(run(capsys, "data", tmp_path / "list.csv", "--json", *with_seed, 4)[1])
    assert (kept["split"], kept["train_samples"]) == ("column split of the list: train and val", 4)


def test_a_file_that_is_there_is_kept(pets, tmp_path, capsys):
    (tmp_path / "labels.csv").write_text("mine")
    for flag in ("--out", "--picture"):
        code, _, told = run(capsys, "data", pets, flag, tmp_path / "labels.csv")
        assert (code, "exists" in told, "--force" in told) == (2, True, True)
    assert (tmp_path / "labels.csv").read_text() == "mine"


def test_the_picture_has_masks_over_the_images_with_their_classes(roads, pets, tmp_path, capsys):
    assert (
        run(capsys, "data", roads, "--set", "data.ignore_index=255", "--picture", tmp_path / "m.png")[0] == 0
    )
    sheet = np.asarray(Image.open(tmp_path / "m.png").convert("RGB")).astype(int)
    colour = bright(["ground", "road"])[1]
    assert (sheet == colour).all(axis=-1).sum() > 50  # the legend
    assert (
        run(capsys, "data", pets, "--set", "data.bad_sample_budget=0.5", "--picture", tmp_path / "c.png")[0]
        == 0
    )
    assert Image.open(tmp_path / "c.png").width == Image.open(tmp_path / "m.png").width


def test_several_masks_of_an_image_are_no_line_of_a_list(tmp_path, capsys):
    for number in range(4):
        (tmp_path / "cells" / f"c{number}" / "images").mkdir(parents=True)
        (tmp_path / "cells" / f"c{number}" / "masks").mkdir()
        photo(40, 32, seed=number).save(tmp_path / "cells" / f"c{number}" / "images" / f"c{number}.png")
        for instance in range(2):
            mask = np.zeros((32, 40), np.uint8)
            mask[8 * instance : 8 * instance + 5, 4:9] = 255
            Image.fromarray(mask).save(tmp_path / "cells" / f"c{number}" / "masks" / f"{instance}.png")
    code, _, told = run(capsys, "data", tmp_path / "cells", "--out", tmp_path / "list.csv")
    assert (code, "has several masks" in told, (tmp_path / "list.csv").exists()) == (3, True, False)
