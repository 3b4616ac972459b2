"""The compared training loops and the evaluation of their figures, on networks that train in a moment."""

import json
import signal
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest
import torch

from benchmarks import gpu, peers
from benchmarks.common import rotate
from benchmarks.relay import relay
from benchmarks.sides import NEEDS, SIDES, figures, missing, train
from benchmarks.subjects import CASES, Case, Stamps
from benchmarks.targets import OnGpu
from tests.program import Program, run_to_end

SMALL = Case("unet", side=16, batch=2, classes=3, steps=4, warm_up=1, width=2)
TINY = replace(CASES["tiny"], steps=4, warm_up=1)


@pytest.mark.parametrize("side", [side for side in SIDES if not missing([side])])
@pytest.mark.parametrize("case", [TINY, SMALL], ids=["tiny", "unet"])
def test_each_side_trains(side, case):
    told = train(side, replace(case, precision="bf16"))
    assert told["wall_s"] > 0
    assert told["cpu_s"] > 0


@pytest.mark.slow
def test_a_run_is_timed_in_a_process_of_its_own():
    told = figures("mptui", TINY, threads=1, flags=["--workers", "0"])
    assert told["wall_s"] > 0
    assert told["loss"] > 0


def test_what_is_not_installed_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setitem(NEEDS, "bare", "no_such_package")
    assert missing(["bare"]) == "not installed: no_such_package; pip install 'mptui[peers]'"
    assert missing(["recipe"]) == ""


def test_the_time_is_that_of_the_steps_after_the_warm_up(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr("benchmarks.subjects.time.perf_counter", lambda: float(next(clock)))
    stamps = Stamps(replace(TINY, steps=10, warm_up=3))
    for _ in range(10):
        stamps.request()
    assert stamps.figures["wall_s"] == 1 / 6


def told_by(seconds):
    """Return figures as child processes would, by side and precision."""

    def get(side, case, threads=0, flags=()):
        kind = case.precision if case.precision != "fp32" or case.tf32 else "strict"
        bytes_ = {"fp32": 100, "bf16": 50}[case.precision if case.precision == "fp32" else "bf16"]
        return {"wall_s": seconds[side, kind], "peak_bytes": bytes_ // 2 if flags else bytes_}

    return get


def test_the_ratios_of_a_gpu_are_of_the_better_half_precision_and_the_best_peer(monkeypatch):
    monkeypatch.setattr(gpu, "ceilings", lambda *_: {"operations_s": 1e12, "bytes_s": 1e12})
    get = told_by(
        {
            ("mptui", "strict"): 8.0,
            ("mptui", "fp32"): 4.0,
            ("mptui", "bf16"): 2.5,
            ("mptui", "fp16"): 2.0,
            ("recipe", "bf16"): 3.0,
            ("recipe", "fp16"): 5.0,
        }
    )
    target = OnGpu(floor_share=0.5, over_tf32=1.6, over_fp32=3.5, over_peer=1.15)
    found = gpu.speed(gpu.SMOKE["unet"], target, rounds=2, peers=["recipe"], get=get)
    assert found["amp"] == "mptui fp16"
    assert (found["amp_over_tf32"]["median"], found["amp_over_fp32"]["median"]) == (2.0, 4.0)
    assert (found["best_peer"], found["over_best_peer"]["median"]) == ("recipe bf16", 1.5)
    share = 1.0 / found["floor"]["images_per_second"]  # two images in two seconds
    assert found["floor_share"]["median"] == pytest.approx(share)
    memory = gpu.memory(gpu.SMOKE["unet"], get)
    assert memory["amp"]["share"] == 0.5
    assert memory["memory-limited"]["share"] == 0.25


def test_photos_are_read_and_trained_on(monkeypatch):
    got = []

    def get(side, case):
        got.append((side, case.precision, case.channels_last, train("bare", case)["wall_s"]))
        return {"wall_s": got[-1][-1]}

    monkeypatch.setattr("benchmarks.sides.os.cpu_count", lambda: 0)
    case = replace(gpu.SMOKE["resnet50"], batch=2, steps=3, warm_up=1)
    found = gpu.photos(case, rounds=1, side=48, get=get)
    assert [each[:3] for each in got] == [("mptui", "bf16", True), ("bare", "fp32", False)]
    assert found["over_plain_script"]["median"] > 0


def test_a_ratio_is_told_with_what_is_asked_and_the_floor(monkeypatch):
    seconds = {"mptui": 0.5, "bare": 0.5, "accelerate": 1.0}
    monkeypatch.setattr(peers, "figures", lambda side, *_: {"wall_s": seconds[side], "cpu_s": 1.0})
    found = peers.measure(
        replace(TINY, device="cuda"),
        ["bare", "accelerate"],
        rounds=2,
        clock="wall",
        threads=1,
        reached={"operations_s": 1e9, "bytes_s": 1e9},
    )
    assert found["ratios"]["accelerate"] == {"median": 2.0, "min": 2.0, "max": 2.0, "asked": 1.25}
    assert found["images_per_second"]["bare"] == [64.0, 64.0]
    assert found["floor"]["images_per_second"] > 64


def test_sides_work_in_turn_and_stand_still_meanwhile():
    options = json.dumps({"turns": 3, "block": 2, "threads": 1, "clock": "wall"})
    case = json.dumps(asdict(TINY))
    words, environ = (case, options, "mptui", "bare"), {"MPTUI_DATA_WORKERS": "0"}
    ended = run_to_end(*words, environ=environ, call="tests.benchmarks.forks:relayed")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert list(found) == ["mptui", "bare"]
    assert min(found.values()) > 0


def test_each_side_is_the_first_of_a_round_equally_often():
    orders = [rotate("abcde", number) for number in range(5)]
    assert sorted(order[0] for order in orders) == list("abcde")
    assert all(sorted(order) == list("abcde") for order in orders)
    assert orders[0] == list("abcde")
    assert orders[1] == list("baedc")


def test_the_clocks_of_a_process_stand_still_with_it():
    script = """
import time
from benchmarks.subjects import Clock
real = time.perf_counter
clock = Clock()
before = real(), time.perf_counter(), time.monotonic()
clock.stop()
after = real(), time.perf_counter(), time.monotonic()
print(*(b - a for a, b in zip(before, after)))
"""
    child = Program(script, call="tests.program:execute")
    while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.005)
    since = time.monotonic()
    while (stopped := time.monotonic() - since) < 0.2:
        pass
    child.send_signal(signal.SIGCONT)
    real, *told = map(float, child.communicate()[0].split())
    assert all(real - seconds >= stopped for seconds in told)


def test_a_side_that_fails_is_told_with_what_it_said_and_none_is_left(monkeypatch):
    others = set(psutil.Process().children())

    codes = {
        "bare": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "recipe": "raise SystemExit('no such thing')",
    }

    def failing(side, *about):
        return [sys.executable, "-c", codes[side]]

    monkeypatch.setattr("benchmarks.relay.command", failing)
    with pytest.raises(RuntimeError, match=r"(?s)recipe failed.*no such thing"):
        relay(TINY, ["bare", "recipe"], turns=1, block=1, threads=1, clock="wall")
    assert set(psutil.Process().children()) <= others


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    """The sides set torch's global switches, since their processes end with them."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    precision = torch.get_float32_matmul_precision()
    yield
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before
    torch.set_float32_matmul_precision(precision)
