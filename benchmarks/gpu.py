"""GPU goals: ratios from alternating measurements, with the device's own ceilings.

    python -m benchmarks.gpu                                # ResNet-50 at 224, U-Net at 512, photos: hours
    python -m benchmarks.gpu --minutes 3                    # what tells most, within this time
    python -m benchmarks.gpu --only resnet50 --rounds 5
    python -m benchmarks.gpu --smoke                        # check the script on a CPU, with tiny networks

For each network: `mptui run` beside a bare loop, eager and in the compile modes, that of the profile `fast`
among them; `mptui run` in FP32-strict, FP32 (TF32) and AMP (the better of bf16 and fp16), all else equal and
compiled; its fraction of the physical bound; the best peer at its best settings; the peak memory of each. For
photos on disk: `mptui run` with everything on against a plain FP32 script. The batch is halved until a step
in FP32 fits the card. `peers.py` measures the peers alone; pytest -m gpu checks that no step waits for the
device.

Every side is a process (`benchmarks.forked`), and compiled code is kept for the sides of one call. Results
are written after each. A side that fails is told with its error, and the others go on; one that is not
expected to end in the time that is left is not begun, and is named.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

from benchmarks.common import RESULTS, parser_of, turn
from benchmarks.forked import Forks
from benchmarks.gpu_plan import AMP, SMOKE, Measurement, fitting, plan
from benchmarks.gpu_results import Results
from benchmarks.peers import floor
from benchmarks.sides import SIDES, environment, figures, missing
from benchmarks.subjects import ON_GPU, Case
from benchmarks.targets import GPU
from mptui.engine.compile import VARIABLE
from mptui.hardware.nvml import read_gpus
from mptui.torch_private import default_cache_dir

Get = Callable[[Measurement], dict[str, Any]]

OTHERWISE = {"compile_failed", "compile_impossible", "compile_undone", "compile_skipped"}
"""Warnings of a run that was not measured as asked."""
ERROR_CHARACTERS = 2000


def measure(
    sides: Sequence[Measurement],
    get: Get,
    results: Results,
    bounds: Mapping[str, Mapping[str, float]],
    *,
    rounds: int,
    left_s: Callable[[], float | None] = lambda: None,
) -> None:
    """Measures the sides in turn: with a limit of time always in their order, else forward and backward.

    Args:
        sides: What to measure.
        get: Measures one.
        results: Where the figures go.
        bounds: Physical bounds by part.
        rounds: How often to measure each.
        left_s: Seconds left; None: no limit.
    """
    compiled: set[tuple[str, str, str]] = set()
    by_place = {f"{each.part}: {each.name}": each for each in sides}
    for number in range(rounds):
        for name in turn(by_place, number if left_s() is None else 0):
            side, left = by_place[name], left_s()
            if results.has_failed(side):
                continue
            expected = needed = _expected_s(side, results, bounds, compiled)
            bare = by_place.get(f"{side.part}: {side.partner}", side)
            if bare is not side and not results.rounds_of(bare):  # one without the other tells little
                needed += _expected_s(bare, results, bounds, {*compiled, side.code})
            if left is not None and needed > left:
                results.leave_out(side, f"about {needed:.0f} s were expected and {max(0, left):.0f} s left")
                continue
            _measure(side, number, get, results, expected)
            compiled.add(side.code)


def _measure(side: Measurement, number: int, get: Get, results: Results, expected: float) -> None:
    began, name = time.monotonic(), f"{side.part}: {side.name}"
    try:
        found = get(side)
    except (RuntimeError, OSError) as error:
        results.leave_out(side, str(error)[-ERROR_CHARACTERS:], failed=True)
        told = f"failed: {str(error).strip()[-300:]}"
    else:
        seconds = round(time.monotonic() - began, 1)
        results.add(side, number, {**found, "seconds": seconds, "expected_s": round(expected, 1)})
        told = f"{side.case.batch / float(found['wall_s']):10.1f} images/s"
    print(f"{time.monotonic() - began:6.0f} s  {name:<40} {told}", flush=True)


def _expected_s(
    side: Measurement,
    results: Results,
    bounds: Mapping[str, Mapping[str, float]],
    compiled: Iterable[tuple[str, str, str]],
) -> float:
    """Returns the seconds that a side took before; else the expected ones."""
    before = [float(found["seconds"]) for found in results.rounds_of(side).values()]
    return before[-1] if before else side.expected_s(bounds[side.part]["images_per_second"], compiled)


def as_asked(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures.

    Raises:
        RuntimeError: The run went on otherwise than asked, as without its compiler or in smaller parts.
    """
    changes = [warning["message"] for warning in found.get("warnings", ()) if warning["code"] in OTHERWISE]
    changes += [json.dumps(recovery) for recovery in found.get("recoveries", ())]
    if changes:
        raise RuntimeError(f"the run went on otherwise than asked: {'; '.join(changes)}")
    return found


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


def _device(forks: Forks, case: Case) -> dict[str, Any]:
    """Describes the device as torch sees it, with its ceilings."""
    words = (sys.executable, "-m", "benchmarks.floors", case.device)
    ended = forks.run(words, environment(0))
    if ended.returncode:
        raise RuntimeError(f"the device can't be used:\n{ended.stderr[-ERROR_CHARACTERS:]}")
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, help="a smoke: 1, else 5")
    parser.add_argument("--minutes", type=float, help="time for all; unset: no limit")
    parser.add_argument("--only", choices=[*GPU, "photos"])
    parser.add_argument("--compile", help="in which precisions and peers are compared; a smoke: off")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, help="the file of the results")
    arguments = parser.parse_args()
    if not arguments.smoke and not torch.cuda.is_available():
        parser.error("there is no GPU; --smoke tries the commands on a CPU")
    smoke = arguments.smoke
    named = "-".join(filter(None, ("gpu", arguments.only, "smoke" if smoke else None)))
    arguments.out = arguments.out or (Path(tempfile.gettempdir()) if smoke else RESULTS) / f"{named}.json"
    arguments.rounds = arguments.rounds or (1 if smoke else 5)
    arguments.compile = arguments.compile or ("off" if smoke else "default")
    return arguments


def main() -> None:
    """Measures and writes results/gpu.json."""
    began = psutil.Process().create_time()
    arguments = _arguments()
    smoke, mode, minutes = arguments.smoke, arguments.compile, arguments.minutes
    cases = SMOKE if smoke else {name: replace(ON_GPU[name], device="cuda") for name in GPU}
    peers = [side for side in SIDES if side not in {"bare", "lightning-logging"}]
    left_out = {side: absent for side in peers if (absent := missing([side]))}

    def left_s() -> float | None:
        return None if minutes is None else 60 * minutes - (time.time() - began)

    with ExitStack() as stack:
        stack.enter_context(compiled_code())
        forks = stack.enter_context(Forks("cpu" if smoke else "cuda:0"))
        device = _device(forks, cases["resnet50"])
        cases = {name: fitting(case, device["free_bytes"]) for name, case in cases.items()}
        bounds = {
            name: floor(replace(case, precision=AMP[0]), device["ceilings"]) for name, case in cases.items()
        }
        bounds["photos"] = bounds["resnet50"]
        head = {
            "asked": {"rounds": arguments.rounds, "minutes": minutes, "compile": mode},
            "device": {**device, **_driver()},
            "cases": {name: asdict(case) for name, case in cases.items()},
            "left_out": left_out,
        }
        results = Results(arguments.out, head, bounds, mode)
        results.write()

        @cache
        def photos() -> str:
            return stack.enter_context(_folder(cases["resnet50"], 64 if smoke else 360))

        def get(side: Measurement) -> dict[str, Any]:
            case = replace(side.case, folder=photos()) if side.part == "photos" else side.case
            found = as_asked(figures(side.program, case, 0, side.flags, left_s(), forks.run))
            return {**found, "load": forks.load}

        sides = plan(cases, mode, [side for side in peers if side not in left_out], device["half"])
        if smoke:  # to compile takes a CPU minutes, and to start loaders seconds
            sides = [each for each in sides if each.case.compile == mode]
            os.environ["MPTUI_DATA_WORKERS"] = "0"
        chosen = [each for each in sides if arguments.only in {None, each.part}]
        measure(chosen, get, results, bounds, rounds=arguments.rounds, left_s=left_s)
    _tell(results.document())
    print(f"written: {arguments.out}")


@contextmanager
def compiled_code() -> Iterator[None]:
    """Keeps compiled code for the sides of this call alone, unless the environment names a folder."""
    before = os.environ.get(VARIABLE)
    if before not in {None, default_cache_dir()}:  # which torch itself sets on import
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ[VARIABLE] = folder
        try:
            yield
        finally:
            os.environ[VARIABLE] = default_cache_dir()


def _driver() -> dict[str, Any]:
    """Describes driver, clocks and load of the GPUs, and of the host."""
    report = read_gpus()
    told = (
        "name",
        "uuid",
        "utilisation",
        "memory_used",
        "power_w",
        "power_limit_w",
        "temperature_c",
        "sm_clock_mhz",
    )
    gpus = [{name: getattr(gpu, name) for name in told} for gpu in report.gpus]
    return {"driver": report.driver, "driver_cuda": report.cuda, "gpus": gpus, "host_load": os.getloadavg()}


def _tell(document: Mapping[str, Any]) -> None:
    for part in (*GPU, "photos"):
        for name, ratio in document.get(part, {}).items():
            for about, value in ratio.items() if name == "over_bare" else [("", ratio)]:
                if isinstance(value, dict) and "median" in value:
                    asked = f", asked {value['asked']}" if value.get("asked") else ""
                    print(f"  {part:<9} {name} {about:<24} {value['median']:.3f}{asked}")
    for side, why in (*document["left_out"].items(), *document["not_measured"].items()):
        print(f"  not measured: {side}: {why}")


if __name__ == "__main__":
    main()
