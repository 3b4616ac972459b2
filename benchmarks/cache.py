"""Caching: cached epochs against the first, a prepared set against its files, and scan times.

    python -m benchmarks.cache                   # 1,000 photos of mixed size, from installed photographs
    python -m benchmarks.cache --photos FOLDER   # your own photos, FOLDER/CLASS/*.jpg; created if empty
    python -m benchmarks.cache --only scan --files 1200000

The first part measures `data.cache = "ram"` at 224 px; each figure is a fresh process whose workers have
started, with the photos in the page cache. Its first epoch decodes and caches, later ones (`EPOCHS`) crop
from the cache; for comparison, the same with `off`, and with `off` on the set that `mptui prepare` made of
the photos. Freed memory stays with the process, as in every run. Figures are CPU time of the process and its
workers, and wall time, per image. torch uses one thread.

The second part opens a set of many files (hard links to a few JPEGs) in a process without a scan cache, then
in another with one, then the set that `mptui prepare` made of it in a third: seconds, CPU seconds, and memory
growth of the process per file.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.common import alternate, cpu_s, parser_of, ratios, save
from benchmarks.photos import photos_of, prepared
from mptui.config.schema import DataConfig
from mptui.data.cache_policy import CacheMode
from mptui.data.loader import Loader
from mptui.data.open import files_of, open_dataset
from mptui.data.prepare import ConversionRequest, prepare_set
from mptui.data.transforms import default_resize
from mptui.data.types import Dataset
from mptui.hardware.host import keep_freed_memory, usable_cpus
from mptui.registry.names import SampleKind
from mptui.registry.tasks import task_for
from tests.made.loaders import built_loader

SIDE = 224
BATCH = 64
EPOCHS = 2
CORES = usable_cpus()
FILES_A_FOLDER = 1000
LINKED = 50


def opened(root: Path) -> Dataset:
    return open_dataset(
        DataConfig(path=str(root)),
        kind=SampleKind.CLASS,
        side=SIDE,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda message: None,
    )


def epochs(root: Path, cache: CacheMode) -> dict[str, float]:
    """Returns milliseconds per image of the first epoch and of later ones."""
    torch.set_num_threads(1)
    keep_freed_memory()
    dataset = opened(root)
    with built_loader(
        dataset.train,
        kind=SampleKind.CLASS,
        batch_size=BATCH,
        side=SIDE,
        num_classes=len(dataset.classes),
        device=torch.device("cpu"),
        train=True,
        augment=True,
        seed=0,
        workers=CORES,
        cache=cache,
    ) as loader:
        samples = len(dataset.train)
        # The last batch of the first epoch first, then the epoch up to it: the workers have started by then.
        _timed(loader, [0], start=samples - BATCH)
        first = _timed(loader, [0], batches=(samples - BATCH) // BATCH)
        later = _timed(loader, range(1, 1 + EPOCHS))
    return {
        "first_cpu_ms": first[0],
        "first_wall_ms": first[1],
        "later_cpu_ms": later[0],
        "later_wall_ms": later[1],
    }


def _timed(
    loader: Loader, numbers: Iterable[int], start: int = 0, batches: int | None = None
) -> tuple[float, float]:
    """Returns CPU and wall milliseconds per image."""
    images, cpu, wall = 0, cpu_s(), time.perf_counter()
    for number in numbers:
        windows = islice(loader.windows(number, 1, start), batches)
        images += sum(batch.size for window in windows for batch in window)
    return (cpu_s() - cpu) / images * 1e3, (time.perf_counter() - wall) / images * 1e3


def in_a_process(*arguments: str) -> dict[str, float]:
    """Runs `main` with `arguments` in a fresh interpreter; returns what it prints."""
    command = [sys.executable, "-m", "benchmarks.cache", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def compare(root: Path, ready: Path, rounds: int) -> dict[str, Any]:
    """Compares all sides in alternating rounds."""
    figures: dict[str, list[dict[str, float]]] = {}

    def side(name: str, folder: Path, cache: str) -> Callable[[], float]:
        def run() -> float:
            figures.setdefault(name, []).append(in_a_process("--epochs-of", str(folder), "--cache", cache))
            return figures[name][-1]["later_cpu_ms"]

        return run

    sides = {
        "ram": side("ram", root, "ram"),
        "off": side("off", root, "off"),
        "prepared": side("prepared", ready, "off"),
    }
    alternate(sides, rounds)

    def each(name: str, figure: str) -> list[float]:
        return [one[figure] for one in figures[name]]

    document: dict[str, Any] = {"rounds": figures, "workers": CORES}
    for kind in ("cpu_ms", "wall_ms"):
        document[kind] = {
            "median": {
                name: {when: statistics.median(each(name, f"{when}_{kind}")) for when in ("first", "later")}
                for name in figures
            },
            "first_over_cached": ratios(each("ram", f"first_{kind}"), each("ram", f"later_{kind}")),
            "off_over_cached": ratios(each("off", f"later_{kind}"), each("ram", f"later_{kind}")),
            "off_over_prepared": ratios(each("off", f"later_{kind}"), each("prepared", f"later_{kind}")),
            "first_over_off": ratios(each("ram", f"first_{kind}"), each("off", f"later_{kind}")),
        }
        for name in ("first_over_cached", "off_over_cached", "off_over_prepared", "first_over_off"):
            gain = document[kind][name]
            print(f"  {kind} {name}: {gain['median']:.2f} ({gain['min']:.2f} to {gain['max']:.2f})")
    return document


def prepare(root: Path, out: Path) -> dict[str, Any]:
    """Prepares the photos for `SIDE`; returns their prepared size."""
    data = DataConfig(path=str(root))
    name, kind, found = files_of(data, None, lambda *_: None, lambda: False)
    order = ConversionRequest(name, str(task_for(kind)), found, out, SIDE, default_resize(SIDE), 90, data)
    started = time.perf_counter()
    ready = prepare_set(order, lambda line: None, lambda done, total: None, lambda: False)
    return {
        "seconds": time.perf_counter() - started,
        "bytes": sum(tar.bytes for tar in ready.about.tars),
        "bytes_before": sum(path.stat().st_size for path in photos_of(root)),
    }


def many_files(root: Path, count: int) -> None:
    """Creates a set of `count` files, each a hard link to one of `LINKED`."""
    (root / "originals").mkdir(parents=True)
    chance = np.random.default_rng(0)
    originals = [root / "originals" / f"{number}.jpg" for number in range(LINKED)]
    for number, path in enumerate(originals):
        Image.fromarray(chance.integers(0, 255, (40 + number, 60, 3), np.uint8)).save(path)
    for first in range(0, count, FILES_A_FOLDER):
        folder = root / "set" / f"n{first:08d}"
        folder.mkdir(parents=True)
        for number in range(first, min(first + FILES_A_FOLDER, count)):
            os.link(originals[number % LINKED], folder / f"n{first:08d}_{number:08d}.JPEG")


def scan(root: Path) -> dict[str, float]:
    """Opens a set; returns the time and memory used."""
    process = psutil.Process()
    before, started = process.memory_info().rss, time.perf_counter()
    dataset = opened(root)
    wall_s = time.perf_counter() - started
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    count = len(dataset.train) + len(dataset.val)
    return {
        "files": count,
        "wall_s": wall_s,
        "cpu_s": own.ru_utime + own.ru_stime,
        "children_cpu_s": children.ru_utime + children.ru_stime,
        "bytes_a_file": (process.memory_info().rss - before) / count,
        "peak_bytes": own.ru_maxrss * 1024,
    }


def scans(files: int) -> dict[str, Any]:
    """Scans a set without a scan cache, then with one."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        many_files(root, files)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        figures = {name: in_a_process("--scan-of", str(root / "set")) for name in ("first", "second")}
        prepare(root / "set", root / "ready")
        figures["prepared"] = in_a_process("--scan-of", str(root / "ready"))
    for name, told in figures.items():
        print(f"  {name}: " + ", ".join(f"{key} {value:,.1f}" for key, value in told.items()))
    return figures


def main() -> None:
    """Measures and writes results/cache.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--originals", type=Path, help="photographs to make the photos of")
    parser.add_argument("--files", type=int, default=200_000, help="of the set that is scanned")
    parser.add_argument("--only", choices=["epochs", "scan"])
    parser.add_argument("--epochs-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--scan-of", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.epochs_of:
        print(json.dumps(epochs(arguments.epochs_of, arguments.cache)))
        return
    if arguments.scan_of:
        print(json.dumps(scan(arguments.scan_of)))
        return
    document: dict[str, Any] = {}
    if arguments.only in {None, "epochs"}:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "photos" if arguments.photos is None else arguments.photos
            document["set"] = prepared(root, arguments.originals)
            document["prepare"] = prepare(root, Path(folder) / "ready")
            print(f"  prepared: {document['prepare']}")
            document["epochs"] = compare(root, Path(folder) / "ready", arguments.rounds)
            shutil.rmtree(Path(folder) / "ready")
    if arguments.only in {None, "scan"}:
        document["scan"] = scans(arguments.files)
    save(f"cache-{arguments.only}" if arguments.only else "cache", document)


if __name__ == "__main__":
    main()
