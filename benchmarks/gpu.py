"""GPU goals: ratios from alternating measurements, with the device's own ceilings.

    python -m benchmarks.gpu                                # ResNet-50 at 224, U-Net at 512, photos: hours
    python -m benchmarks.gpu --only resnet50 --rounds 5
    python -m benchmarks.gpu --smoke                        # check the script on a CPU, with tiny networks

For each network: `mptui run` in FP32-strict, FP32 (TF32) and AMP (the better of bf16 and fp16), all else
equal and compiled; its fraction of the physical bound; the best peer at its best settings; the peak memory
of each. For photos on disk: `mptui run` with everything on against a plain FP32 script. `peers.py` measures
the peers alone; pytest -m gpu checks that no step waits for the device.
"""

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.common import alternate, parser_of, ratios, save
from benchmarks.floors import ceilings
from benchmarks.peers import floor
from benchmarks.sides import SIDES, figures, missing
from benchmarks.subjects import ON_GPU, Case
from benchmarks.targets import GPU, GPU_MEMORY, GPU_PHOTOS, OnGpu

Figures = Callable[..., Mapping[str, Any]]

AMP = ("bf16", "fp16")
MICRO_BATCHES = 4
"""Micro-batches per step of memory-limited, for the same batch."""
MEMORY_STEPS = 12


SMOKE = {
    "resnet50": Case("resnet18", side=32, batch=8, classes=4, steps=8, warm_up=2),
    "unet": Case("unet", side=32, batch=2, classes=3, steps=8, warm_up=2, width=4),
}


def speed(
    case: Case, target: OnGpu, *, rounds: int, peers: Sequence[str], get: Figures = figures
) -> dict[str, Any]:
    """Measures the throughput of `mptui run` in each precision and of the peers, and the goals' ratios."""
    strict = replace(case, precision="fp32", tf32=False)
    cases = {
        "fp32": strict,
        "tf32": replace(strict, tf32=True),
        **{dtype: replace(case, precision=dtype) for dtype in AMP},
    }

    def rate(side: str, chosen: Case) -> float:
        return chosen.batch / float(get(side, chosen)["wall_s"])

    ours = {f"mptui {name}": lambda c=chosen: rate("mptui", c) for name, chosen in cases.items()}
    theirs = {f"{side} {dtype}": lambda s=side, d=dtype: rate(s, cases[d]) for side in peers for dtype in AMP}
    rates = alternate({**ours, **theirs}, rounds)
    amp = max((f"mptui {dtype}" for dtype in AMP), key=lambda name: statistics.median(rates[name]))
    reached = ceilings(torch.device(case.device), torch.bfloat16)
    lowest = floor(cases[amp.split()[1]], reached)
    found: dict[str, Any] = {
        "floor_share": {
            **ratios(rates[amp], [lowest["images_per_second"]] * rounds),
            "asked": target.floor_share,
        },
        "amp_over_tf32": {**ratios(rates[amp], rates["mptui tf32"]), "asked": target.over_tf32},
        "amp_over_fp32": {**ratios(rates[amp], rates["mptui fp32"]), "asked": target.over_fp32},
    }
    if theirs:
        best = max(theirs, key=lambda name: statistics.median(rates[name]))
        found["best_peer"] = best
        found["over_best_peer"] = {**ratios(rates[amp], rates[best]), "asked": target.over_peer}
    return {"images_per_second": rates, "amp": amp, "ceilings": reached, "floor": lowest, **found}


def memory(case: Case, get: Figures = figures) -> dict[str, Any]:
    """Measures peak device memory of a few steps, as fractions of FP32's."""
    few = replace(case, steps=MEMORY_STEPS, warm_up=2, resident=False, precision="fp32", compile="off")
    amp = replace(few, precision=AMP[0])
    part = replace(amp, batch=max(1, case.batch // MICRO_BATCHES))
    peaks = {
        "fp32": get("mptui", few)["peak_bytes"],
        "amp": get("mptui", amp)["peak_bytes"],
        "amp compiled": get("mptui", replace(amp, compile=case.compile))["peak_bytes"],
        "memory-limited": get("mptui", part, flags=["--profile", "memory-limited"])["peak_bytes"],
    }
    found: dict[str, Any] = {"peak_bytes": peaks}
    for name, share in GPU_MEMORY.items():
        if peaks["fp32"]:  # not measured on a CPU
            found[name] = {"share": peaks[name] / peaks["fp32"], "asked_at_most": share}
    return found


def photos(case: Case, *, rounds: int, side: int, get: Figures = figures) -> dict[str, Any]:
    """Compares `mptui run` with everything on to a tutorial's plain FP32 script, from JPEG to weights."""
    with _folder(case, side) as folder:
        everything = replace(case, precision=AMP[0], folder=folder)
        plain = replace(everything, precision="fp32", compile="off", channels_last=False)
        rates = alternate(
            {
                "mptui": lambda: case.batch / float(get("mptui", everything)["wall_s"]),
                "plain script": lambda: case.batch / float(get("bare", plain)["wall_s"]),
            },
            rounds,
        )
    over = {**ratios(rates["mptui"], rates["plain script"]), "asked": GPU_PHOTOS}
    return {"images_per_second": rates, "over_plain_script": over}


@contextmanager
def _folder(case: Case, side: int) -> Iterator[str]:
    """Creates class folders with an epoch of JPEGs: a few hundred pictures, each under many names."""
    rng, count = np.random.default_rng(0), int(case.samples / 0.8) + case.batch
    with tempfile.TemporaryDirectory() as folder:
        for number in range(case.classes):
            Path(folder, f"class{number}").mkdir()
        made: list[Path] = []
        for number in range(count):
            path = Path(folder, f"class{number % case.classes}", f"{number}.jpg")
            if len(made) < 256:
                coarse = rng.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
                picture = Image.fromarray(coarse).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
                picture.save(path, quality=90)
                made.append(path)
            else:
                path.hardlink_to(random.choice(made))
        yield folder


def main() -> None:
    """Measures and writes results/gpu.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=[*GPU, "photos"])
    parser.add_argument("--compile", default="default", help="of all that is compared")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    peers = [side for side in SIDES if side not in {"bare", "lightning-logging"}]
    if not arguments.smoke and (absent := missing(peers)):
        parser.error(absent)
    if not arguments.smoke and not torch.cuda.is_available():
        parser.error("there is no GPU; --smoke tries the commands on a CPU")
    cases = SMOKE if arguments.smoke else ON_GPU
    rounds, peers = (1, ["recipe"]) if arguments.smoke else (arguments.rounds, peers)
    chosen = {} if arguments.smoke else {"device": "cuda", "compile": arguments.compile}
    document: dict[str, Any] = {"rounds": rounds, "compile": arguments.compile}
    for name, target in GPU.items():
        if arguments.only in {None, name}:
            case = replace(cases[name], **chosen)
            beside = peers if target.over_peer is not None else []
            document[name] = {**speed(case, target, rounds=rounds, peers=beside), "memory": memory(case)}
    if arguments.only in {None, "photos"}:
        case = replace(cases["resnet50"], **chosen)
        document["photos"] = photos(case, rounds=rounds, side=64 if arguments.smoke else 360)
    if not arguments.smoke:
        save(f"gpu-{arguments.only}" if arguments.only else "gpu", document)


if __name__ == "__main__":
    main()
