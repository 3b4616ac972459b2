"""Precision and recall of made images."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.data.dataset import CutSplit
from mptui.errors import ConfigError
from mptui.lab.use.evaluate import open_samples, precision_recall
from mptui.lab.use.sample import image_quality, open_features
from mptui.lab.use.trained import open_trained
from tests.program import run_to_end


def normal(count, seed, scale=1.0, features=8):
    return scale * torch.randn(count, features, generator=torch.Generator().manual_seed(seed))


def test_equal_sets_have_all_of_each_other():
    points = normal(1500, 0)  # more than one block of rows
    assert precision_recall(points, points) == (1, 1)


def test_a_set_of_the_same_distribution_has_most():
    found = precision_recall(normal(400, 0), normal(400, 1))
    assert 0.7 < found.precision < 1
    assert found.recall == pytest.approx(found.precision, abs=0.1)


def test_a_collapsed_generator_has_precision_and_hardly_any_recall():
    real = normal(400, 0)
    assert precision_recall(real, real[:1].repeat(400, 1)) == (1, 1 / 400)
    near = real[:1] + 0.01 * normal(400, 1)
    found = precision_recall(real, near)
    assert found.precision == 1
    assert found.recall < 0.01


def test_noise_has_no_precision():
    found = precision_recall(normal(400, 0), normal(400, 1, scale=20))
    assert found.precision < 0.01


def test_half_of_the_modes_is_half_of_the_recall():
    apart = torch.tensor([100.0] + [0.0] * 7)
    real = torch.cat([normal(200, 0), normal(200, 1) + apart])
    found = precision_recall(real, normal(400, 2))
    assert found.precision > 0.7
    assert found.recall == pytest.approx(0.5, abs=0.1)


def test_a_sphere_reaches_the_third_neighbour():
    real = torch.tensor([[0.0], [1.0], [3.0], [6.0], [100.0]])  # 6 reaches 6 on, 100 reaches 99 on
    made = torch.tensor([[-6.5], [12.5], [200.0], [300.0], [-6.0]])
    assert precision_recall(real, made).precision == 2 / 5


@pytest.fixture(scope="module")
def features(classifier):
    return open_features(classifier, "cpu", note=pytest.fail, trust_code=False)


def measured(generator, features, folder, images, notes=None):
    """Return the quality of images, as if they had been made."""
    folder.mkdir()
    files = [folder / f"{number:04}.png" for number in range(len(images))]
    for pixels, file in zip(images, files, strict=True):
        Image.fromarray(pixels).save(file)
    note = pytest.fail if notes is None else notes.append
    return image_quality(
        open_trained(generator, note=pytest.fail), features, files, on_progress=lambda *done: None, note=note
    )


def test_images_are_compared_with_those_of_validation_at_their_size(tmp_path, generator, features):
    trained = open_trained(generator, note=pytest.fail)
    val = open_samples(trained, {}, on_progress=lambda *done: None, note=pytest.fail).dataset.val
    count = len(val)
    cut = CutSplit(val, np.arange(count), trained.preprocessing.geometry)
    real = [cut.request(index).read().image_HWC for index in range(count)]
    assert {image.shape for image in real} == {(8, 8, 3)}

    same = measured(generator, features, tmp_path / "same", real)
    assert (same.made, same.images) == ((1, 1), count)
    one = measured(generator, features, tmp_path / "one", real[:1] * count)
    assert one.made == (1, 1 / count)
    notes: list[str] = []
    more = measured(generator, features, tmp_path / "more", real * 2, notes)
    assert (more.images, more.training) == (count, same.training)
    assert [note for note in notes if f"{count} of {2 * count} images" in note]
    with pytest.raises(ConfigError, match="more than 3"):
        measured(generator, features, tmp_path / "few", real[:3])


def test_only_a_classifier_has_features(segmenter, generator):
    for run in (segmenter, generator):
        with pytest.raises(ConfigError, match="no classifier"):
            open_features(run, "cpu", note=lambda message: None, trust_code=False)


@pytest.mark.slow
def test_quality_from_the_command_line(tmp_path, generator, classifier):
    words = (
        "sample",
        generator,
        "--out",
        tmp_path / "out",
        "--count",
        6,
        "--steps",
        2,
        "--features",
        classifier,
    )
    quality = json.loads(run_to_end(*words, "--json").stdout)["quality"]
    assert quality["images"] == 6
    assert 0 <= quality["precision"] <= 1
    assert set(quality["training_images"]) == {"precision", "recall"}
    wrong = run_to_end(*words, "--class", "circle")
    assert wrong.returncode == 2
    assert "--features compares with images of all classes" in wrong.stderr
