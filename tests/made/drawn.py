"""Built-in images are drawn once a process: most runs of tests train on the same few.

To draw them takes a third of the processor time of such a run. The tests of the images themselves, in
`tests/data`, override `drawn_once`.
"""

from dataclasses import replace
from functools import lru_cache

import pytest

from mptui.data.open import ShapesRequest

_KEPT = 4096
_LARGEST = 32
"""The side in pixels of the largest images that are kept."""

_read = ShapesRequest.read
_drawn = lru_cache(_KEPT)(_read)


def _copy(request, side_hint=None):
    if request.side > _LARGEST:
        return _read(request)
    drawn = _drawn(request)
    mask_HW = None if drawn.mask_HW is None else drawn.mask_HW.copy()
    return replace(drawn, image_HWC=drawn.image_HWC.copy(), mask_HW=mask_HW)


@pytest.fixture(autouse=True, scope="module")
def drawn_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShapesRequest, "read", _copy)
        yield
