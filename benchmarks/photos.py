"""Makes a thousand photos of mixed size from photographs installed on this machine.

Decoding time depends on size, detail and encoding: the photos are crops of real photographs, scaled to the
sizes below with the detail of a photo taken at that size, and written by Pillow at a quality of 75 to 95, a
quarter of them without chroma subsampling.
"""

import json
import os
import random
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image

from mptui.data.transforms import IMAGENET

COUNT = 1000
SHARES: dict[str, tuple[float, tuple[tuple[int, int], ...]]] = {
    "small": (0.10, ((400, 300), (300, 400), (320, 320))),
    "typical": (0.70, ((500, 375), (375, 500), (500, 333), (500, 500))),
    "large": (0.15, ((1024, 768), (1200, 1600), (1600, 900))),
    "camera": (0.05, ((3264, 2448), (2448, 3264), (3000, 2000))),
}
"""Fraction of the photos in each class, and its sizes; most of ImageNet's are 500x375."""
MADE = "made.json"
_BYTES_A_PIXEL = 0.08
"""Minimum bytes per pixel of a photograph; drawings and gradients compress better."""
_LEAST_PIXELS = 250_000
_SAMPLES = {"skimage": "data", "sklearn": "datasets/images", "matplotlib": "mpl-data/sample_data"}


def prepared(folder: Path, originals: Path | None) -> dict[str, Any]:
    """Makes the photos in `folder` if it has none; returns how they were made."""
    note = folder / MADE
    if note.exists():
        told: dict[str, Any] = json.loads(note.read_text())
        return told
    if any(folder.glob("*/*")):
        return {"photos": "as they were given", "count": len(photos_of(folder))}
    made = make(folder, found() if originals is None else sorted(originals.rglob("*.jp*g")))
    note.write_text(json.dumps(made, indent=2))
    return made


def photos_of(root: Path) -> list[Path]:
    """Returns the photos of an image folder, in order."""
    return sorted(path for path in root.glob("*/*") if path.suffix.lower() in {".jpg", ".jpeg"})


def imagefolder(root: Path, side: int) -> Any:  # noqa: ANN401 - torchvision is not typed
    """Returns torchvision's `ImageFolder` with the training transforms of its recipe."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    recipe = transforms.Compose(
        [
            transforms.RandomResizedCrop(side),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET.mean, IMAGENET.std),
        ]
    )
    return ImageFolder(str(root), recipe)


def found() -> list[Path]:
    """Finds photographs installed with desktops and scientific packages."""
    shares = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    folders = [Path(share) / kind for share in shares.split(":") for kind in ("backgrounds", "wallpapers")]
    for name, inside in _SAMPLES.items():
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(Path(spec.origin).parent / inside)
    return sorted({path.resolve() for path in chain(*(folder.rglob("*.jp*g") for folder in folders))})


def make(folder: Path, candidates: list[Path]) -> dict[str, Any]:
    """Crops photos from those of `candidates` that are photographs."""
    originals = [path for path in candidates if _is_photograph(path)]
    if not originals:
        raise SystemExit(
            "no photographs found: name a folder of JPEGs with --originals, or of photos with --photos"
        )
    print(f"cutting photos out of {len(originals)} photographs", flush=True)
    for index, original in enumerate(originals):
        with Image.open(original) as file:
            picture = file.convert("RGB")
        for number, kind, size in list(_wanted())[index :: len(originals)]:
            choice = random.Random(number)
            path = folder / kind / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            sampling = choice.choice([0, 2, 2, 2])
            _crop(picture, size, choice).save(path, quality=choice.randint(75, 95), subsampling=sampling)
    photos = photos_of(folder)
    return {
        "photos": "crops of installed photographs, resized with Lanczos and written by Pillow,"
        " quality 75 to 95, 4:4:4 for a quarter and else 4:2:0",
        "count": len(photos),
        "bytes": sum(path.stat().st_size for path in photos),
        "shares": {kind: {"share": share, "sizes": sizes} for kind, (share, sizes) in SHARES.items()},
        "originals": [path.name for path in originals],
    }


def _wanted() -> Iterator[tuple[int, str, tuple[int, int]]]:
    choice = random.Random(0)
    for number in range(COUNT):
        (kind,) = choice.choices(list(SHARES), [share for share, _ in SHARES.values()])
        yield number, kind, choice.choice(SHARES[kind][1])


def _is_photograph(path: Path) -> bool:
    with Image.open(path) as image:
        pixels = image.width * image.height
    return pixels >= _LEAST_PIXELS and path.stat().st_size >= _BYTES_A_PIXEL * pixels


def _crop(picture: Image.Image, size: tuple[int, int], choice: random.Random) -> Image.Image:
    """Crops a random part of the picture, at most as large as it, and scales it to `size`."""
    width, height = size
    largest = min(picture.width / width, picture.height / height)
    zoom = choice.uniform(min(1.0, largest), largest)
    left, top = (
        choice.uniform(0, max(0.0, picture.width - zoom * width)),  # rounding may leave less than nothing
        choice.uniform(0, max(0.0, picture.height - zoom * height)),
    )
    right, bottom = min(left + zoom * width, picture.width), min(top + zoom * height, picture.height)
    box = (left, top, right, bottom)
    return picture.resize(size, Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)
