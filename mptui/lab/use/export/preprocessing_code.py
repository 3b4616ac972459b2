"""How an image becomes a network's input, and its outputs a mask: told in words, and as code without mptui.

The model card, the facts in the file and the code are made here of the same numbers as a prediction.
"""

from mptui.data.core.types import RGB
from mptui.data.transforms.resize import LONGEST
from mptui.lab.use.trained import Preprocessing
from mptui.registry.samples import SampleKind

_HEAD = '''\
import numpy as np
from PIL import Image, ImageOps

SIDE, RESIZE, MOST_PIXELS = {side}, {resize}, {longest} * {resize} ** 2
MEAN, STD = np.float32({mean}), np.float32({std})
FILTER = Image.Resampling.{filter}


def upright(path):
    """Return an image file as upright 8-bit RGB; transparency becomes white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def resized(image):
    """Return an image with a shorter side of RESIZE and at most MOST_PIXELS in all; none is enlarged."""
    width, height = image.size
    scale = min(1, RESIZE / min(width, height), (MOST_PIXELS / (width * height)) ** 0.5)
    if scale == 1:
        return image
    return image.resize([max(1, int(length * scale + 1e-6)) for length in (width, height)], FILTER)

'''

_CENTRE = '''
def box_of(width, height):
    """Return the centre square: SIDE pixels or more of the shorter side, or all of it if it has less."""
    edge = min(width, height) / min(max(min(width, height) / SIDE, 1), {margin!r})
    corners = [(width - edge) / 2, (height - edge) / 2, (width + edge) / 2, (height + edge) / 2]
    return [round(corner) for corner in corners]

'''

_WHOLE = '''
def box_of(width, height):
    """Return the whole image, whatever its proportions."""
    return [0, 0, width, height]

'''

_INPUT = '''
def input_of(image):
    """Return the network's input of an image from `upright`: float32 [1, 3, SIDE, SIDE]."""
    image = resized(image)
    square = image.crop(box_of(*image.size)).resize([SIDE, SIDE], FILTER)
    values = (np.asarray(square, np.float32) / 255 - MEAN) / STD
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
'''

_MASK = '''

def mask_of(scores, width, height):
    """Return the class of each pixel of an image, [height, width], of its outputs [K, SIDE, SIDE]."""

    def places(count):
        centres = ((np.arange(count) + 0.5) * (SIDE / count) - 0.5).clip(0, SIDE - 1)
        low = centres.astype(int)
        return low, np.minimum(low + 1, SIDE - 1), np.float32(centres - low)

    above, below, down = places(height)
    left, right, across = places(width)
    rows = scores[:, above] + down[:, None] * (scores[:, below] - scores[:, above])
    return (rows[:, :, left] + across * (rows[:, :, right] - rows[:, :, left])).argmax(0)
'''


def code_of(preprocessing: Preprocessing) -> str:
    """Return Python code (Pillow and NumPy) from an image file to the input, and with masks back to its size.

    "" for networks whose input is no photograph: images as they are stored, noise, latents.
    """
    geometry, normalization = preprocessing.geometry, preprocessing.normalization
    if preprocessing.stored is not None or preprocessing.kind is SampleKind.IMAGE:
        return ""
    head = _HEAD.format(
        side=geometry.side,
        resize=geometry.resize,
        longest=LONGEST,
        mean=list(normalization.mean),
        std=list(normalization.std),
        filter=geometry.interpolation.upper(),
    )
    box = _CENTRE.format(margin=geometry.margin) if geometry.keep_proportions else _WHOLE
    return head + box + _INPUT + (_MASK if preprocessing.kind is SampleKind.MASK else "")


def words_of(preprocessing: Preprocessing) -> dict[str, object]:
    """Return the same in words, by name."""
    geometry, normalization = preprocessing.geometry, preprocessing.normalization
    pixels, side = preprocessing.stored or RGB, geometry.side
    words: dict[str, object] = {
        "layout": f"NCHW, float32; images have {pixels}" + (", RGB" if pixels == RGB else ""),
        "side": side,
        "resize": f"to a shorter side of {geometry.resize} px, and to at most {LONGEST} x {geometry.resize}²"
        " pixels in all; never enlarged",
        "view": _view(preprocessing),
        "interpolation": f"{geometry.interpolation}, antialiased, as Pillow's",
        "values": f"({'pixel / 255' if pixels.dtype == 'uint8' else 'pixel'} - mean) / std",
        "mean": list(normalization.mean),
        "std": list(normalization.std),
    }
    if preprocessing.kind is SampleKind.MASK:
        words["outputs"] = "logits, interpolated bilinearly to the image's size; each pixel has the highest"
    return words


def _view(preprocessing: Preprocessing) -> str:
    geometry = preprocessing.geometry
    if not geometry.keep_proportions:
        return "the whole image, resized to a square"
    if geometry.margin == 1:
        return "centre square, resized"
    return (
        f"centre square of {100 / geometry.margin:g} % of the shorter side, resized; of an image with less"
        f" than {geometry.side * geometry.margin:.6g} px there, {geometry.side} px, or all if it has less"
    )
