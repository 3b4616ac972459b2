import colorsys

import numpy as np
import pytest

from mptui.data.open import CLASSES, MASK_CLASSES, ShapesRequest, shapes
from mptui.registry.names import SampleKind


@pytest.fixture(autouse=True, scope="module")
def drawn_once():
    """They are drawn anew: how they are drawn is the subject."""


def test_a_sample_is_a_function_of_its_request_alone():
    request = ShapesRequest(7, "train", 5, 48, SampleKind.CLASS)
    first = request.read()
    ShapesRequest(7, "train", 6, 48, SampleKind.CLASS).read()
    assert (request.read().image_HWC == first.image_HWC).all()
    for other in (
        ShapesRequest(8, "train", 5, 48, SampleKind.CLASS),
        ShapesRequest(7, "val", 5, 48, SampleKind.CLASS),
        ShapesRequest(7, "train", 13, 48, SampleKind.CLASS),
    ):
        assert (other.read().image_HWC != first.image_HWC).any()


def test_images_are_rgb_of_the_side_asked_for_and_classes_are_balanced():
    dataset = shapes(SampleKind.CLASS, 20, 40, seed=0)
    samples = [dataset.train.request(index).read() for index in range(len(dataset.train))]
    assert all(s.image_HWC.shape == (40, 40, 3) and s.image_HWC.dtype == np.uint8 for s in samples)
    assert np.bincount([s.label for s in samples], minlength=len(CLASSES)).tolist() == list(
        dataset.class_counts
    )
    assert len(dataset.val) == 10


def test_masks_hold_the_shapes_that_the_image_shows():
    dataset = shapes(SampleKind.MASK, 40, 64, seed=0)
    samples = [dataset.train.request(index).read() for index in range(len(dataset.train))]
    assert dataset.classes == MASK_CLASSES
    assert {value for s in samples for value in np.unique(np.asarray(s.mask_HW))} == {0, 1, 2, 3}
    for sample in samples:
        assert sample.mask_HW is not None
        assert sample.mask_HW.shape == (64, 64)
        across = sample.mask_HW[:, 1:] != sample.mask_HW[:, :-1]
        steps = np.abs(np.diff(sample.image_HWC.astype(int), axis=1)).sum(axis=2)
        assert steps[across].mean() > 2 * steps[~across].mean()


def test_each_class_has_a_hue_of_its_own_over_every_ground():
    dataset = shapes(SampleKind.CLASS, 80, 64, seed=0)
    hues: dict[int, list[float]] = {label: [] for label in range(len(CLASSES))}
    for index in range(len(dataset.train)):
        sample = dataset.train.request(index).read()
        pixels = sample.image_HWC.reshape(-1, 3).astype(float)
        spread = pixels.max(axis=1) - pixels.min(axis=1)
        shape = pixels[spread > np.quantile(spread, 0.97)].mean(axis=0)
        hues[sample.label].append(colorsys.rgb_to_hsv(*(shape / 255))[0])
    for label, found in hues.items():
        away = np.abs((np.array(found) - label / len(CLASSES) + 0.5) % 1 - 0.5)
        assert away.max() < 0.5 / len(CLASSES)


def test_the_whole_picture_still_varies_within_a_class():
    dataset = shapes(SampleKind.CLASS, 80, 32, seed=0)
    samples = [dataset.train.request(index).read() for index in range(0, 80, len(CLASSES))]
    assert len({s.label for s in samples}) == 1
    means = np.array([s.image_HWC.mean() for s in samples])
    assert means.std() > 20
