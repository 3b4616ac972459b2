"""TIFF files with an orientation, which Pillow turns as it loads them: each is turned once."""

import itertools

import numpy as np
import pytest
from PIL import Image

from mptui.data.decode import read_rgb
from mptui.data.types import SampleRequest
from mptui.lab.use.predict import upright_size
from tests.data.opening import opened_masks

from .images import save_oriented

ORIENTATIONS = range(1, 9)


def scene(side=40):
    """Return an image with a bright corner, and its mask, as they are seen."""
    mask = np.zeros((side, 24), np.uint8)
    mask[:10, :8] = 1
    return Image.fromarray(mask * 200), Image.fromarray(mask)


def bright(sample):
    return sample.image_HWC[..., 0] > 100


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_an_image_is_upright(tmp_path, mode, orientation):
    seen = scene()[0]
    if mode == "I;16":
        values = Image.fromarray(np.asarray(seen).astype(np.uint16) * 257)
    else:
        values = seen.convert(mode)
    save_oriented(tmp_path / "a.tif", orientation, values)
    assert (read_rgb(str(tmp_path / "a.tif"))[..., 0] == np.asarray(seen)).all()
    for as_stored in (False, True):
        assert upright_size(str(tmp_path / "a.tif"), as_stored=as_stored) == (40, 24)


def mask_cases():
    """All ways of a mask, orientations and sides; the fast suite has a third, with each on both sides."""
    for (way, drawn), orientation, (square, side) in itertools.product(
        enumerate(["shown", "stored", "with a tag of its own"]), ORIENTATIONS, enumerate([40, 24])
    ):
        is_fast = (way + orientation + square) % 3 == 0
        yield pytest.param(drawn, orientation, side, marks=[pytest.mark.slow] * (not is_fast))


# of a square, no size tells how it is stored
@pytest.mark.parametrize(("drawn", "orientation", "side"), [*mask_cases()])
def test_a_mask_lies_over_its_image(tmp_path, drawn, orientation, side):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    image, mask = scene(side)
    for number in range(4):
        stored = save_oriented(tmp_path / "scratch.tif", orientation, mask)
        save_oriented(tmp_path / "images" / f"{number}.tif", orientation, image)
        at = tmp_path / "masks" / f"{number}.tif"
        if drawn == "with a tag of its own":
            (tmp_path / "scratch.tif").replace(at)
        else:
            (mask if drawn == "shown" else stored).save(at)
    said = {"mask_orientation": "stored" if drawn == "stored" else "upright"}
    for request in requests(opened_masks(tmp_path, **said)):
        sample = request.read()
        assert sample.mask_HW is not None
        assert (bright(sample) == (sample.mask_HW == 1)).all()
        assert bright(sample)[0, 0]


def requests(dataset) -> list[SampleRequest]:
    return [split.request(row) for split in (dataset.train, dataset.val) for row in range(len(split))]
