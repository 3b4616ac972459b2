"""The code of a model card, run without mptui, computes what `predict` does."""

import json
import re
import struct
import subprocess
import sys
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from mptui.cli.main import _exit_code
from mptui.data.noise_schedule import alphas_cumprod
from mptui.lab.use.predict import find_inputs, loader_of
from mptui.lab.use.trained import open_trained
from mptui.models.latents import open_vae
from mptui.models.vae import read_layout, read_vae
from tests.data.images import png_of
from tests.lab.use.runs import train

SIZES = {
    "smaller": (20, 15),
    "narrow": (12, 90),
    "equal": (32, 32),
    "between": (34, 40),
    "larger": (150, 100),
}
SIZES |= {"wide": (900, 40)}

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"mptui", *sys.argv[1].split()}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Blocked())
"""
PREDICT = """
import json

found = {}
for path in sys.argv[2:]:
    image = upright(path)
    (outputs,) = session.run(None, {"images": input_of(image)})
    if outputs.ndim == 4:
        found[path] = mask_of(outputs[0], *image.shape[:2]).tolist()
    else:
        shares = np.exp(outputs[0] - outputs[0].max())
        found[path] = (shares / shares.sum()).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Smooth pictures of several sizes; one is turned by its EXIF orientation, one transparent."""
    folder = tmp_path_factory.mktemp("card")
    for number, (name, (width, height)) in enumerate(SIZES.items()):
        Image.fromarray(waves(width, height, 3, number, 120, np.uint8)).save(folder / f"{name}.png")
    turned = Image.open(folder / "larger.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(folder / "turned.jpg", exif=exif, quality=97, subsampling=0)
    clear = Image.open(folder / "larger.png").convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    clear.save(folder / "clear.png")
    return folder


def waves(width, height, bands, number, amplitude, dtype):
    """Return a smooth picture of this format, [height, width, bands]."""
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 3, height))
    drawn = [np.sin(x * (1 + c) + number) * np.cos(y * (2 - c)) for c in range(bands)]
    return (amplitude * (1.1 + np.stack(drawn, -1))).astype(dtype)


def code_in(card):
    """Return the blocks of code of a card."""
    return re.findall(r"```python\n(.*?)```", card.read_text(), re.DOTALL)


def by_the_card(run, out, photos, capsys, blocked="torch cv2 tifffile"):
    """Export a run, and run the code of its card on the pictures; return the results by path."""
    arguments = ["export", str(run), "--format", "onnx", "--out", str(out)]
    assert _exit_code(arguments, debug=False) == 0, capsys.readouterr().err
    capsys.readouterr()
    script = out / "use.py"
    script.write_text("\n\n".join([BLOCKED, *code_in(out / "README.md"), PREDICT]))
    words = [sys.executable, "-I", script, blocked, *sorted(photos.iterdir())]
    ended = subprocess.run(words, cwd=out, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def assert_classes_alike(run, found, photos, capsys):
    assert _exit_code(["predict", str(run), str(photos), "--json"], debug=False) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert {row["file"] for row in rows} == set(found)
    for row in rows:
        assert found[row["file"]] == pytest.approx(list(row["probabilities"].values()), abs=0.01), row["file"]


def assert_masks_alike(run, found, photos, masks, capsys):
    assert _exit_code(["predict", str(run), str(photos), "--out", str(masks)], debug=False) == 0
    capsys.readouterr()
    for path, mask in found.items():
        name = path.rpartition("/")[2].rpartition(".")[0]
        (file,) = [
            each for each in masks.rglob("*.png") if each.stem == name and each.parent.name != "overlays"
        ]
        predicted = np.asarray(Image.open(file))
        assert predicted.shape == np.array(mask).shape
        assert (predicted == np.array(mask)).mean() > 0.98, path


@pytest.mark.slow
def test_classes_by_the_card_are_those_of_predict(classifier, photos, tmp_path, capsys):
    found = by_the_card(classifier, tmp_path / "out", photos, capsys)
    assert_classes_alike(classifier, found, photos, capsys)


@pytest.mark.slow
def test_masks_by_the_card_are_those_of_predict(segmenter, photos, tmp_path, capsys):
    found = by_the_card(segmenter, tmp_path / "out", photos, capsys)
    assert_masks_alike(segmenter, found, photos, tmp_path / "masks", capsys)


def save_bits(path, width, height, number):
    """Save three bands of 16 bits: turned, in a layout of a TIFF, or as PNG; return them upright."""
    values = waves(width, height, 3, number, 20_000, np.uint16)
    grey: dict[str, Any] = {"photometric": "minisblack"}
    if number == 0:
        tifffile.imwrite(path, values, extratags=[(274, 3, 1, 7, True)], planarconfig="contig", **grey)
        return values.swapaxes(0, 1)[::-1, ::-1]
    if number == 1:
        tifffile.imwrite(path, values.transpose(2, 0, 1), planarconfig="separate", byteorder=">", **grey)
    elif number == 2:
        tifffile.imwrite(path, values, **grey)  # its rows are pages
    elif number == 3:
        with tifffile.TiffWriter(path) as file:
            for band in values.transpose(2, 0, 1):
                file.write(band, metadata=None, contiguous=False)
    else:
        exif = Image.Exif()
        exif[0x0112] = 8
        chunk = b"eXIf" + exif.tobytes()
        more = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        path.with_suffix(".png").write_bytes(png_of(values, 2, more))
        return np.rot90(values)
    return values


def save_bands(path, width, height, number):
    """Save five bands of float32, of which some values are not finite; return them."""
    values = waves(width, height, 5, number, 3, np.float32)
    values[0, 0] = np.nan, np.inf, -np.inf, 0, 0
    tifffile.imwrite(path, values, photometric="minisblack", planarconfig="contig")
    return values


@pytest.mark.slow
@pytest.mark.parametrize("save", [save_bits, save_bands])
def test_masks_of_images_as_stored_by_the_card_are_those_of_predict(tmp_path, capsys, save):
    images, masks = tmp_path / "data" / "images", tmp_path / "data" / "masks"
    images.mkdir(parents=True)
    masks.mkdir()
    for number, (width, height) in enumerate([*SIZES.values(), (50, 50), (60, 40), (33, 70)]):
        values = save(images / f"{number}.tif", width, height, number)
        mask = values[..., 0] > np.median(values[..., 1])
        Image.fromarray(mask.astype(np.uint8)).save(masks / f"{number}.png")
    settings = {
        "model.name": "unet",
        "model.width": 4,
        "model.depth": 2,
        "data.bands": "all",
        "data.name": "none",
        "data.path": str(tmp_path / "data"),
        "data.interpolation": "bicubic" if save is save_bits else "bilinear",
    }
    run = train(tmp_path / "runs" / "stored", settings)
    found = by_the_card(run, tmp_path / "out", images, capsys, "torch" if save is save_bits else "torch cv2")
    assert_masks_alike(run, found, images, tmp_path / "predicted", capsys)


class Vae:
    """What the code uses of diffusers' `AutoencoderKL`."""

    def __init__(self, folder):
        self._vae = read_vae(folder, read_layout(folder)).eval()

    def encode(self, images):
        return SimpleNamespace(latent_dist=SimpleNamespace(mean=self._vae.encode(images)))

    def decode(self, latents):
        return SimpleNamespace(sample=self._vae.decode(latents))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vae", "generator", "latent_generator"])
def test_what_is_learnt_of_images_alone_is_made_by_the_card(request, photos, tmp_path, capsys, name):
    """The loader gives the noisy values of the pictures, and the outputs of a perfect network."""
    run = request.getfixturevalue(name)
    assert _exit_code(["export", str(run), "--out", str(tmp_path)], debug=False) == 0, capsys.readouterr().err
    code: dict[str, Any] = {}
    exec(code_in(tmp_path / "README.md")[1], code)
    trained = open_trained(run, None, {"training.batch_size": ("test", 32)}, note=lambda text: None)
    paths = sorted(map(str, photos.iterdir()))
    with loader_of(trained, find_inputs(paths).split(None), lambda problem: None) as loader:
        ((batch,),) = [list(window) for window in loader.windows(0, 1)]
    given, targets = batch.images_BCHW.numpy(), batch.targets.numpy()
    values = np.concatenate([code["input_of"](code["upright"](path)) for path in paths])
    if name == "vae":
        assert_close(given, values)
    else:
        vae = Vae(request.getfixturevalue("vae_folder")) if name == "latent_generator" else None
        clean = values if vae is None else code["latents_of"](values, vae)
        assert clean.shape == given.shape
        assert batch.timesteps is not None
        steps = batch.timesteps.numpy()
        kept = alphas_cumprod(trained.config.training.noise_schedule)[steps].reshape(-1, 1, 1, 1)
        is_v = trained.config.training.prediction == "v"
        noise = (1 - kept) ** 0.5 * given + kept**0.5 * targets if is_v else targets
        assert_close(np.stack(list(map(code["noisy_of"], clean, noise, steps))), given)
        told = np.stack(list(map(code["clean_of"], given, targets, steps)))
        assert_close((told - clean) * kept**0.5, 0)
        values = told if vae is None else code["values_of"](told, vae)
        if vae is not None:
            frozen = open_vae(trained.config.model, torch.device("cpu"))
            assert frozen is not None
            np.testing.assert_allclose(values, frozen.decode(torch.from_numpy(told)), atol=1e-4)
    pixels = np.rint((values + 1) * 127.5).clip(0, 255).transpose(0, 2, 3, 1)
    made = np.stack([code["image_of"](each[None]) for each in values])
    assert made.dtype == np.uint8
    assert np.abs(made - pixels).max() <= 1


def assert_close(found, expected):
    """Compare what is made of pictures: resized in parts, or by Pillow alone."""
    difference = np.abs(found - expected)
    assert difference.mean() < 0.01
    assert difference.max() < 0.3
