"""The compared training loops and the evaluation of their figures, on networks that train in a moment."""

import json
import signal
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest

from benchmarks import peers
from benchmarks.common import rotate
from benchmarks.relay import relay
from benchmarks.sides import NEEDS, SIDES, figures, missing, train
from benchmarks.subjects import CASES, Case, Stamps
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
