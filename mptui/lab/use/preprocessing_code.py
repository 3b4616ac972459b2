"""How an image becomes a network's input, and its outputs a mask or an image: in words, and as code.

The model card, the facts in the file and the code are made here of the same numbers as a prediction. The code
needs no mptui; its images are arrays [height, width, bands].
"""

from pathlib import Path

import numpy as np

from mptui.data.noise_schedule import TIMESTEPS
from mptui.data.transforms import LONGEST, Geometry
from mptui.data.types import RGB, PixelFormat
from mptui.lab.use.trained import Trained
from mptui.models.vae import read_layout
from mptui.registry.names import SampleKind
from mptui.registry.tasks import DIFFUSION

_HEAD = """\
import numpy as np
from PIL import Image{ops}

SIDE, RESIZE, MOST_PIXELS = {side}, {resize}, {longest} * {resize} ** 2
MEAN, STD = np.float32({mean}), np.float32({std})
FILTER = Image.Resampling.{filter}
"""

_UPRIGHT = '''

def upright(path):
    """Return an image file as upright 8-bit RGB; transparency becomes white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def scaled(image, width, height):
    """Return an image at another size."""
    return np.asarray(Image.fromarray(image).resize([width, height], FILTER))
'''

_STORED = '''BANDS, DTYPE = {bands}, {dtype!r}


def upright(path):
    """Return an image file as it is stored, upright: BANDS of DTYPE; NaN and infinity become 0."""
    with open(path, "rb") as file:
        is_tiff = file.read(4) in (b"II*\\0", b"MM\\0*", b"II+\\0", b"MM\\0+")
    image, orientation = tiff(path) if is_tiff else no_tiff(path)
    if (image.shape[2], image.dtype.name) != (BANDS, DTYPE):
        raise ValueError(f"{{path}}: {{image.shape[2]}} bands of {{image.dtype.name}}")
    if orientation in (5, 6, 7, 8):
        image = image.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.nan_to_num(image.astype(DTYPE), nan=0, posinf=0, neginf=0)


def tiff(path):
    """Return a TIFF, whose bands are samples of its pixels or its pages, and its EXIF orientation."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        series, page = file.series[0], file.pages.first
        if page.photometric == 3:
            raise ValueError(f"{{path}}: a palette")
        if page.samplesperpixel > 1:
            image, axes = page.asarray(), page.axes
        elif series.kind == "shaped" and series.axes == "QYX" and series.shape[2] < min(series.shape[:2]):
            image, axes = series.asarray(), "YXS"
        else:
            axes = series.get_axes(squeeze=False)
            image = series.asarray().reshape(series.get_shape(squeeze=False))
        tag = page.tags.get(274)
    image = np.moveaxis(image, (axes.index("Y"), axes.index("X")), (0, 1))
    return image.reshape(*image.shape[:2], -1), 1 if tag is None else tag.value


def no_tiff(path):
    """Return an image of another format, and its EXIF orientation."""
    image = Image.open(path)
    orientation = image.getexif().get(274, 1)
{deep}    if image.mode == "1":
        image = image.convert("L")
    elif image.mode not in ("L", "LA", "RGB", "RGBA", "CMYK", "F") and not image.mode.startswith("I"):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    image = np.asarray(image)
    return image.reshape(*image.shape[:2], -1), orientation


def scaled(image, width, height):
    """Return an image at another size, band by band."""
    bands = [Image.fromarray(band.astype(np.{in_pillow})) for band in np.moveaxis(image, 2, 0)]
    image = np.stack([np.asarray(band.resize([width, height], FILTER)) for band in bands], axis=2)
    return {rounded}
'''

_DEEP = """\
    if any(str(tile.args).endswith(";16B") for tile in image.tile):  # of which Pillow keeps 8 bits
        import cv2

        order = {1: [0], 2: [0, 3], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[BANDS]
        image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_UNCHANGED)
        return image.reshape(*image.shape[:2], -1)[..., order], orientation
"""

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
    """Return {what} of an image from `upright`: float32 [1, {bands}, SIDE, SIDE].

    The image is resized to a shorter side of RESIZE and at most MOST_PIXELS in all, and never enlarged; then
    its box is.
    """
    height, width = image.shape[:2]
    scale = min(1, RESIZE / min(width, height), (MOST_PIXELS / (width * height)) ** 0.5)
    if scale < 1:
        width, height = [max(1, int(length * scale + 1e-6)) for length in (width, height)]
        image = scaled(image, width, height)
    left, top, right, bottom = box_of(width, height)
    square = scaled(image[top:bottom, left:right], SIDE, SIDE)
    values = (np.float32(square){per_255} - MEAN) / STD
    return np.ascontiguousarray(values.transpose(2, 0, 1)[None])
'''

_MASK = '''

def mask_of(scores, height, width):
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

_IMAGE = '''

def image_of(values):
    """Return the 8-bit image of {what}, [1, 3, SIDE, SIDE]: [SIDE, SIDE, 3]."""
    pixels = (values[0, :3].transpose(1, 2, 0) * STD + MEAN) * 255
    return pixels.round().clip(0, 255).astype(np.uint8)
'''

_LATENTS = '''

def latents_of(values, vae):
    """Return the latents that are learnt of `input_of`; `vae` is as diffusers' AutoencoderKL reads it."""
    import torch

    with torch.no_grad():
        means = vae.encode(torch.from_numpy(values)).latent_dist.mean
    return ((means - {shift!r}) * {factor!r}).numpy()


def values_of(latents, vae):
    """Return what `image_of` makes an image of."""
    import torch

    with torch.no_grad():
        return vae.decode(torch.from_numpy(latents) / {factor!r} + {shift!r}).sample.numpy()
'''

_NOISE = '''

BETAS = {betas}
KEPT = np.cumprod(1 - BETAS)


def noisy_of(clean, noise, timestep):
    """Return the network's input: {clean} with standard normal noise, at a timestep of 0 to {last}."""
    return np.float32(KEPT[timestep] ** 0.5 * clean + (1 - KEPT[timestep]) ** 0.5 * noise)


def clean_of(noisy, outputs, timestep):
    """Return {clean} as the network's outputs, {outputs}, tell."""
    return np.float32({told})
'''
_BETAS = {
    "cosine": "np.cos((np.arange({steps} + 1) / {steps} + 0.008) / 1.008 * np.pi / 2) ** 2\n"
    "BETAS = np.minimum(1 - BETAS[1:] / BETAS[:-1], 0.999)",
    "linear": "np.linspace(1e-4, 0.02, {steps})",
}
_TOLD = {
    "epsilon": ("the noise", "(noisy - (1 - KEPT[timestep]) ** 0.5 * outputs) / KEPT[timestep] ** 0.5"),
    "v": (
        "sqrt(a) x noise - sqrt(1 - a) x clean values",
        "KEPT[timestep] ** 0.5 * noisy - (1 - KEPT[timestep]) ** 0.5 * outputs",
    ),
}
"""What is predicted -> the outputs of the network, and the clean values of them."""


def code_of(trained: Trained) -> str:
    """Return Python code from an image file to the network's input, and from its outputs back.

    It needs NumPy and Pillow; where images are read as they are stored, tifffile for TIFFs and OpenCV for
    PNGs of 16 bits; and torch for the latents of a VAE.
    """
    preprocessing, geometry = trained.preprocessing, trained.preprocessing.geometry
    stored, is_diffusion = preprocessing.stored, trained.plan.task == DIFFUSION
    pixels = stored or RGB
    head = _HEAD.format(
        ops="" if stored else ", ImageOps",
        side=geometry.side,
        resize=geometry.resize,
        longest=LONGEST,
        mean=list(preprocessing.normalization.mean),
        std=list(preprocessing.normalization.std),
        filter=geometry.interpolation.upper(),
    )
    parts = [head, _stored(stored) if stored else _UPRIGHT]
    parts.append(_CENTRE.format(margin=geometry.margin) if geometry.keep_proportions else _WHOLE)
    what = "the clean values" if is_diffusion else "the network's input"
    per_255 = " / 255" if pixels.dtype == "uint8" else ""
    parts.append(_INPUT.format(what=what, bands=pixels.bands, per_255=per_255))
    if preprocessing.kind is SampleKind.MASK:
        parts.append(_MASK)
    elif is_diffusion:
        parts += _diffusion(trained)
    if preprocessing.kind is SampleKind.IMAGE and pixels == RGB:
        parts.append(_IMAGE.format(what="clean values" if is_diffusion else "outputs"))
    return "".join(parts)


def _stored(pixels: PixelFormat) -> str:
    """Return the code that reads an image as it is stored."""
    rounded = "image"
    if pixels.dtype.endswith("int16"):
        limits = np.iinfo(pixels.dtype)
        rounded = f"np.rint(image).clip({limits.min}, {limits.max}).astype(DTYPE)"
    return _STORED.format(
        bands=pixels.bands,
        dtype=pixels.dtype,
        deep=_DEEP if pixels.dtype == "uint16" else "",
        in_pillow="uint8" if pixels.dtype == "uint8" else "float32",
        rounded=rounded,
    )


def _diffusion(trained: Trained) -> list[str]:
    """Return the code between clean values, latents where they are learnt, and what the network takes."""
    training, latents = trained.config.training, _latents(trained)
    outputs, told = _TOLD[training.prediction]
    parts = []
    if latents is not None:
        shift, factor = latents
        parts.append(_LATENTS.format(shift=shift, factor=factor))
    parts.append(
        _NOISE.format(
            betas=_BETAS[training.noise_schedule].format(steps=TIMESTEPS),
            clean="values of `input_of`" if latents is None else "latents",
            last=TIMESTEPS - 1,
            outputs=outputs,
            told=told,
        )
    )
    return parts


def _latents(trained: Trained) -> tuple[float, float] | None:
    """Return what is subtracted from the means of latents, and their factor then; None: images are learnt."""
    vae = trained.config.model.vae
    if vae is None:
        return None
    layout = read_layout(Path(vae))
    return layout.shift_factor or 0.0, layout.scaling_factor


def words_of(trained: Trained) -> dict[str, object]:
    """Return the same in words, by name."""
    preprocessing, training = trained.preprocessing, trained.config.training
    geometry, normalization = preprocessing.geometry, preprocessing.normalization
    pixels, side = preprocessing.stored or RGB, geometry.side
    words: dict[str, object] = {
        "layout": f"NCHW, float32; images have {pixels}" + (", RGB" if pixels == RGB else ""),
        "side": side,
        "resize": f"to a shorter side of {geometry.resize} px, and to at most {LONGEST} x {geometry.resize}²"
        " pixels in all; never enlarged",
        "view": _view(geometry),
        "interpolation": f"{geometry.interpolation}, antialiased, as Pillow's",
        "values": f"({'pixel / 255' if pixels.dtype == 'uint8' else 'pixel'} - mean) / std",
        "mean": list(normalization.mean),
        "std": list(normalization.std),
    }
    if preprocessing.kind is SampleKind.MASK:
        words["outputs"] = "logits, interpolated bilinearly to the image's size; each pixel has the highest"
    if trained.plan.task == DIFFUSION:
        words["noise"] = (
            "the network's input: sqrt(a) x clean values + sqrt(1 - a) x noise, with the timestep of a; "
            f"the schedule is {training.noise_schedule}"
        )
        words["outputs"] = _TOLD[training.prediction][0]
    if (latents := _latents(trained)) is not None:
        shift, factor = latents
        means = f"(means - {shift:g})" if shift else "means"
        sha256 = trained.config.model.vae_sha256
        words["latents"] = f"the clean values: {means} x {factor:g} of the VAE with the SHA-256 {sha256}"
    return words


def _view(geometry: Geometry) -> str:
    if not geometry.keep_proportions:
        return "the whole image, resized to a square"
    if geometry.margin == 1:
        return "centre square, resized"
    return (
        f"centre square of {100 / geometry.margin:g} % of the shorter side, resized; of an image with less"
        f" than {geometry.side * geometry.margin:.6g} px there, {geometry.side} px, or all if it has less"
    )
