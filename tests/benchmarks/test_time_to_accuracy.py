"""The time to an accuracy: the figures of a side, the kind of the data, and the picture of all curves."""

from xml.etree import ElementTree

import torch

from benchmarks.accuracy_picture import COLOURS, picture
from benchmarks.mask_learners import samples_of
from benchmarks.time_to_accuracy import CLASSES, MASKS, SIDES, figures, kind_of
from tests.data.situations.pictures import pairs

CURVES = {
    "expert": [[(10.0, 0.2), (20.0, 0.6)], [(11.0, 0.3), (21.0, 0.7)], [(12.0, 0.1), (22.0, 0.5)]],
    "mptui": [[(9.0, 0.6), (18.0, 0.8)], [(9.0, 0.5), (19.0, 0.6)], [(9.0, 0.4), (20.0, 0.5)]],
}


def test_the_reference_is_the_experts_end_and_a_side_that_mostly_misses_it_has_no_time():
    found = figures(CURVES)
    assert found["reference"] == 0.6
    assert (found["sides"]["mptui"]["reached"], found["sides"]["mptui"]["seconds"]) == (2, 19.0)
    late = figures({**CURVES, "mptui": [[(9.0, 0.1)]] * 3})["sides"]["mptui"]
    assert (late["reached"], late["seconds"]) == (0, None)


def test_a_folder_of_masks_beside_the_images_is_of_masks(tmp_path):
    assert kind_of(tmp_path) is CLASSES
    (tmp_path / "train" / "masks").mkdir(parents=True)
    assert kind_of(tmp_path) is MASKS


def test_masks_of_a_learner_are_those_of_the_images_at_the_side_asked_for(tmp_path):
    pairs(tmp_path / "val", "images/{}.png", "masks/{}.png", count=3)
    images_BCHW, masks_BHW = samples_of(tmp_path / "val", 16)
    assert images_BCHW.shape == (3, 3, 16, 16)
    assert masks_BHW.shape == (3, 16, 16)
    assert set(masks_BHW.unique().tolist()) <= {0, 1}
    assert torch.isfinite(images_BCHW).all()


def test_the_picture_has_a_line_a_side_in_its_own_colour_and_the_metric_of_each_set():
    assert set(COLOURS) >= set(SIDES)
    document = {
        "machine": {"gpu": None, "cpu": "a CPU", "threads": 2},
        "asked": {"epochs": 2, "side": 128},
        "curves": CURVES,
    }
    drawn = picture({"photos": document, "cells": {**document, "metric": "iou"}})
    root = ElementTree.fromstring(drawn)
    texts = [each.text or "" for each in root.iter() if each.tag.endswith("text")]
    assert any(text.startswith("photos: top-1") for text in texts)
    assert any(text.startswith("cells: IoU") for text in texts)
    labelled = [each.get("data-label") for each in root.iter() if each.get("data-label")]
    assert labelled == ["mptui", "expert"] * 2
