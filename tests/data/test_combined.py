"""Splits made of others."""

import numpy as np
import pytest

from mptui.data.core.types import IGNORE, BadSampleError
from mptui.data.formats.combined import RenumberedRequest
from tests.data.samples import Drawn, Masked


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
