"""The search of `mptui tune` on simulated machines with known best settings."""

import contextlib
import math
import random

import pytest

from mptui.lab.measure.core import Effort, MeasureError, SampleSpan, ShortRunResult, StoppedError, Variant
from mptui.lab.measure.tune import Search, TunedSetting

RUN_S = 3.0
FIRST = Effort(1.0, loss_at=0)
START = {
    "precision.mode": "fp32",
    "speed.channels_last": False,
    "speed.compile": "off",
    "data.workers": 1,
    "speed.fused": True,
}
VALUES = {
    "precision.mode": ("bf16", "fp16"),
    "speed.channels_last": (True,),
    "speed.compile": ("default", "max"),
    "data.workers": (0, 2, 4),
    "speed.fused": (False,),
}
WORTH = {
    "precision.mode": 0.6,
    "speed.channels_last": 0.2,
    "speed.compile": 0.3,
    "data.workers": 0.1,
    "speed.fused": 0.02,
}
GAINS = {
    ("precision.mode", "bf16"): 1.5,
    ("precision.mode", "fp16"): 1.4,
    ("speed.channels_last", True): 1.2,
    ("speed.compile", "default"): 1.12,
    ("speed.compile", "max"): 1.25,
    ("data.workers", 0): 0.5,
    ("data.workers", 2): 1.1,
    ("data.workers", 4): 0.9,
}


class FakeMachine:
    """Measures by formula, with the noise of a busy machine, on a simulated clock."""

    def __init__(self, seed, gains=GAINS, seconds=1e9, spread=0.015):
        self.chance = random.Random(seed)
        self.gains, self.seconds, self.spread = gains, seconds, spread
        self.asked, self.level = [], 0.0
        self.losses, self.faults, self.slow = {}, {}, {}

    def seconds_left(self):
        return max(0.0, self.seconds)

    def clock(self):
        return -self.seconds

    def run(self, settings, effort):
        if not self.seconds_left():
            raise StoppedError
        slow = next((self.slow[each] for each in settings.items() if each in self.slow), None)
        if slow is not None:
            limit = effort.limit_s if effort.first_step_limit_s is None else effort.first_step_limit_s
            self.seconds -= min(slow, limit, self.seconds_left())
            if not self.seconds_left():
                raise StoppedError
            raise MeasureError("too slow", 1)
        self.seconds -= RUN_S
        self.asked.append(dict(settings))
        for each in settings.items():
            if each in self.faults:
                raise MeasureError(*self.faults[each])
        self.level += self.chance.uniform(-0.01, 0.01)
        busy = self.chance.expovariate(4) if self.chance.random() < 0.02 else 0.0
        rate = 100 * math.exp(self.level + self.chance.gauss(0, self.spread) - busy)
        for each in settings.items():
            rate *= self.gains.get(each, 1.0)
        found = next((self.losses[each] for each in settings.items() if each in self.losses), 2.0)
        return ShortRunResult(SampleSpan(rate, 1.0), None, 0.5, found if effort.loss_at else None, 0.0)


def propose(best, first):
    return [
        TunedSetting(
            key,
            str(best[key]),
            tuple(
                Variant(str(v), str(v), {key: v}, str(best[key]))
                for v in (START[key], *values)
                if v != best[key]
            ),
            WORTH[key],
        )
        for key, values in VALUES.items()
    ]


def search_on(machine, lines=None):
    return search_from(START, machine) if lines is None else search_from(START, machine, lines.append)


def search_from(start, machine, tell=lambda line: None, proposed=propose, measure=None):
    measure = measure or machine.run
    return Search(
        start,
        measure(start, FIRST),
        first_s=RUN_S,
        propose=proposed,
        measure=measure,
        effort=Effort(1.0),
        deadline=machine,
        on_line=tell,
    )


def best_of(machine):
    search = search_on(machine)
    with contextlib.suppress(StoppedError):
        search.go()
    return search


@pytest.mark.parametrize("seed", range(40))
def test_the_best_is_found(seed):
    search = best_of(FakeMachine(seed))

    changed = {
        "precision.mode": "bf16",
        "speed.channels_last": True,
        "speed.compile": "max",
        "data.workers": 2,
    }
    assert search.best == {**START, **changed}
    assert search.total is not None
    assert search.total.low <= 1.5 * 1.2 * 1.25 * 1.1 * 1.05
    assert search.total.high >= 1.5 * 1.2 * 1.25 * 1.1 / 1.05


def test_a_tie_keeps_what_is_in_force():
    changed = [key for seed in range(40) for key in kept_otherwise(FakeMachine(seed, gains={}))]

    assert len(changed) <= 0.05 * 40 * len(VALUES)


def test_a_mode_that_takes_long_to_compile_gets_its_time_and_the_others_theirs():
    """Autotuning takes a GPU several times as long as the other modes."""
    machine = FakeMachine(0, spread=0.0)
    limits: dict[object, float] = {}

    def run(settings, effort):
        limits.setdefault(settings["speed.compile"], effort.limit_s)
        return machine.run(settings, effort)

    def modes(best, first):
        seconds = {"default": 60.0, "max": 300.0}
        rivals = tuple(
            Variant(mode, mode, {"speed.compile": mode}, str(best["speed.compile"]), first_s=first_s)
            for mode, first_s in seconds.items()
            if mode != best["speed.compile"]
        )
        return [TunedSetting("speed.compile", str(best["speed.compile"]), rivals, 0.3)]

    machine.seconds = 400.0
    search = search_from(START, machine, proposed=modes, measure=run)
    with contextlib.suppress(StoppedError):
        search.go()
    assert limits["max"] - limits["default"] == 240.0
    assert search.best["speed.compile"] == "max"


def kept_otherwise(machine):
    return [key for key, value in best_of(machine).best.items() if value != START[key]]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_worth_most_comes_first_and_the_time_is_kept(seed):
    machine = FakeMachine(seed, seconds=40 * RUN_S)
    search = best_of(machine)

    assert search.best["precision.mode"] == "bf16"
    assert 0 <= machine.seconds_left() <= 8 * RUN_S
    assert "data.workers" in search.untried


@pytest.mark.parametrize("seconds", [1.0, 5 * RUN_S, 11 * RUN_S, 23 * RUN_S])
def test_whenever_the_time_ends_what_is_in_force_has_won(seconds):
    search = best_of(FakeMachine(3, seconds=seconds))

    for finding in search.findings:
        if finding.changed:
            winner = next(e for e in finding.rivals if e.variant.name == finding.kept)
            assert winner.gain.verdict == "faster"
    assert set(search.best) == set(START)


def test_a_hopeless_rival_is_cut_after_a_step_and_leaves_the_time_to_the_others():
    """Two minutes, of which a single run of fp16 would take one and a half."""
    machine = FakeMachine(1, seconds=120.0)
    machine.slow = {("precision.mode", "fp16"): 96.0}
    search = best_of(machine)

    tried = {finding.axis.name: finding for finding in search.findings}
    fp16 = next(entry for entry in tried["precision.mode"].rivals if entry.variant.name == "fp16")
    assert fp16.failed == "too slow"
    assert search.best["precision.mode"] == "bf16"
    assert {"speed.channels_last", "speed.compile"} <= set(tried)
    assert sum(settings["precision.mode"] == "bf16" for settings in machine.asked) >= 4


def test_a_rival_that_hangs_takes_no_more_than_a_few_usual_runs():
    machine = FakeMachine(1, seconds=120.0)
    machine.slow = {("speed.compile", "max"): 1e6}
    asked: list[float] = []

    def timed(settings, effort):
        before = machine.seconds_left()
        try:
            return machine.run(settings, effort)
        finally:
            asked.append(before - machine.seconds_left())

    search = search_from(START, machine, measure=timed)
    with contextlib.suppress(StoppedError):
        search.go()

    assert RUN_S < max(asked) <= 4 * RUN_S
    assert search.best["speed.compile"] == "default"


def test_the_result_is_compared_with_the_start_without_what_it_left_unset():
    machine = FakeMachine(1, gains={("memory.micro_batch", 8): 1.5}, spread=0.0)

    def pieces(best, first):
        half = Variant("8", "8", {"memory.micro_batch": 8}, "16")
        return (
            [] if "memory.micro_batch" in best else [TunedSetting("memory.micro_batch", "16", (half,), 0.1)]
        )

    search = search_from(START, machine, proposed=pieces)
    search.go()
    assert search.total.value == pytest.approx(1.5, rel=0.1)


def test_a_stop_in_the_middle_leaves_what_was_found():
    machine = FakeMachine(1)
    machine_stops_at(machine, 25)
    search = search_on(machine)
    with pytest.raises(StoppedError):
        search.go()

    assert search.best["precision.mode"] == "bf16"


def machine_stops_at(machine, count):
    run = machine.run

    def stopping(settings, effort):
        if len(machine.asked) >= count:
            raise StoppedError
        return run(settings, effort)

    machine.run = stopping


def test_what_learns_otherwise_than_fp32_is_out_however_fast():
    machine = FakeMachine(1, gains={**GAINS, ("precision.mode", "fp16"): 3.0})
    machine.losses = {("precision.mode", "fp16"): 2.4, ("precision.mode", "bf16"): 2.01}
    search = best_of(machine)

    assert search.best["precision.mode"] == "bf16"
    out = next(e for f in search.findings for e in f.rivals if e.variant.name == "fp16")
    assert "its loss after the first steps is 2.400 instead of 2.000" in out.failed


def test_what_is_in_force_is_out_too_where_it_learns_otherwise():
    machine = FakeMachine(1)
    machine.losses = {("precision.mode", "bf16"): math.nan}
    start = {**START, "precision.mode": "bf16"}
    search = search_from(start, machine)
    search.go()

    assert search.best["precision.mode"] != "bf16"


@pytest.mark.parametrize("fault", [("no room", 5), ("no such thing", 2)])
def test_what_can_not_be_measured_is_out_and_told(fault):
    machine = FakeMachine(1)
    machine.faults = {("speed.compile", "max"): fault}
    lines: list[str] = []
    search = search_on(machine, lines)
    search.go()

    assert search.best["speed.compile"] == "default"
    assert any("max eliminated" in line for line in lines)
    assert sum(settings["speed.compile"] == "max" for settings in machine.asked) == 1
