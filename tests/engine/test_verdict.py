from dataclasses import replace

import pytest
import torch

from mptui.engine.reporting.bottleneck import AdviceContext, Verdict
from mptui.engine.reporting.speed_advice import aligned_share
from mptui.engine.reporting.step_clock import PARTS, StepClock

HERE = AdviceContext(layers=60, workers=2, cpus=16, cached=False, compiled=False, batch_size=32)
COMPUTING = {"data": 1.0, "copy": 2.0, "forward": 40.0, "backward": 80.0, "wait": 0.0, "optimizer": 4.0}


def split(**milliseconds):
    parts = {"saving": 0.0, "logging": 0.1, "other": 1.0, **COMPUTING, **milliseconds}
    return {part: ms / 1000 for part, ms in parts.items()}


def judged(*splits, starved=None):
    verdict = Verdict()
    for seconds in splits:
        verdict.record(seconds, starved)
    return verdict


@pytest.mark.parametrize(
    ("bound", "seconds", "starved"),
    [
        ("compute", split(), None),
        ("compute", split(), False),
        ("data", split(data=30.0), None),
        ("data", split(data=30.0), True),
        ("copy", split(copy=50.0), False),
        ("launch", split(forward=1.0, backward=2.0, copy=0.1, data=0.1, optimizer=0.3, other=0.2), None),
        ("launch", split(), True),
        ("saving", split(saving=40.0), False),
        ("wait", split(wait=80.0), False),
    ],
)
def test_what_binds_a_run(bound, seconds, starved):
    assert judged(*[seconds] * 5, starved=starved).bound_by(HERE.layers) == bound


def test_one_slow_batch_is_no_verdict():
    splits = [split()] * 4 + [split(data=900.0)] + [split()] * 4

    assert judged(*splits).bound_by(HERE.layers) == "compute"


def test_a_save_that_comes_seldom_and_takes_long_counts():
    splits = [split()] * 8 + [split(saving=400.0)]

    assert judged(*splits).bound_by(HERE.layers) == "saving"


def test_advice_waits_until_it_is_sure_and_comes_once():
    verdict = judged(*[split(data=60.0)] * 4)
    assert verdict.advice(HERE, 7) is None

    verdict.record(split(data=60.0), None)
    advice = verdict.advice(HERE, 8)

    assert (advice.code, advice.setting, advice.step) == ("data_bound", "data.workers=4", 8)
    assert verdict.advice(HERE, 9) is None


def test_after_a_change_it_is_measured_again():
    verdict = judged(*[split(data=60.0)] * 5)
    assert verdict.advice(HERE, 8) is not None

    verdict.restart()

    assert verdict.split() == {}
    assert verdict.bound_by(HERE.layers) == ""
    for _ in range(5):
        verdict.record(split(data=60.0), None)
    assert verdict.advice(HERE, 20) is not None


def test_a_run_bound_by_compute_is_left_in_peace():
    assert judged(*[split()] * 9).advice(HERE, 9) is None


def test_a_network_that_tensor_cores_gain_little_on_is_told():
    there = replace(HERE, tensor_cores=True)
    odd = replace(there, aligned=0.2)

    assert judged(*[split()] * 5, starved=False).advice(there, 9) is None
    advice = judged(*[split()] * 5, starved=False).advice(odd, 9)
    assert advice is not None
    assert "80% of the weights" in advice.message
    small = judged(*[split()] * 5, starved=True).advice(there, 9)
    assert small is not None
    assert "too small to gain from Tensor Cores" in small.message


def test_how_much_of_a_network_suits_tensor_cores():
    odd = torch.nn.Conv2d(8, 12, 1)  # 96 weights
    even = torch.nn.Linear(16, 24)  # 384

    assert aligned_share(torch.nn.Sequential(odd, torch.nn.ReLU(), even)) == 384 / 480


def test_the_parts_of_a_step_add_up_to_the_step():
    clock = StepClock(torch.device("cpu"))
    clock.begin()
    for part in ("copy", "forward", "backward", "copy", "forward", "backward", "optimizer"):
        clock.mark(part)
    clock.end()

    measured = clock.read()
    assert measured is not None

    assert set(measured.seconds) == set(PARTS)
    assert all(seconds >= 0 for seconds in measured.seconds.values())
    assert measured.starved is None
    assert clock.read() is None


def test_a_step_that_is_not_asked_for_is_not_measured():
    clock = StepClock(torch.device("cpu"))
    clock.begin()
    clock.end()
    assert clock.read() is not None

    clock.begin()
    clock.mark("forward")
    clock.end()
    assert clock.read() is None

    clock.arm()
    clock.begin()
    clock.end()
    assert clock.read() is not None


@pytest.mark.parametrize(
    ("could_mix", "seconds", "advised"),
    [
        (True, split(), "data.mixup_alpha=0.2"),
        (False, split(), None),  # a short run, or one that mixes already
        (True, split(data=12.0, other=25.0), None),  # computes less than 80 % of the time
    ],
)
def test_a_device_that_is_busy_has_time_for_mixup(could_mix, seconds, advised):
    verdict = judged(*[seconds] * 9, starved=False)

    found = verdict.advice(replace(HERE, could_mix=could_mix), step=9)

    assert verdict.bound_by(HERE.layers) == "compute"
    assert (found and found.setting) == advised
