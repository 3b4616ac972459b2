"""Images of a trained diffusion model."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.errors import ConfigError
from mptui.lab.use.sample import GenerationRequest, make_images
from mptui.lab.use.trained import open_trained
from tests.lab.use.runs import GENERATOR, train
from tests.made.json_documents import checked
from tests.program import run_to_end


def made(trained, folder, **settings):
    asked = {"count": 3, "steps": 4, "seed": 1, "method": "ddim", **settings}
    told = []
    found = make_images(
        trained,
        GenerationRequest(folder=folder, **asked),
        on_progress=lambda *done: told.append(done),
        note=pytest.fail,
    )
    assert told[-1] == (asked["count"], asked["count"])
    return [np.asarray(Image.open(path)) for path in found.files], np.asarray(Image.open(found.grid))


def test_the_same_seed_makes_the_same_images_in_any_number(tmp_path, generator):
    trained = open_trained(generator, note=pytest.fail)
    few, grid = made(trained, tmp_path / "few")
    many, _ = made(trained, tmp_path / "many", count=10)  # two batches
    assert [image.shape for image in few] == [(8, 8, 3)] * 3
    assert grid.shape == (17, 17, 3)
    assert (grid[9:, :8] == few[2]).all()
    assert all(map(np.array_equal, few, many))
    assert len({image.tobytes() for image in many}) == 10
    for other in ({"seed": 2}, {"method": "ancestral"}, {"steps": 5}):
        assert not np.array_equal(made(trained, tmp_path / "other", **other)[0][0], few[0])


@pytest.mark.slow
def test_a_seed_trains_the_same_network_on_1_and_3_workers_and_it_makes_the_same_images(tmp_path):
    grids, images = [], []
    for number, workers in enumerate((1, 3)):
        several = {
            "data.workers": workers,
            "data.cache": "off",
            "training.batch_size": 4,
            "sampling.count": 4,
        }
        run = train(tmp_path / f"run-{number}", {**GENERATOR, **several})
        grids.append((run / "samples" / "epoch-0001.png").read_bytes())
        images.append(np.stack(made(open_trained(run, note=pytest.fail), tmp_path / f"images-{number}")[0]))
    assert grids[0] == grids[1]
    assert (images[0] == images[1]).all()


def test_a_batch_that_does_not_fit_is_made_in_parts(tmp_path, generator):
    trained = open_trained(generator, note=pytest.fail)
    whole, _ = made(trained, tmp_path / "whole", count=8)
    forward = trained.model.forward
    notes: list[str] = []

    def full(images, timesteps):
        if len(images) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(images, timesteps)

    trained.model.forward = full
    request = GenerationRequest(folder=tmp_path / "parts", count=8, steps=4, seed=1, method="ddim")
    found = make_images(trained, request, on_progress=lambda *done: None, note=notes.append)
    assert len(notes) == 1
    parts = [np.asarray(Image.open(path)).astype(int) for path in found.files]
    assert all(abs(one - other.astype(int)).max() <= 1 for one, other in zip(parts, whole, strict=True))


def test_a_classifier_makes_no_images(tmp_path, classifier):
    trained = open_trained(classifier, note=pytest.fail)
    with pytest.raises(ConfigError, match="makes no images") as refused:
        made(trained, tmp_path)
    assert "mptui predict" in refused.value.hint


@pytest.mark.slow
def test_images_of_a_class_have_its_colour(tmp_path, learnt_class_generator):
    trained = open_trained(learnt_class_generator, note=pytest.fail)
    assert trained.classes == ("blue", "green", "red")
    colours = {}
    for name in trained.classes:
        images, _ = made(trained, tmp_path / name, count=6, steps=10, class_name=name)
        colours[name] = np.stack(images).mean((0, 1, 2))
    assert [int(colours[name].argmax()) for name in trained.classes] == [2, 1, 0], colours
    request = GenerationRequest(folder=tmp_path / "all", count=4, steps=1, seed=0, method="ddim")
    found = make_images(trained, request, on_progress=lambda *done: None, note=pytest.fail)
    assert found.classes == ["blue", "green", "red", "blue"]
    assert [path.name for path in found.files] == [
        "0000-blue.png",
        "0001-green.png",
        "0002-red.png",
        "0003-blue.png",
    ]


def test_a_class_that_was_not_learnt_is_refused(tmp_path, generator, class_generator):
    with pytest.raises(ConfigError, match="has learnt no classes"):
        made(open_trained(generator, note=pytest.fail), tmp_path, class_name="blue")
    with pytest.raises(ConfigError, match="no such class") as refused:
        made(open_trained(class_generator, note=pytest.fail), tmp_path, class_name="gren")
    assert "green" in refused.value.hint


@pytest.mark.slow
def test_images_from_the_command_line(tmp_path, generator):
    ended = run_to_end("sample", generator, "--out", tmp_path / "out", "--count", 2, "--steps", 2, "--json")
    document = checked("sample", json.loads(ended.stdout))
    assert ended.returncode == 0, ended.stderr
    assert document["files"] == [str(tmp_path / "out" / f"{n:04}.png") for n in range(2)]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        "0000.png",
        "0001.png",
        "grid.png",
    ]
    wrong = run_to_end("sample", generator, "--out", tmp_path / "out", "--sampler", "euler")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--sampler euler: neither ddim nor ancestral" in wrong.stderr
