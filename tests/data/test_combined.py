"""Splits made of others."""

import numpy as np
import pytest

from mptui.data.dataset import CutSplit, RenumberedRequest
from mptui.data.transforms import Geometry
from mptui.data.types import IGNORE, BadSampleError
from mptui.registry.names import SampleKind
from tests.data.samples import Drawn, Masked, Samples


def test_classes_are_renumbered_and_ignored_pixels_stay():
    assert RenumberedRequest(Drawn(12), (5, 6, 7)).read().label == 7
    before, after = Masked(0, 20).read(), RenumberedRequest(Masked(0, 20), (4, 9)).read()
    assert before.mask_HW is not None
    assert after.mask_HW is not None
    assert np.array_equal(after.mask_HW, np.choose(before.mask_HW + 1, [IGNORE, 4, 9]))
    assert np.array_equal(after.image_HWC, before.image_HWC)


@pytest.mark.parametrize(
    ("request_of", "reason"), [(Drawn(3), "label 3"), (Masked(0), "mask value 1")], ids=["label", "mask"]
)
def test_a_class_beyond_those_of_the_set_is_a_bad_sample(request_of, reason):
    numbers = (0, 1, 2) if isinstance(request_of, Drawn) else (0,)
    with pytest.raises(BadSampleError, match=f"{reason}, but there are {len(numbers)} classes"):
        RenumberedRequest(request_of, numbers).read()


def test_some_samples_are_cut_to_the_centre_at_the_size_of_a_network():
    split = CutSplit(Samples(9), np.array([8, 3]), Geometry.for_validation(SampleKind.IMAGE, 10))
    assert len(split) == 2
    request = split.request(1)
    assert request.name == "drawn-3.png"
    sample = request.read()
    assert (sample.image_HWC.shape, sample.label) == ((10, 10, 3), 0)
    centre_HWC = Drawn(3).read().image_HWC[:, 5:35].reshape(10, 3, 10, 3, 3).mean((1, 3))
    assert abs(sample.image_HWC - centre_HWC).mean() < 20  # smoothing
    assert abs(sample.image_HWC - centre_HWC[:, ::-1]).mean() > 30
