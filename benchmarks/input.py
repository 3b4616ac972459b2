"""Input pipeline: photos on disk to batches at 224 px, against `ImageFolder` in a `DataLoader`.

    python -m benchmarks.input                   # 1,000 photos of mixed size, from installed photographs
    python -m benchmarks.input --photos FOLDER   # your own photos, FOLDER/CLASS/*.jpg; created if empty
    python -m benchmarks.input --only wait       # data wait of a ResNet-18 at 224 px

Each figure is a fresh process that reads the photos once to start its workers and to warm the page cache, and
then `PASSES` times: CPU time of the process and its workers, and wall time, per image. Both sides produce
normalized float32 batches of 64; ImageFolder by torchvision's recipe (RandomResizedCrop,
RandomHorizontalFlip, ToTensor, Normalize) with persistent workers, for each number of workers from 0 to the
number of cores: its lowest CPU time and its lowest wall time count. mptui makes the same kind of crops and
also jitters colours, with one worker per core. torch uses one thread on both sides. The floor is
libjpeg-turbo decoding alone: of whole photos, and at the size needed. The difference of the pixels from those
that Pillow makes of the whole photo is reported too.

The second part is `mptui run`: a ResNet-18 at 224 px, trained on this machine from these photos.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

from benchmarks.common import alternate, cpu_s, parser_of, ratios, save
from benchmarks.photos import SHARES, imagefolder, photos_of, prepared
from mptui.data.decode import FileRequest
from mptui.data.loader import Loader
from mptui.data.rng import RandomStream, uniforms
from mptui.data.transforms import DRAWS, Geometry, cut_image, resized, views
from mptui.hardware.host import keep_freed_memory, usable_cpus
from mptui.registry.names import SampleKind
from tests.made.loaders import built_loader

SIDE = 224
BATCH = 64
PASSES = 2
CORES = usable_cpus()
OURS = "mptui"
STEPS = 16
STEP_BATCH = 32


@dataclass(frozen=True)
class Photos:
    """A split of files in one class."""

    paths: list[str]

    def __len__(self) -> int:
        return len(self.paths)

    def request(self, index: int) -> FileRequest:
        return FileRequest(self.paths[index], 0)


def mptui_loader(root: Path, workers: int) -> Loader:
    """Returns mptui's loader of the photos."""
    return built_loader(
        Photos([str(path) for path in photos_of(root)]),
        kind=SampleKind.CLASS,
        batch_size=BATCH,
        side=SIDE,
        num_classes=1,
        device=torch.device("cpu"),
        train=True,
        augment=True,
        seed=0,
        workers=workers,
    )


def mptui_pass(root: Path, workers: int) -> Callable[[int], int]:
    """Returns a pass of mptui's loader, which returns its number of images."""
    loader = mptui_loader(root, workers)
    return lambda epoch: sum(batch.size for window in loader.windows(epoch, 1) for batch in window)


def imagefolder_pass(root: Path, workers: int) -> Callable[[int], int]:
    """Returns a pass of torchvision's recipe, which returns its number of images."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        imagefolder(root, SIDE),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda epoch: sum(len(images) for images, _ in loader)


def measured(passing: Callable[[int], int]) -> dict[str, float]:
    """Returns CPU and wall milliseconds per image, after a warm-up pass."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as in `mptui run`; ImageFolder's workers inherit it by fork
    started = time.perf_counter()
    passing(0)
    first_s, before, started = time.perf_counter() - started, cpu_s(), time.perf_counter()
    images = sum(passing(1 + number) for number in range(PASSES))
    wall_s = time.perf_counter() - started
    return {
        "cpu_ms": (cpu_s() - before) / images * 1e3,
        "wall_ms": wall_s / images * 1e3,
        "first_pass_s": first_s,
    }


def in_a_process(side: str, root: Path, workers: int) -> dict[str, float]:
    """Runs `measured` for one side in a fresh interpreter."""
    command = [sys.executable, "-m", "benchmarks.input", "--side", side, "--workers", str(workers)]
    answer = subprocess.run([*command, "--photos", str(root)], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def decode_floor(root: Path) -> dict[str, float]:
    """Returns CPU milliseconds per image of decoding alone: whole, and at the size that a crop needs."""
    geometry = Geometry.for_training(SampleKind.CLASS, SIDE)
    files = [path.read_bytes() for path in photos_of(root)]
    started = time.process_time()
    for data in files:
        simplejpeg.decode_jpeg(data)
    whole_s, started = time.process_time() - started, time.process_time()
    for data in files:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        ratio = min(height, width) // geometry.resize
        shrink = next(each for each in (8, 4, 2, 1) if ratio >= each or each == 1)
        simplejpeg.decode_jpeg(data, min_height=-(-height // shrink), min_width=-(-width // shrink))
    needed_s = time.process_time() - started
    return {"whole_cpu_ms": whole_s / len(files) * 1e3, "needed_cpu_ms": needed_s / len(files) * 1e3}


def difference_from_pillow(root: Path) -> dict[str, dict[str, float]]:
    """Returns the difference of crops' pixels, of 255, from Pillow's crops of the whole photo."""
    geometry = Geometry.for_training(SampleKind.CLASS, SIDE)
    paths = photos_of(root)
    draws_BD = uniforms(RandomStream.GEOMETRY, 0, 1, np.arange(len(paths)), count=DRAWS)
    means: dict[str, list[float]] = {"whole": [], "smaller": []}
    most = dict.fromkeys(means, 0.0)
    for path, draws in zip(paths, draws_BD, strict=True):
        decoded = FileRequest(str(path), 0).read(geometry.resize)
        decoded_width, image_HWC = decoded.image_HWC.shape[1], resized(decoded, geometry.resize).image_HWC
        size = np.array(image_HWC.shape[1::-1])
        boxes, _ = views(geometry, draws[None], size[:1].astype(float), size[1:].astype(float))
        found = cut_image(image_HWC, boxes[0], np.zeros(3, bool), SIDE)
        with Image.open(path) as file:
            box = np.rint(np.rint(boxes[0].reshape(2, 2) * size) / size * file.size).astype(int)
            left, top, right, bottom = box.flatten().tolist()
            cropped = file.convert("RGB").crop((left, top, right, bottom))
            kind = "whole" if file.width == decoded_width else "smaller"
        expected = np.asarray(cropped.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        off = np.abs(found.astype(int) - expected)
        means[kind].append(float(off.mean()))
        most[kind] = max(most[kind], float(off.max()))
    return {
        kind: {
            "photos": len(each),
            "mean": statistics.mean(each),
            "worst_photo": max(each),
            "max": most[kind],
        }
        for kind, each in means.items()
        if each
    }


def compare(root: Path, rounds: int) -> dict[str, Any]:
    """Compares both sides in alternating rounds, and measures the floor."""
    figures: dict[str, list[dict[str, float]]] = {}

    def side(name: str, kind: str, workers: int) -> Callable[[], float]:
        def run() -> float:
            figures.setdefault(name, []).append(in_a_process(kind, root, workers))
            return figures[name][-1]["cpu_ms"]

        return run

    theirs = {f"ImageFolder, {n} workers": n for n in range(CORES + 1)}
    sides = {OURS: side(OURS, OURS, CORES)}
    sides |= {name: side(name, "imagefolder", workers) for name, workers in theirs.items()}
    alternate(sides, rounds)
    document: dict[str, Any] = {"images": len(photos_of(root)), "workers": CORES, "rounds": figures}
    for figure in ("cpu_ms", "wall_ms"):
        each = {name: [one[figure] for one in figures[name]] for name in figures}
        best = min(theirs, key=lambda name: statistics.median(each[name]))
        gain = ratios(each[best], each[OURS])
        document[figure] = {
            "median": {name: statistics.median(values) for name, values in each.items()},
            "best_imagefolder": best,
            "imagefolder_over_mptui": gain,
        }
        print(f"  {figure}: {best} over mptui {gain['median']:.2f} ({gain['min']:.2f} to {gain['max']:.2f})")
    document["floor"] = decode_floor(root)
    print(f"  floor: {document['floor']}")
    document["off_pillow"] = difference_from_pillow(root)
    print(f"  off Pillow's pixels: {document['off_pillow']}")
    return document


def wait_of_a_run(root: Path) -> dict[str, Any]:
    """Measures the data wait of a real run: a ResNet-18 at 224 px, trained on the photos."""
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [
                *(sys.executable, "-m", "mptui", "run", "--json", "--runs-dir", folder),
                *("--model", "resnet18", "--data", str(root), "--batch-size", str(STEP_BATCH)),
                *("--max-steps", str(STEPS), "--workers", str(CORES), "--precision", "fp32", "--no-compile"),
                *("--set", f"data.image_size={SIDE}", "--set", "data.cache=off"),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    summary = json.loads(answer.stdout)
    waited = {
        "steps": summary["optimizer_steps"],
        "samples_per_second": summary["samples_per_second"],
        "data_wait_fraction": summary["time"]["data_wait_fraction"],
    }
    print(f"  {waited}")
    return waited


def main() -> None:
    """Measures and writes results/input.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--originals", type=Path, help="photographs to make the photos of")
    parser.add_argument("--only", choices=["mixed", "typical", "wait"])
    parser.add_argument("--side", choices=[OURS, "imagefolder"], help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        passing = mptui_pass if arguments.side == OURS else imagefolder_pass
        print(json.dumps(measured(passing(arguments.photos, arguments.workers))))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos" if arguments.photos is None else arguments.photos
        document: dict[str, Any] = {"set": prepared(root, arguments.originals), "cores": CORES}
        if arguments.only in {None, "mixed"}:
            print("all photos")
            document["mixed"] = compare(root, arguments.rounds)
        if arguments.only in {None, "typical"} and (root / "typical").is_dir():
            print(f"those of {SHARES['typical'][1]}")
            alone = Path(folder) / "typical"
            alone.mkdir()
            (alone / "typical").symlink_to((root / "typical").resolve())
            document["typical"] = compare(alone, arguments.rounds)
        if arguments.only in {None, "wait"}:
            print("ResNet-18")
            document["wait"] = wait_of_a_run(root)
    save(f"input-{arguments.only}" if arguments.only else "input", document)


if __name__ == "__main__":
    main()
