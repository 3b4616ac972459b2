"""JPEG files decoded by the workers, and on the device: `data.decode`.

    python -m benchmarks.decoding                  # 1,000 photos made of installed photographs
    python -m benchmarks.decoding --photos FOLDER  # of your own, FOLDER/CLASS/*.jpg; made there if none
    python -m benchmarks.decoding --smoke          # on a CPU: that it runs

The first part is the input alone: photos on disk to batches at 224 px on the device, at several counts of
workers. Each figure is a fresh process that goes through the photos once to warm up and then `PASSES` times:
images a second, and CPU time of the process and its workers an image. Beside it stands how far the pixels of
the two ways are apart.

The second part is `mptui run`: a network at 224 px that trains from these photos, with either way and with
`auto`, whose choice and reason are noted. What the device decodes is there taken from the training.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import alternate, cpu_s, ratios, save
from benchmarks.input import BATCH, CORES, SIDE, Photos
from benchmarks.photos import photos_of, prepared
from mptui.data.decode.device_jpeg import why_not
from mptui.data.loading.loader import Loader
from mptui.hardware.memory import keep_freed_memory
from mptui.registry.samples import SampleKind

PASSES = 2
WAYS = ("cpu", "device")
SMOKE_SIDE = 32
"""With a tiny network: what `--smoke` is to show is that all of it runs."""


def loader(root: Path, device: torch.device, way: str, workers: int) -> Loader:
    """Batches of the photos; one class."""
    return Loader(
        Photos([str(path) for path in photos_of(root)]),
        kind=SampleKind.CLASS,
        batch_size=BATCH,
        side=SIDE,
        num_classes=1,
        device=device,
        train=True,
        augment=True,
        seed=0,
        workers=workers,
        decode_on_device=way == "device",
    )


def measured(root: Path, device: torch.device, way: str, workers: int) -> dict[str, float]:
    """Images a second, and milliseconds of CPU time an image, after a pass to warm up."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as in `mptui run`
    with loader(root, device, way, workers) as photos:

        def one_pass(epoch: int) -> int:
            images = sum(batch.size for window in photos.windows(epoch, 1) for batch in window)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return images

        one_pass(0)
        before, started = cpu_s(), time.perf_counter()
        images = sum(one_pass(1 + number) for number in range(PASSES))
        wall_s = time.perf_counter() - started
        return {"images_per_second": images / wall_s, "cpu_ms": (cpu_s() - before) / images * 1e3}


def in_a_process(root: Path, device: torch.device, way: str, workers: int) -> dict[str, float]:
    """`measured`, by a fresh interpreter."""
    command = [sys.executable, "-m", "benchmarks.decoding", "--way", way, "--workers", str(workers)]
    command += ["--photos", str(root), "--device", str(device)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def apart(root: Path, device: torch.device) -> dict[str, float]:
    """How far the pixels of the two ways are apart, of 255: on average, and in the worst photo."""
    offs = []
    with loader(root, device, "cpu", 1) as by_workers, loader(root, device, "device", 1) as by_device:
        for ours, theirs in zip(by_device.windows(0, 1), by_workers.windows(0, 1), strict=True):
            for one, other in zip(ours, theirs, strict=True):
                # normalised by ImageNet's deviations and jittered colours: 0.225 on average
                off = (one.images_BCHW - other.images_BCHW).abs().mean(dim=(1, 2, 3)) * 0.225 * 255
                offs += off.tolist()
    return {"mean": statistics.mean(offs), "worst_photo": max(offs)}


def compare(root: Path, device: torch.device, rounds: int, counts: Sequence[int]) -> dict[str, Any]:
    """Both ways at each count of workers, in rounds that alternate."""
    figures: dict[str, list[dict[str, float]]] = {}

    def side(way: str, workers: int) -> Callable[[], float]:
        def run() -> float:
            found = in_a_process(root, device, way, workers)
            figures.setdefault(f"{way} {workers}", []).append(found)
            return found["images_per_second"]

        return run

    sides = {f"{way} {workers}": side(way, workers) for workers in counts for way in WAYS}
    rates = alternate(sides, rounds)
    cpu = {name: [each["cpu_ms"] for each in found] for name, found in figures.items()}
    return {
        "images": len(photos_of(root)),
        "workers": list(counts),
        "images_per_second": rates,
        "cpu_ms": cpu,
        "device_over_cpu": {str(n): ratios(rates[f"device {n}"], rates[f"cpu {n}"]) for n in counts},
        "cpu_time_saved": {str(n): ratios(cpu[f"cpu {n}"], cpu[f"device {n}"]) for n in counts},
        "apart": apart(root, device),
    }


def trained(root: Path, device: torch.device, way: str, model: str, *, smoke: bool) -> dict[str, Any]:
    """A run of `mptui` from the photos: its images a second, what it waits for data, and who decoded."""
    size = ["--batch-size", "8", "--max-steps", "6"] if smoke else ["--batch-size", "256", "--epochs", "60"]
    with tempfile.TemporaryDirectory() as folder:
        answer = subprocess.run(
            [
                *(sys.executable, "-m", "mptui", "run", "--json", "--runs-dir", folder, "--name", "run"),
                *("--model", model, "--data", str(root), "--device", str(device), *size),
                *("--set", f"data.image_size={SMOKE_SIDE if smoke else SIDE}", "--set", "data.cache=off"),
                *("--set", f"data.decode={way}", "--no-compile"),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        events = [path.read_text() for path in Path(folder).glob("*/events.jsonl")]
    summary = json.loads(answer.stdout)
    started = next(json.loads(line) for line in events[0].splitlines() if '"run_started"' in line)
    return {
        "samples_per_second": summary["samples_per_second"],
        "data_wait_fraction": summary["time"]["data_wait_fraction"],
        "notes": [note for note in started["notes"] if "JPEG" in note],
    }


def runs(root: Path, device: torch.device, rounds: int, model: str, *, smoke: bool) -> dict[str, Any]:
    """Runs with either way and with `auto`, in rounds that alternate."""
    found: dict[str, list[dict[str, Any]]] = {}

    def side(way: str) -> Callable[[], float]:
        def run() -> float:
            found.setdefault(way, []).append(trained(root, device, way, model, smoke=smoke))
            return float(found[way][-1]["samples_per_second"])

        return run

    rates = alternate({way: side(way) for way in (*WAYS, "auto")}, rounds)
    best = max(WAYS, key=lambda way: statistics.median(rates[way]))
    return {
        "model": model,
        "rounds": found,
        "best": best,
        "auto_over_best": ratios(rates["auto"], rates[best]),
    }


def main() -> None:
    """Measure, and write results/decoding.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--originals", type=Path, help="photographs to make the photos of")
    parser.add_argument("--only", choices=["input", "runs"])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        device = torch.device(arguments.device)
        print(json.dumps(measured(arguments.photos, device, arguments.way, arguments.workers)))
        return
    device = torch.device("cpu" if arguments.smoke else "cuda")
    if not arguments.smoke and not torch.cuda.is_available():
        parser.error("there is no GPU; --smoke tries the commands on a CPU")
    if reason := why_not(device):
        parser.error(reason)
    rounds = 1 if arguments.smoke else arguments.rounds
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "photos" if arguments.photos is None else arguments.photos
        document: dict[str, Any] = {"set": prepared(root, arguments.originals), "rounds": rounds}
        if arguments.only in {None, "input"}:
            counts = sorted({1, max(1, CORES // 4), CORES})
            document["input"] = compare(root, device, rounds, counts)
        if arguments.only in {None, "runs"}:
            model = "resnet18" if arguments.smoke else "resnet50"
            document["runs"] = runs(root, device, rounds, model, smoke=arguments.smoke)
    if not arguments.smoke:
        save(f"decoding-{arguments.only}" if arguments.only else "decoding", document)


if __name__ == "__main__":
    main()
