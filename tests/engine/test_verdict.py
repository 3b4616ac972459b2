from dataclasses import replace

import pytest
import torch

from mptui.engine.reporting.advice import aligned_share
from mptui.engine.reporting.step_time import PARTS, AdviceContext, StepClock, Verdict, validation_remedy

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


def advised(verdict, now, step):
    found = verdict.remedy(now)
    return found and found[1].advice(step, f"{found[0]}_bound")


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
        ("optimizer", split(forward=20.0, backward=22.0, optimizer=67.0), None),
        ("saving", split(data=30.0, saving=60.0), None),  # what takes most
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
    assert advised(verdict, HERE, 7) is None

    verdict.record(split(data=60.0), None)
    advice = advised(verdict, HERE, 8)

    assert (advice.code, advice.setting, advice.step) == ("data_bound", "data.workers=4", 8)
    assert advised(verdict, HERE, 9) is None


def test_after_a_change_it_is_measured_again():
    verdict = judged(*[split(data=60.0)] * 5)
    assert advised(verdict, HERE, 8) is not None

    verdict.restart()

    assert verdict.split() == {}
    assert verdict.bound_by(HERE.layers) == ""
    for _ in range(5):
        verdict.record(split(data=60.0), None)
    assert advised(verdict, HERE, 20) is not None


def test_at_the_border_a_verdict_stays():
    verdict = Verdict()
    found = []
    for number in range(40):  # 9 % and 11 % of the time
        verdict.record(split(data=12.7 if number // 9 % 2 else 15.9), None)
        found.append(verdict.bound_by(HERE.layers))
    assert found[0] == "data"
    assert set(found) == {"data"}
    for _ in range(9):
        verdict.record(split(data=2.0), None)
    assert verdict.bound_by(HERE.layers) == "compute"


def test_a_save_in_ten_minutes_holds_nothing_back():
    verdict = Verdict()
    for _ in range(1200):  # half a second each
        verdict.record(split(), None, steps=4)
    verdict.record(split(saving=500.0), None, steps=4)
    assert verdict.bound_by(HERE.layers) == "compute"


@pytest.mark.parametrize(
    ("computing", "workers", "setting", "words"),
    [
        (0.02, 2, "data.workers=8", "reading waits for files 98% of its time, and CPUs are idle; 8 workers"),
        (1.0, 2, None, "reading computes 100% of its time, which saturates 2 CPUs"),
        (1.0, 1, "data.workers=2", "2 workers would help: about 2.0 times"),
        (0.02, 32, None, "data.cache=ram"),
    ],
)
def test_more_workers_than_processors_are_for_what_sleeps(computing, workers, setting, words):
    here = replace(HERE, cpus=2, workers=workers, computing=computing)
    advice = advised(judged(*[split(data=256.2)] * 5), here, 5)  # two thirds of the time

    assert advice.setting == setting
    assert "steps wait for data 67% of the time" in advice.message
    assert words in advice.message
    assert "times as fast" in advice.message


@pytest.mark.parametrize(
    ("every_steps", "every_minutes", "setting"),
    [
        (50, 10.0, "checkpoint.every_steps=600"),
        (50, None, "checkpoint.every_steps=600"),
        (None, 0.5, "checkpoint.every_minutes=6"),
        (10**6, 0.5, "checkpoint.every_minutes=6"),
    ],
)
def test_saving_is_made_rarer_by_the_setting_in_force(every_steps, every_minutes, setting):
    here = replace(HERE, every_steps=every_steps, every_minutes=every_minutes)
    advice = advised(judged(*[split(saving=37.6)] * 5), here, 5)

    assert advice.setting == setting
    assert "saving takes 23% of the time" in advice.message
    assert advice.message.endswith("about 1.3 times as fast")


def test_an_optimizer_that_takes_most_of_a_step_is_called_less_often():
    splits = [split(forward=20.0, backward=22.0, optimizer=67.0)] * 5
    advice = advised(judged(*splits), HERE, 5)

    assert (advice.code, advice.setting) == ("optimizer_bound", "training.accumulate=2")
    assert "the optimizer takes 59% of each step (67 ms)" in advice.message
    assert advice.message.endswith("about 1.4 times as fast")
    alone = advised(judged(*splits), replace(HERE, batches=1), 5)
    assert alone.setting is None


def test_a_validation_that_takes_most_of_an_epoch_is_told_with_its_cause():
    waits = validation_remedy(replace(HERE, cpus=2, computing=0.0), 2.0, seconds=13.0, waited_s=12.0)
    assert waits is not None
    assert (waits.key, waits.value) == ("data.workers", 8)
    assert "validation takes 87% of each epoch (13.0 of 15.0 s) and waits for data 92% of it" in waits.message
    computes = validation_remedy(HERE, 2.0, seconds=13.0, waited_s=1.0)
    assert computes is not None
    assert computes.key == ""
    assert computes.gain == pytest.approx(7.5)
    assert validation_remedy(HERE, 2.0, seconds=0.8, waited_s=0.0) is None
    assert validation_remedy(HERE, 60.0, seconds=8.0, waited_s=0.0) is None


def test_a_run_bound_by_compute_is_left_in_peace():
    assert advised(judged(*[split()] * 9), HERE, 9) is None


def test_a_network_that_tensor_cores_gain_little_on_is_told():
    there = replace(HERE, tensor_cores=True)
    odd = replace(there, aligned=0.2)

    assert advised(judged(*[split()] * 5, starved=False), there, 9) is None
    advice = advised(judged(*[split()] * 5, starved=False), odd, 9)
    assert advice is not None
    assert "80% of the weights" in advice.message
    small = advised(judged(*[split()] * 5, starved=True), there, 9)
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
    ("could_mix", "seconds", "setting"),
    [
        (True, split(), "data.mixup_alpha=0.2"),
        (False, split(), None),  # a short run, or one that mixes already
        (True, split(data=12.0, other=25.0), None),  # computes less than 80 % of the time
    ],
)
def test_a_device_that_is_busy_has_time_for_mixup(could_mix, seconds, setting):
    verdict = judged(*[seconds] * 9, starved=False)

    found = advised(verdict, replace(HERE, could_mix=could_mix), 9)

    assert verdict.bound_by(HERE.layers) == "compute"
    assert (found and found.setting) == setting
