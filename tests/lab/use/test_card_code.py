"""The code of a model card, run without mptui, computes what `predict` does."""

import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mptui.cli.main import _exit_code

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
        if name.partition(".")[0] in {"mptui", "torch", "cv2"}:
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, Blocked())
"""
USE = """
import json

found = {}
for path in sys.argv[1:]:
    image = upright(path)
    (outputs,) = session.run(None, {"images": input_of(image)})
    if outputs.ndim == 4:
        found[path] = mask_of(outputs[0], *image.size).tolist()
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
        x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 3, height))
        waves = [np.sin(x * (1 + c) + number) * np.cos(y * (2 - c)) for c in range(3)]
        Image.fromarray((127 + 120 * np.stack(waves, -1)).astype(np.uint8)).save(folder / f"{name}.png")
    turned = Image.open(folder / "larger.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(folder / "turned.jpg", exif=exif, quality=97, subsampling=0)
    clear = Image.open(folder / "larger.png").convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    clear.save(folder / "clear.png")
    return folder


def by_the_card(run, out, photos, capsys):
    """Export a run, and run the code of its card on the pictures; return the results by path."""
    arguments = ["export", str(run), "--format", "onnx", "--out", str(out)]
    assert _exit_code(arguments, debug=False) == 0, capsys.readouterr().err
    capsys.readouterr()
    blocks = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    script = out / "use.py"
    script.write_text("\n\n".join([BLOCKED, *blocks, USE]))
    paths = sorted(map(str, photos.iterdir()))
    ended = subprocess.run(
        [sys.executable, "-I", str(script), *paths], cwd=out, capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_classes_by_the_card_are_those_of_predict(classifier, photos, tmp_path, capsys):
    found = by_the_card(classifier, tmp_path / "out", photos, capsys)
    assert _exit_code(["predict", str(classifier), str(photos), "--json"], debug=False) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert {row["file"] for row in rows} == set(found)
    for row in rows:
        assert found[row["file"]] == pytest.approx(list(row["probabilities"].values()), abs=0.01), row["file"]


@pytest.mark.slow
def test_masks_by_the_card_are_those_of_predict(segmenter, photos, tmp_path, capsys):
    found = by_the_card(segmenter, tmp_path / "out", photos, capsys)
    masks = tmp_path / "masks"
    assert _exit_code(["predict", str(segmenter), str(photos), "--out", str(masks)], debug=False) == 0
    capsys.readouterr()
    for path, mask in found.items():
        name = path.rpartition("/")[2].rpartition(".")[0]
        (file,) = [
            each for each in masks.rglob("*.png") if each.stem == name and each.parent.name != "overlays"
        ]
        predicted = np.asarray(Image.open(file))
        assert predicted.shape == np.array(mask).shape
        assert (predicted == np.array(mask)).mean() > 0.98, path
