"""Built-in images are drawn once a process: most runs of tests train on the same few.

To draw them takes a third of the processor time of such a run. The tests of the images themselves, in
`tests/data`, override `drawn_once`.
"""

from dataclasses import replace
from functools import cache, lru_cache

import pytest

_KEPT = 4096
_LARGEST = 32
"""The side in pixels of the largest images that are kept."""


def _kept(read):
    drawn = lru_cache(_KEPT)(read)

    def copied(request, side_hint=None):
        if request.side > _LARGEST:
            return read(request)
        image = drawn(request)
        mask_HW = None if image.mask_HW is None else image.mask_HW.copy()
        return replace(image, image_HWC=image.image_HWC.copy(), mask_HW=mask_HW)

    return copied


@cache
def _shapes():
    from mptui.data.open import ShapesRequest  # the process that hands out tests draws none

    return ShapesRequest, _kept(ShapesRequest.read)


@pytest.fixture(autouse=True, scope="module")
def drawn_once():
    requests, copied = _shapes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "read", copied)
        yield
