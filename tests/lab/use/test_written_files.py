"""What `predict`, `sample`, `export` and `report` write never replaces a person's files."""

import shutil
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mptui.errors import ConfigError
from mptui.io.written_files import LIST, OutputFiles, written_files
from mptui.lab.use.predict import mask_names
from tests.program import run_to_end


def write(path, text, **options):
    with OutputFiles(**options).write(path) as fresh:
        fresh.write_text(text)


def test_a_file_of_another_origin_is_replaced_by_force_alone(tmp_path):
    path = tmp_path / "masks" / "a.png"
    path.parent.mkdir()
    path.write_text("by hand")
    with pytest.raises(ConfigError, match="which mptui has not written") as caught:
        write(path, "new")
    assert "--force" in caught.value.hint
    assert path.read_text() == "by hand"
    write(path, "new", force=True)
    write(path, "newer")
    assert path.read_text() == "newer"
    path.write_text("corrected by hand")
    with pytest.raises(ConfigError, match="was changed since"):
        write(path, "newest")
    assert path.read_text() == "corrected by hand"
    assert list(written_files(path.parent)) == ["a.png"]
    assert sorted(each.name for each in path.parent.iterdir()) == [LIST, "a.png"]


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link"])
def test_an_input_is_never_replaced(tmp_path, how):
    source, place = tmp_path / "photo.png", tmp_path / "out.png"
    source.write_text("photo")
    if how == "itself":
        place = source
    elif how == "symlink":
        place.symlink_to(source)
    else:
        place.hardlink_to(source)
    with pytest.raises(ConfigError, match="reads this file"):
        write(place, "mask", force=True, inputs=[str(source)])
    assert source.read_text() == "photo"


def test_two_results_of_one_name_are_no_result_lost(tmp_path):
    files = OutputFiles(force=True)
    with files.write(tmp_path / "a.png") as fresh:
        fresh.write_text("one")
    with pytest.raises(ConfigError, match="two results"), files.write(tmp_path / "a.png") as fresh:
        fresh.write_text("other")
    assert (tmp_path / "a.png").read_text() == "one"


part = st.text(string.ascii_lowercase[:2] + "é", min_size=1, max_size=2)
names = st.builds(
    lambda folder, stem, ends: folder + stem + "".join(ends),
    st.sampled_from(["", "a/", "b.png/"]),
    part,
    st.lists(st.sampled_from([".png", ".jpg", ".PNG"]), max_size=3),
)


@given(st.lists(names, unique=True, max_size=12))
def test_each_image_has_a_mask_of_its_own(images):
    masks = mask_names(images)
    assert len(set(masks)) == len(images)
    assert all(image.startswith(mask) for image, mask in zip(images, masks, strict=True))


# -- at the command line


@pytest.fixture
def labelled(tmp_path):
    """A set with masks made by hand."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        for name in "ab":
            Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / folder / f"{name}.png")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("out", ["", "images/a.png", "masks/a.png"])
def test_labels_made_by_hand_and_photographs_stay(labelled, segmenter, out):
    before = contents(labelled)
    inputs = labelled / ("images/a.png" if out else "images")
    ended = run_to_end("predict", segmenter, inputs, "--out", labelled / out)
    assert ended.returncode == 2, ended.stderr
    assert "--out" in ended.stderr
    assert contents(labelled) == before


@pytest.mark.slow
def test_predictions_are_made_again_and_corrected_ones_are_kept(labelled, segmenter):
    asked = ("predict", segmenter, labelled / "images", "--out", labelled / "out")
    for _ in range(2):
        ended = run_to_end(*asked)
        assert ended.returncode == 0, ended.stderr
    shutil.copy(labelled / "masks" / "a.png", labelled / "out" / "masks" / "b.png")
    before = contents(labelled)
    assert run_to_end(*asked).returncode == 2
    assert contents(labelled) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("export", "RUN", "--out", "there", "--format", "safetensors"),
        ("report", "RUN", "--out", "there/README.md"),
        ("predict", "RUN", "IMAGES", "--out", "there"),
    ],
    ids=lambda words: words[0],
)
def test_a_file_of_a_person_stays(command, tmp_path, classifier, pictures):
    (tmp_path / "there").mkdir()
    for name in ("README.md", "predictions.csv"):
        (tmp_path / "there" / name).write_text("mine")
    words = {"RUN": classifier, "IMAGES": pictures / "red"}
    ended = run_to_end(*(words.get(word, word) for word in command), folder=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert "--force" in ended.stderr
    assert {path.read_text() for path in (tmp_path / "there").iterdir()} == {"mine"}


@pytest.mark.slow
def test_images_that_are_there_stay(tmp_path, generator):
    (tmp_path / "grid.png").write_text("mine")
    ended = run_to_end("sample", generator, "--out", tmp_path, "--count", 1, "--steps", 1)
    assert ended.returncode == 2, ended.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
