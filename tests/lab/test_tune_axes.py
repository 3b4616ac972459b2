"""Settings that `mptui tune` tries on each machine, and those that it leaves unchanged."""

from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest

from mptui.config.resolve import resolve
from mptui.config.schema import CompileMode, DataConfig
from mptui.engine.memory.ledger import footprint
from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import Device
from mptui.lab.measure import tune
from mptui.lab.measure.core import Row, SampleSpan, ShortRunResult, Variant, ratio
from mptui.lab.measure.tune import Tunable, TunedSetting, TuneFinding
from mptui.runs.planning.plan import Plan, Request, filled

GIB = 1 << 30
PHOTOS = ShortRunResult(SampleSpan(100.0, 1.0), GIB, 1.0, 2.0, wait=0.3, epoch_steps=1000, classes=10)
NO_WAIT = ShortRunResult(SampleSpan(100.0, 1.0), GIB, 1.0, 2.0, wait=0.0, epoch_steps=1000, classes=10)


def spans(*rates):
    return [SampleSpan(rate, 1.0) for rate in rates]


def device(kind="cuda", **formats):
    native = {"fp16": "native", "bf16": "native", "tf32": "native", **formats}
    return Device(kind=kind, index=0, name="one", architecture=None, memory_total=None, native=native)


def tunable(on, *sets, profile="fast", flags=None, free=80 * GIB, model="small_cnn"):
    given = {"model.name": ("test", model), "data.path": ("test", "photos"), **(flags or {})}
    request = Request(profile, given, sets, {})
    resolved = resolve(profile, task=None, flags=given, sets=sets, environ={})
    resolved, notes = filled(resolved, on)
    precision = choose_precision(resolved.config.precision.mode, on)
    plan = Plan(request, resolved, "classification", on, precision, 7, None, notes, True, True)
    return Tunable(plan, 8, free)


def axes_of(tuned, first=PHOTOS, **best):
    return {axis.name: axis for axis in tuned.axes({**tuned.start(), **best}, first)}


def values(axis):
    return [option.name for option in axis.options]


def test_the_values_are_those_of_the_schema():
    found = axes_of(tunable(device()))
    caches = set(get_args(DataConfig.model_fields["cache"].annotation))

    assert set(values(found["data.cache"])) == caches - {"auto"}
    assert set(values(found["speed.compile"])) == set(get_args(CompileMode)) - {"off"}
    assert set(values(found["precision.mode"])) == {"fp32", "fp16"}  # bf16 is the current value
    assert values(found["speed.channels_last"]) == ["false"]


def test_on_a_gpu_the_precision_is_worth_most_and_on_starving_data_the_input():
    def order(first):
        found = axes_of(tunable(device()), first).values()
        return [axis.name for axis in sorted(found, key=lambda axis: -axis.worth)]

    assert order(NO_WAIT)[0] == "precision.mode"
    starving = ShortRunResult(SampleSpan(100.0, 1.0), GIB, 1.0, 2.0, wait=0.8, epoch_steps=1000, classes=10)
    assert set(order(starving)[:3]) == {"data.cache", "data.workers", "data.prefetch"}


def test_what_is_emulated_is_tried_last_and_what_is_not_there_never():
    on_a_cpu = device("cpu", fp16="emulated", bf16="emulated", tf32="no")
    found = axes_of(tunable(on_a_cpu))

    assert "precision.mode" not in found  # fp32 is the current value, and no other is native
    assert values(found["precision.mode, emulated"]) == ["bf16"]  # fp16 is known to be slow on a CPU
    assert found["precision.mode, emulated"].worth <= min(axis.worth for axis in found.values())
    assert "precision.matmul" not in found
    assert values(found["speed.compile"]) == ["default"]
    assert "precision.mode, emulated" not in axes_of(tunable(device(fp16="no", bf16="no", tf32="no")))


@pytest.mark.parametrize(
    ("key", "value"), [("precision.mode", "fp32"), ("data.workers", "3"), ("speed.compile", "off")]
)
def test_what_a_person_has_set_stays(key, value):
    assert key in axes_of(tunable(device()))
    assert key not in axes_of(tunable(device(), f"{key}={value}"))


def test_steps_that_never_wait_for_data_leave_the_workers_alone():
    found = axes_of(tunable(device()), NO_WAIT)

    assert "data.workers" not in found
    assert "data.workers" not in axes_of(tunable(device()), PHOTOS, **{"data.cache": "device"})


def peak_of(batch):
    tuned = tunable(device(), f"training.batch_size={batch}")
    return footprint(tuned.plan.config, "classification", device="cuda", precision="bf16", classes=10).total


def test_a_larger_batch_is_tried_where_the_rate_follows_it_and_set_and_memory_are_large_enough():
    twice, four_times = (peak_of(size) for size in (128, 256))
    assert values(axes_of(tunable(device(), free=four_times))["training.batch_size"]) == ["128", "256"]
    assert values(axes_of(tunable(device(), free=four_times - 1))["training.batch_size"]) == ["128"]
    assert "training.batch_size" not in axes_of(tunable(device(), free=twice - 1))
    small = ShortRunResult(SampleSpan(100.0, 1.0), GIB, 1.0, 2.0, wait=0.3, epoch_steps=60, classes=10)
    assert "training.batch_size" not in axes_of(tunable(device()), small)
    assert "training.batch_size" not in axes_of(tunable(device(), "training.lr=1e-3", profile=None))
    asked = {"training.batch_size": ("--batch-size", 64)}
    assert "training.batch_size" not in axes_of(tunable(device(), flags=asked))


def measured(variant, rates=(), others=()):
    """A rival with its rates, beside those of the current value."""
    ours, theirs = ([replace(PHOTOS, span=span) for span in spans(*each)] for each in (rates, others))
    return Row(variant, Row(Variant("current", "current", {}), rounds=theirs), ours)


def done():
    """A finished search."""
    start = {"precision.mode": "bf16", "speed.compile": "off", "data.workers": 7, "data.cache": "auto"}
    fp16, fp32 = (Variant(mode, mode, {"precision.mode": mode}) for mode in ("fp16", "fp32"))
    entry = measured(fp16, (12.0, 12.1, 12.2), (10.0, 10.0, 10.0))
    out = Row(fp32, failed="out of memory")
    axis = TunedSetting("precision.mode", "bf16", (fp16, fp32), 0.5)
    return SimpleNamespace(
        start=start,
        best={**start, "precision.mode": "fp16"},
        total=entry.gain,
        total_rounds=3,
        untried=["data.cache"],
        findings=[TuneFinding(axis, [entry, out], {}, "fp16")],
    )


def test_a_profile_has_what_was_measured_and_where_its_data_is():
    tuned = tunable(device())
    chosen = tune.settings(tuned.plan, done())
    config = tune.tuned(tuned.plan, chosen)

    assert chosen == {"precision.mode": "fp16"}
    assert config.speed.compile == "max-autotune"  # the profile's value: never measured
    assert config.data.workers == "auto"  # never measured
    assert config.model.name == "small_cnn"
    assert str(config.data.path).endswith("/photos")
    assert config.training == tuned.plan.config.training


def compiled(rates=(), failed=None):
    """A search in which max-autotune was measured against eager code, and lost or not."""
    start = done().start
    mode = Variant("max-autotune", "max-autotune", {"speed.compile": "max-autotune"})
    entry = measured(mode, rates, (10.0, 10.0, 10.0))
    entry.failed = failed
    axis = TunedSetting("speed.compile", "off", (mode,), 0.5)
    return SimpleNamespace(
        start=start, best=dict(start), total=None, total_rounds=0, untried=[],
        findings=[TuneFinding(axis, [entry], {}, "off")],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("search", "chosen"),
    [
        (compiled((8.0, 8.1, 8.0)), {"speed.compile": "off"}),
        (compiled(failed="no C compiler"), {"speed.compile": "off"}),
        (compiled((9.0, 11.0, 10.0)), {}),
        (compiled(), {}),
    ],
    ids=["slower", "fails", "noise", "not measured"],
)
def test_compiling_is_dropped_from_a_profile_only_where_it_has_lost(search, chosen):
    plan = tunable(device()).plan

    assert tune.settings(plan, search) == chosen
    assert tune.is_better(plan, search) == bool(chosen)


def test_gains_that_come_to_nothing_together_are_not_saved():
    search = done()
    search.total = ratio(spans(9.8, 9.9, 9.8), spans(10.0, 10.0, 10.0))

    assert not tune.is_better(tunable(device()).plan, search)


def test_the_evidence_names_ratio_rounds_failures_and_what_there_was_no_time_for():
    told = "\n".join(tune.evidence(tunable(device()).plan, done(), tune.TuneCost(90, 12), 8))

    assert "precision.mode: fp16 chosen; fp16 1.21 times (" in told
    assert "3 rounds" in told
    assert "fp32 eliminated: out of memory" in told
    assert "Not measured for lack of time, as in the profile: data.cache" in told
    assert "12 runs in 1.5 minutes" in told
