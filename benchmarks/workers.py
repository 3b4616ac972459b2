"""Processes that read: mptui's pool against torch's `DataLoader`, both with mptui's decoder and crops.

    python -m benchmarks.workers                   # 1,000 photos of mixed size, from installed photographs
    python -m benchmarks.workers --photos FOLDER   # your own photos, FOLDER/CLASS/*.jpg; created if empty

Both sides make the same batches of 64 uint8 crops at 224 px, by position: `DataLoader` from a map-style data
set with `__getitems__`, a batch sampler that yields (epoch, index), persistent workers, and processes of
`forkserver` with torch loaded once, or of `spawn`: forks of the trainer are no choice beside its threads and
CUDA. mptui's batches are normalized to float32 on top. Each figure is a fresh process with one worker per
core:

- seconds to the first batch, with the start of the workers;
- CPU and wall milliseconds per image of `PASSES` passes after it, all processes together;
- memory of the workers and of a process that starts them, shared pages divided by their users (PSS);
- seconds to the first batch of the next pass where a pass is left in its middle, as a rollback does;
- what a killed worker costs: seconds to the next batches, or the error;
- with `--small-shm` (root; Linux): whether a pass works where /dev/shm has 64 MiB, as containers have it, and
  the trainer is slower than its workers.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from benchmarks.common import alternate, cpu_s, parser_of, ratios, save, spread
from benchmarks.input import BATCH, CORES, OURS, PASSES, SIDE, Photos, mptui_loader
from benchmarks.photos import photos_of, prepared
from mptui.data.loader import Loader
from mptui.data.rng import RandomStream, uniforms
from mptui.data.sampler import EpochOrder
from mptui.data.transforms import DRAWS, Geometry, cut_image, resized, views
from mptui.hardware.host import keep_freed_memory
from mptui.registry.names import SampleKind

SIDES = (OURS, "forkserver", "spawn")
LEFT_AT = 3
"""Batches after which a pass is left."""
SMALL_SHM = "64m"
LONG_STEP_S = 5.0
"""Seconds in which the workers fill all that they may."""

Place = tuple[int, int]
"""Epoch and index of a sample."""


class Crops(Dataset[torch.Tensor]):
    """Random crops of photos, a batch at once, written to memory that the trainer shares."""

    def __init__(self, photos: Photos) -> None:
        self.photos = photos
        self.geometry = Geometry.for_training(SampleKind.CLASS, SIDE)

    def __len__(self) -> int:
        return len(self.photos)

    def __getitems__(self, places: Sequence[Place]) -> torch.Tensor:
        images_BHWC = torch.empty(len(places), SIDE, SIDE, 3, dtype=torch.uint8)
        images_BHWC.share_memory_()  # type: ignore[no-untyped-call]
        indices = np.array([index for _, index in places])
        draws_BD = uniforms(RandomStream.GEOMETRY, 0, places[0][0], indices, count=DRAWS)
        for row, index in enumerate(indices.tolist()):
            sample = resized(self.photos.request(index).read(self.geometry.resize), self.geometry.resize)
            height, width = sample.image_HWC.shape[:2]
            boxes, flips = views(
                self.geometry, draws_BD[row : row + 1], np.array([float(width)]), np.array([float(height)])
            )
            images_BHWC[row] = torch.from_numpy(cut_image(sample.image_HWC, boxes[0], flips[0], SIDE))
        return images_BHWC


class Places(Sampler[list[Place]]):
    """Batches of an epoch's order, by position."""

    def __init__(self, count: int) -> None:
        self.order = EpochOrder(count, BATCH, True, 0)
        self.epoch = 0

    def __iter__(self) -> Iterator[list[Place]]:
        indices = self.order.of(self.epoch).tolist()
        for first in range(0, self.order.end(0), BATCH):
            yield [(self.epoch, index) for index in indices[first : first + BATCH]]


def as_it_is(batch: Any) -> Any:  # noqa: ANN401 - as a DataLoader types it
    """Returns the batch of a data set that makes batches itself."""
    return batch


class Side:
    """One of the two sides: passes of batches, with its workers."""

    _ours: Loader | None = None

    def __init__(self, name: str, root: Path) -> None:
        if name == OURS:
            self._ours = mptui_loader(root, CORES)
            return
        photos = Photos([str(path) for path in photos_of(root)])
        context = get_context(name)
        if name == "forkserver":
            context.set_forkserver_preload(["torch", "benchmarks.workers"])
        self._places = Places(len(photos))
        self._theirs = DataLoader(
            Crops(photos),
            batch_sampler=self._places,
            collate_fn=as_it_is,
            num_workers=CORES,
            persistent_workers=True,
            prefetch_factor=4,
            multiprocessing_context=context,
        )

    def begin(self, epoch: int) -> Iterator[int]:
        """Begins a pass; yields the size of each batch."""
        if self._ours is not None:
            return (batch.size for window in self._ours.windows(epoch, 1) for batch in window)
        self._places.epoch = epoch
        return (len(batch) for batch in self._theirs)


def first_worker() -> int:
    """Returns the process id of a process that reads, not of one that forks them or counts shares."""
    for process in psutil.Process().children(recursive=True):
        if not process.children() and not any("resource_tracker" in each for each in process.cmdline()):
            return int(process.pid)
    raise RuntimeError("no worker is there")


def pss_mb() -> float:
    """Returns the memory of all children in megabytes, shared pages divided by their users."""
    children = psutil.Process().children(recursive=True)
    return float(sum(each.memory_full_info().pss for each in children)) / 1e6


def measured(name: str, root: Path, *, pause_s: float = 0.0) -> dict[str, Any]:
    """Returns the figures of one side, whose first batch is trained for `pause_s` seconds."""
    torch.set_num_threads(1)
    keep_freed_memory()
    started = time.perf_counter()
    side = Side(name, root)
    coming = side.begin(0)
    next(coming)
    first_batch_s = time.perf_counter() - started
    time.sleep(pause_s)
    for _ in coming:
        pass
    before, started = cpu_s(), time.perf_counter()
    images = sum(sum(side.begin(1 + number)) for number in range(PASSES))
    cpu_ms, wall_ms = (cpu_s() - before) / images * 1e3, (time.perf_counter() - started) / images * 1e3
    memory_mb = pss_mb()
    left = side.begin(8)
    for _ in range(LEFT_AT):
        next(left)
    started = time.perf_counter()
    del left
    coming = side.begin(9)
    next(coming)
    next_pass_s = time.perf_counter() - started
    os.kill(first_worker(), signal.SIGKILL)
    started, error = time.perf_counter(), ""
    try:
        for _ in coming:
            pass
        images_after = sum(side.begin(10))
    except RuntimeError as raised:
        error, images_after = str(raised).splitlines()[0], 0
    return {
        "first_batch_s": first_batch_s,
        "cpu_ms": cpu_ms,
        "wall_ms": wall_ms,
        "memory_mb": memory_mb,
        "next_pass_s": next_pass_s,
        "after_a_kill": error or f"{images_after} images in the next pass",
    }


def in_a_process(name: str, root: Path, *, small_shm: bool = False) -> dict[str, Any]:
    """Runs `measured` for one side in a fresh interpreter; with `small_shm`, with a small /dev/shm."""
    command = [sys.executable, "-m", "benchmarks.workers", "--side", name, "--photos", str(root)]
    if small_shm:
        mount = f'mount -t tmpfs -o size={SMALL_SHM} tmpfs /dev/shm && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", mount, "sh", *command, "--pause", str(LONG_STEP_S)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or ["?"]
        return {"error": lines[-1], "exit": answer.returncode}
    figures: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """Measures and writes results/workers.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--originals", type=Path, help="photographs to make the photos of")
    parser.add_argument("--small-shm", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=0.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(measured(arguments.side, arguments.photos, pause_s=arguments.pause)))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos" if arguments.photos is None else arguments.photos
        document: dict[str, Any] = {"set": prepared(root, arguments.originals), "workers": CORES}
        figures: dict[str, list[dict[str, Any]]] = {name: [] for name in SIDES}

        def side(name: str) -> float:
            figures[name].append(in_a_process(name, root))
            return float(figures[name][-1]["wall_ms"])

        alternate({name: lambda name=name: side(name) for name in SIDES}, arguments.rounds)  # type: ignore[misc]
        for key in ("first_batch_s", "cpu_ms", "wall_ms", "memory_mb", "next_pass_s"):
            each = {name: [one[key] for one in figures[name]] for name in SIDES}
            document[key] = {name: spread(values) for name, values in each.items()}
            document[key] |= {f"{name} over mptui": ratios(each[name], each[OURS]) for name in SIDES[1:]}
            told = ", ".join(f"{name} {statistics.median(values):.3g}" for name, values in each.items())
            print(f"  {key}: {told}")
        document["after_a_kill"] = {name: figures[name][0]["after_a_kill"] for name in SIDES}
        if arguments.small_shm:
            document["small_shm"] = {name: in_a_process(name, root, small_shm=True) for name in SIDES}
        print(
            json.dumps(
                {key: document[key] for key in ("after_a_kill", "small_shm") if key in document}, indent=2
            )
        )
    save("workers", document)


if __name__ == "__main__":
    main()
