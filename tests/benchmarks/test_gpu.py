"""The plan, the limits and the results of `benchmarks.gpu`, with figures as its processes would tell them."""

import json
import os
import sys
from dataclasses import replace

import pytest

from benchmarks import gpu, gpu_results
from benchmarks.forked import MODULES, Forks, load_of
from benchmarks.gpu_plan import SMOKE, START_S, fitting, own_mode, plan
from benchmarks.gpu_results import Results
from benchmarks.sides import environment, train
from benchmarks.subjects import ON_GPU
from benchmarks.targets import OnGpu
from mptui.engine.compile import VARIABLE
from mptui.events import DeviceSample
from mptui.torch_private import default_cache_dir

CASES = {**SMOKE, "resnet50": replace(SMOKE["unet"], batch=2)}
SECONDS = {"fp32": 8.0, "tf32": 4.0, "bf16": 2.5, "fp16": 2.0}
BOUNDS = {name: {"images_per_second": 1000.0} for name in (*CASES, "photos")}
GIB = 1 << 30


def told_by(side):
    """Return figures as the process of a side would."""
    case = side.case
    kind = "tf32" if case.precision == "fp32" and case.tf32 else case.precision
    peak = 50 if case.precision in {"bf16", "fp16"} else 100
    slower = {"mptui": 1.0, "bare": 1.1, "recipe": 2.5 if kind == "fp16" else 1.2}[side.program]
    return {"wall_s": SECONDS[kind] * slower, "peak_bytes": peak // 2 if side.flags else peak}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measure what `get` tells, and return the file of the results."""
    monkeypatch.setattr(gpu_results, "GPU", dict.fromkeys(CASES, OnGpu(0.5, 1.6, 3.5, 1.15)))
    path = tmp_path / "gpu.json"

    def measured(get=told_by, parts=("resnet50", "unet", "photos"), **options):
        sides = [each for each in plan(CASES, "default", ["recipe"]) if each.part in parts]
        results = Results(path, {"left_out": {}}, BOUNDS, "default")
        gpu.measure(sides, get, results, BOUNDS, **{"rounds": 1, **options})
        return json.loads(path.read_text())

    return measured


def test_the_ratios_are_of_the_better_half_precision_and_the_best_peer(measured):
    found = measured(rounds=2)
    part = found["resnet50"]
    assert part["amp"] == "mptui fp16 default"
    assert (part["amp_over_tf32"]["median"], part["amp_over_fp32"]["median"]) == (2.0, 4.0)
    assert (part["best_peer"], part["over_best_peer"]["median"]) == ("recipe bf16 default", 1.5)
    assert part["floor_share"]["median"] == 0.001  # two images in two seconds
    assert part["memory"]["amp"]["share"] == 0.5
    assert part["memory"]["memory-limited"]["share"] == 0.25
    assert set(part["over_bare"]) == {
        f"bf16 {mode}" for mode in ("off", "default", own_mode(), "reduce-overhead")
    }
    assert all(ratio["median"] == pytest.approx(1.1) for ratio in part["over_bare"].values())
    assert found["photos"]["over_plain_script"]["median"] == pytest.approx(1.1 * 4 / 2.5)
    assert found["not_measured"] == {}


def test_a_side_that_fails_is_told_and_what_was_had_is_in_the_file_all_the_time(measured, tmp_path):
    counts, path = [], tmp_path / "gpu.json"

    def get(side):
        if path.exists():
            counts.append(sum(map(len, json.loads(path.read_text())["sides"].values())))
        if side.name == "bare bf16 off" and side.part == "resnet50":
            raise RuntimeError("Traceback\n  of many lines\nno such kernel")
        return told_by(side)

    found = measured(get, rounds=2)
    sides = sum(map(len, found["sides"].values()))
    assert counts[: sides - 1] == list(range(1, sides))
    assert found["not_measured"] == {"resnet50: bare bf16 off": "no such kernel"}
    assert "of many lines" in found["sides"]["resnet50"]["bare bf16 off"]["error"]
    assert "bf16 off" not in found["resnet50"]["over_bare"]
    assert found["resnet50"]["over_bare"]["bf16 default"]["median"] == pytest.approx(1.1)


def test_within_a_time_what_tells_most_comes_first_and_the_rest_is_named(measured):
    left = [200.0]

    def get(side):
        left[0] -= 30
        return told_by(side)

    found = measured(get, parts=["resnet50"], rounds=3, left_s=lambda: left[0])
    assert list(found["sides"]["resnet50"])[:2] == ["mptui bf16 off", "bare bf16 off"]
    assert {"mptui bf16 default", "bare bf16 default"} <= found["sides"]["resnet50"].keys()
    assert "were expected and" in found["not_measured"][f"resnet50: mptui bf16 {own_mode()}"]
    assert left[0] >= -30
    named = {
        f"{each.part}: {each.name}" for each in plan(CASES, "default", ["recipe"]) if each.part == "resnet50"
    }
    had = {
        f"{part}: {name}"
        for part, sides in found["sides"].items()
        for name, side in sides.items()
        if side["rounds"]
    }
    assert had | found["not_measured"].keys() == named


def test_no_run_is_begun_whose_bare_loop_would_not_end_in_time(measured):
    found = measured(parts=["resnet50"], left_s=lambda: START_S["mptui"] + START_S["bare"] - 1)
    assert {"resnet50: mptui bf16 off"} <= found["not_measured"].keys()
    assert "memory amp" in found["sides"]["resnet50"]


@pytest.mark.parametrize(
    "change", [{"warnings": [{"code": "compile_failed", "message": "no"}]}, {"recoveries": ["oom"]}]
)
def test_a_run_that_went_on_otherwise_than_asked_is_no_measurement(change):
    with pytest.raises(RuntimeError, match="otherwise than asked"):
        gpu.as_asked({"warnings": [], "recoveries": [], **change})
    assert gpu.as_asked({"warnings": [{"code": "other", "message": "no"}]})


@pytest.mark.parametrize("named", [None, default_cache_dir(), "/a/folder"])
def test_the_sides_share_compiled_code_that_is_no_other_programs(monkeypatch, named):
    monkeypatch.setenv(VARIABLE, named or "")
    if named is None:
        monkeypatch.delenv(VARIABLE)
    with gpu.compiled_code():
        folder = os.environ[VARIABLE]
        assert (folder == named) == (named == "/a/folder")
        assert folder != default_cache_dir()


@pytest.mark.parametrize(("free", "batches"), [(79 * GIB, (256, 16)), (15 * GIB, (64, 4)), (None, (256, 16))])
def test_the_batch_fits_the_card(free, batches):
    assert tuple(fitting(ON_GPU[name], free).batch for name in ("resnet50", "unet")) == batches


def test_a_card_without_bf16_is_measured_in_fp16():
    named = [each.name for each in plan(CASES, "default", ["recipe"], ["fp16"])]
    assert "mptui fp16 off" in named
    assert not any("bf16" in name for name in named)


@pytest.mark.slow
def test_photos_are_read_and_trained_on(monkeypatch, measured):
    got = []
    monkeypatch.setattr("benchmarks.sides.os.cpu_count", lambda: 0)
    case = replace(SMOKE["unet"], model="resnet18", side=32, classes=4, steps=3, warm_up=1)
    with gpu._folder(case, 48) as folder:

        def get(side):
            found = train("bare", replace(case, folder=folder, precision=side.case.precision))
            got.append((side.program, side.case.precision, side.case.channels_last))
            return found

        found = measured(get, parts=["photos"])
    assert got == [("mptui", "bf16", True), ("bare", "fp32", False)]
    assert found["photos"]["over_plain_script"]["median"] > 0


def test_the_clocks_told_are_those_at_work():
    idle = DeviceSample(name="GPU", utilisation=0.0, sm_clock_mhz=300, temperature_c=30.0)
    busy = DeviceSample(name="GPU", utilisation=0.9, sm_clock_mhz=1700, power_w=600.0, throttle=["heat"])
    assert load_of([idle, busy, idle]) == {"sm_clock_mhz": 1700, "power_w": 600.0, "throttle": ["heat"]}
    assert load_of([idle]) == {}


@pytest.mark.slow
def test_a_fork_may_use_the_gpu_and_a_late_one_is_ended():
    """The process that is forked from has imported torch, but must not have asked CUDA anything."""
    code = "tests.benchmarks.forks"
    with Forks("cpu", (*MODULES, code)) as forks:
        assert json.loads(forks.run((sys.executable, "-m", code), environment(0)).stdout) is False
        with pytest.raises(TimeoutError, match="not done after"):
            forks.run((sys.executable, "-m", code, "wait"), environment(0), 0.5)
