"""Throughput of `mptui predict` on images in memory, against a bare inference loop.

    python -m benchmarks.predict                # ResNet-18 at 64 px
    python -m benchmarks.predict --threads 1    # on a busy machine: see below

Both sides classify the same images with the same network, precision and memory layout, in one process and in
short alternating rounds: mptui from its loader, with the images in memory, to rows of CSV; the bare loop from
a list of normalised batches to probabilities in a list. `wall` is the ratio of images per second, `processor`
that of images per second of processor time, which with one thread is reliable on a busy machine too: several
threads also spend it waiting for each other.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

import torch

from benchmarks.common import RESNET18, alternate, parser_of, ratios, save, spread
from mptui.data.dataset import PathTable
from mptui.data.loader import Loader
from mptui.data.open import shapes
from mptui.data.types import Split
from mptui.hardware.host import keep_freed_memory
from mptui.lab.use.predict import CsvTable, InputFiles, PredictionRun, loader_of
from mptui.lab.use.trained import Trained, open_trained
from mptui.registry.names import SampleKind


def trained_in(folder: Path, batch: int) -> Trained:
    """Trains a run of one step, and opens it with its data cached in memory."""
    command = [sys.executable, "-m", "mptui", "run", "--runs-dir", str(folder), "--name", "run", "--quiet"]
    command += ["--model", RESNET18.model, "--data", "shapes", "--max-steps", "1", "--precision", "fp32"]
    command += ["--set", f"data.image_size={RESNET18.side}", "--set", "data.samples=64", "--no-compile"]
    subprocess.run(command, check=True)
    flags = {"data.cache": ("benchmark", "device"), "training.batch_size": ("benchmark", batch)}
    return open_trained(folder / "run", None, flags, note=print)


def predicting(trained: Trained, split: Split, loader: Loader, out: TextIO) -> Callable[[], None]:
    """Returns a pass of mptui."""
    files = InputFiles(PathTable(f"{number}.png" for number in range(len(split))), "/")

    def run() -> None:
        work = PredictionRun(trained, files, False, lambda done, total: None, print, print)
        work.classes_from(loader, CsvTable(out, trained.classes, trained.precision.name))

    return run


def bare(trained: Trained, loader: Loader) -> Callable[[], None]:
    """Returns a pass of the bare loop."""
    batches = [batch.images_BCHW.clone() for window in loader.windows(0, 1) for batch in window]

    def run() -> None:
        found = []
        with torch.inference_mode():
            for images_BCHW in batches:
                with trained.precision.forward_context():
                    outputs_BK = trained.model(images_BCHW)
                found.append(outputs_BK.float().softmax(dim=1).cpu())

    return run


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    images: int = given.images
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        trained = trained_in(Path(folder), given.batch_size)
        split = shapes(SampleKind.CLASS, images, RESNET18.side, seed=1).train
        with loader_of(trained, split, print) as loader:
            passes = {
                "mptui predict": predicting(trained, split, loader, nowhere),
                "bare loop": bare(trained, loader),
            }
            for run in passes.values():
                run()
            processor: dict[str, list[float]] = {name: [] for name in passes}

            def measured(name: str) -> float:
                wall_s, cpu_s = time.perf_counter(), time.process_time()
                passes[name]()
                processor[name].append(images / (time.process_time() - cpu_s))
                return images / (time.perf_counter() - wall_s)

            wall = alternate({name: partial(measured, name) for name in passes}, given.rounds)
    ours, theirs = passes
    document = {
        "images": images,
        "batch": given.batch_size,
        "load": os.getloadavg(),
        "rounds": given.rounds,
        "images_per_second": {name: spread(figures) for name, figures in wall.items()},
        "wall": ratios(wall[ours], wall[theirs]),
        "processor": ratios(processor[ours], processor[theirs]),
    }
    print(f"  over the bare loop: wall {document['wall']}, processor time {document['processor']}")
    save("predict", document)


if __name__ == "__main__":
    main()
