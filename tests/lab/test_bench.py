import json
import math
import random

import pytest
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.cli.measure import bench
from mptui.config.schema import RunConfig
from mptui.hardware.devices import Device
from mptui.lab.measure.core import (
    NO_TIME,
    AblationRun,
    Deadline,
    Effort,
    MeasureError,
    SampleSpan,
    ShortRunResult,
    switches,
    variants,
)
from tests.made.json_documents import checked

pytestmark = pytest.mark.slow

MIXING = RunConfig.model_validate({"data": {"mixup_alpha": 0.2, "cutmix_alpha": 1.0}})


def device(kind="cuda", **formats):
    native = {"fp16": "native", "bf16": "native", "tf32": "native", **formats}
    return Device(kind=kind, index=0, name="one", architecture=None, memory_total=None, native=native)


def ablation(found, measure):
    return AblationRun(found, measure, Effort(1.0), deadline=Deadline(math.inf))


def test_each_switch_is_added_alone_and_left_out_alone():
    found = switches(MIXING, device(), cpus=8, precision="bf16")
    names = [variant.name for variant in variants(found)]

    assert [switch.name for switch in found] == [
        *("tf32", "fp16", "bf16", "channels_last", "fused"),
        *("compile-default", "compile-reduce-overhead", "compile-max-autotune"),
        *("batch", "workers", "cache-ram", "cache", "no-mixup"),
    ]
    assert names[0] == "baseline"
    assert {f"+{switch.name}" for switch in found} < set(names)
    assert "-bf16" in names
    assert "-fp16" not in names  # not part of everything: bf16 is


def test_a_variant_is_the_baseline_but_for_its_switch():
    every = {v.name: v.settings for v in variants(switches(MIXING, device(), cpus=8, precision="bf16"))}
    baseline, everything = every["baseline"], every["everything"]

    assert baseline["precision.mode"] == "fp32"
    assert baseline["speed.compile"] == "off"
    assert baseline["data.mixup_alpha"] == 0.2
    assert every["+channels_last"] == {**baseline, "speed.channels_last": True}
    assert everything["precision.mode"] == "bf16"
    assert everything["speed.compile"] == "max-autotune"
    assert every["-no-mixup"] == {**everything, "data.mixup_alpha": 0.2, "data.cutmix_alpha": 1.0}


def test_a_few_switches_are_measured_on_the_same_plain_loop_as_all():
    found = switches(MIXING, device(), cpus=8, precision="bf16")
    few = variants([s for s in found if s.name == "fused"], found)

    assert [v.name for v in few] == ["baseline", "+fused", "everything", "-fused"]
    assert few[0] == variants(found)[0]
    assert few[1].settings == {**few[0].settings, "speed.fused": True}


def test_what_the_device_lacks_is_no_switch():
    processor = device("cpu", fp16="emulated", bf16="emulated", tf32="no")
    found = {s.name for s in switches(RunConfig(), processor, cpus=1, precision="fp32")}

    assert found == {"fp16", "bf16", "channels_last", "fused", "compile", "batch", "cache-ram", "cache"}


def test_every_other_round_is_in_the_opposite_order():
    asked = []

    def noted(settings, effort):
        asked.append(settings["name"])
        return ShortRunResult(SampleSpan(100.0, 1.0), None, None, None, 0.0)

    found = [v for v in variants([]) if v.name == "baseline"]
    a, b, c = (type(found[0])(name, name, {"name": name}, None if name == "a" else "a") for name in "abc")
    lab = ablation([a, b, c], noted)
    lab.measure_rounds(2, lambda row: None)

    assert asked == ["a", "b", "c", "c", "b", "a"]


def test_verdicts_under_noise_that_grows_and_falls_with_the_machine():
    """True factors: fused 1, channels last 1.3, bf16 0.5. The machine drifts twofold."""
    truth = {"speed.fused": 1.0, "speed.channels_last": 1.3}
    found = [
        s
        for s in switches(RunConfig(), device(), cpus=1, precision="fp32")
        if s.name in {"fused", "channels_last", "bf16"}
    ]
    right = {"+fused": "same", "+channels_last": "faster", "+bf16": "slower"}
    wrong = 0
    for number in range(60):
        chance = random.Random(number)

        def noisy(settings, effort, chance=chance, state=[1.0]):  # noqa: B006
            state[0] = min(2.0, max(1.0, state[0] + chance.uniform(-0.02, 0.02)))
            rate = 100 * state[0] / (1 + chance.expovariate(60))
            for key, gain in truth.items():
                rate *= gain if settings[key] else 1.0
            return ShortRunResult(
                SampleSpan(rate * (0.5 if settings["precision.mode"] == "bf16" else 1), 1.0),
                None,
                None,
                None,
                0.0,
            )

        lab = ablation(variants(found), noisy)
        lab.measure_rounds(8, lambda row: None)
        verdicts = {row["name"]: row["verdict"] for row in lab.document()}
        wrong += sum(verdicts[name] != verdict for name, verdict in right.items())

    assert wrong <= 0.05 * 60 * len(right)


def test_losses_are_held_against_the_baseline_where_the_batch_is_the_same():
    def measured(settings, effort):
        return ShortRunResult(
            SampleSpan(100.0, 1.0), None, None, 2.0 if settings["precision.mode"] == "fp32" else 2.1, 0.0
        )

    found = [
        s
        for s in switches(RunConfig(), device(), cpus=1, precision="bf16")
        if s.name in {"bf16", "fp16", "batch"}
    ]
    lab = ablation(variants(found), measured)
    lab.measure_rounds(1, lambda row: None)
    off = {row["name"]: row["loss_off_baseline"] for row in lab.document()}

    assert off["+bf16"] == pytest.approx(0.05)
    assert off["baseline"] == 0.0
    assert off["+batch"] is None  # a loss of other samples


def test_a_variant_that_does_not_fit_is_told_and_the_others_go_on():
    def measured(settings, effort):
        if settings["speed.fused"]:
            raise MeasureError("out of memory")
        return ShortRunResult(SampleSpan(100.0, 1.0), 5, 1.0, 2.0, 0.0)

    found = [s for s in switches(RunConfig(), device(), cpus=1, precision="fp32") if s.name == "fused"]
    lab = ablation(variants(found), measured)
    lab.measure_rounds(1, lambda row: None)
    rows = {row["name"]: row for row in lab.document()}

    assert rows["+fused"]["failed"] == "out of memory"
    assert rows["+fused"]["ratio"] is None
    assert rows["-fused"]["samples_per_second"] == 100.0


class Machine:
    """Takes the given seconds for each variant, on a simulated clock."""

    def __init__(self, seconds, first_step_s=0.1):
        self.seconds, self.first_step_s, self.now = seconds, first_step_s, 0.0
        self.limits = []

    def clock(self):
        return self.now

    def measure(self, settings, effort):
        self.limits.append((dict(settings), effort.first_step_limit_s))
        needed = next((s for (key, value), s in self.seconds.items() if settings.get(key) == value), 5.0)
        if effort.limit_s is not None and needed > effort.limit_s:
            self.now += effort.limit_s
            raise MeasureError("no result")
        self.now += needed
        return ShortRunResult(SampleSpan(100.0, 1.0), None, self.first_step_s, 2.0, 0.0)


COMPILE_S = {"off": 0.0, "default": 100.0}


def lab_on(machine, names, *, limit_s=None, seconds=math.inf):
    found = switches(RunConfig(), device("cpu", tf32="no"), cpus=1, precision="fp32")
    chosen = [s for s in found if s.name in names]
    return AblationRun(
        variants(chosen, found, COMPILE_S.__getitem__),
        machine.measure,
        Effort(0.5, limit_s=limit_s),
        deadline=Deadline(seconds, machine.clock),
    )


def test_the_time_is_known_beforehand_and_better_after_the_first_round():
    machine = Machine({("speed.compile", "default"): 40.0})
    lab = lab_on(machine, {"fused", "compile"})

    assert lab.expected_s(2) == 2 * 6 * 6.5 + 3 * 100.0  # 3 of 6 variants compile
    lab.measure_rounds(1, lambda row: None)
    assert lab.expected_s(2) == 3 * 5.0 + 3 * 40.0


def test_the_time_that_was_given_is_kept_and_what_it_was_too_short_for_is_told():
    machine = Machine({("speed.compile", "default"): 100.0})
    lab = lab_on(machine, {"fused", "compile"}, seconds=60.0)
    lab.measure_rounds(20, lambda row: None)

    assert 40.0 <= machine.now <= 60.0  # uncompiled variants get all of it
    assert len({len(row.rounds) for row in lab.rows if not row.failed}) == 1  # in whole rounds
    failed = {row.variant.name for row in lab.rows if row.failed}
    assert {"+compile", "everything"} <= failed
    assert all(row.failed == NO_TIME for row in lab.rows if row.failed)
    assert lab.rows[0].rate == 100.0
    assert lab.rounds >= 2


@pytest.mark.parametrize("options", [{}, {"seconds": 1000.0}])
def test_a_measurement_has_its_own_limit_whatever_time_is_left(options):
    machine = Machine({("precision.mode", "fp16"): 300.0})
    lab = lab_on(machine, {"fp16"}, limit_s=90.0, **options)
    lab.measure_rounds(1, lambda row: None)

    assert {row.variant.name for row in lab.rows if row.failed} == {"+fp16"}
    assert machine.now == 90.0 + (len(lab.rows) - 1) * 5.0


def test_a_variant_that_is_ten_times_slower_is_cut_after_a_step_unless_it_compiles():
    machine = Machine({}, first_step_s=0.5)
    lab = lab_on(machine, {"fp16", "compile"})
    lab.measure_rounds(1, lambda row: None)

    limits = {(s["precision.mode"], s["speed.compile"]): limit for s, limit in machine.limits[1:]}
    assert limits["fp16", "off"] == 5.0
    assert limits["fp32", "default"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_each_variant_is_one_line_of_the_table_with_its_interval(capsys, monkeypatch, width):
    rates = iter([100.0, 40.0, 103.0, 101.0] * 20)

    def measured(settings, effort):
        if settings["precision.mode"] == "fp16":
            raise MeasureError("its first step took more than 1.0 s, and so on for a while")
        return ShortRunResult(SampleSpan(next(rates), 1.0), 2**30, 12.5, 2.0, 0.0)

    lab = lab_on(Machine({}), {"fused", "fp16", "channels_last"})
    monkeypatch.setattr(lab, "_measure", measured)
    lab.measure_rounds(2, lambda row: None)
    monkeypatch.setattr("mptui.cli.output.terminal_width", lambda: width)
    document = {"model": "net", "device_name": "one", "rounds": 2}
    bench.show(lab, document, claims=True, markdown=False)
    lines = capsys.readouterr().out.splitlines()

    table = lines[2 : 2 + len(lab.rows)]
    titles = [row.variant.title for row in lab.rows]
    assert all(line.startswith(title) for line, title in zip(table, titles, strict=True))
    assert all(len(line.rstrip()) <= width and "…" not in line for line in table)
    assert any("too wide" in line for line in table)
    assert lines[-1].startswith("+ fp16 was not measured: its first step took more than")


@pytest.mark.usefixtures("forked_servers")
def test_the_command_prints_one_document(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "unet", "--data", "shapes", "--batch-size", "2", "--device", "cpu"]
    sets = ["model.width=4", "model.depth=1", "data.image_size=16", "data.samples=48"]
    more = [part for given in sets for part in ("--set", given)]
    switch = ["--only", "fused", "--rounds", "1", "--seconds", "0.1", "--against", "guides", "--json"]

    result = CliRunner().invoke(app, ["bench", *flags, *more, *switch])

    document = checked("bench", json.loads(result.stdout))
    assert [row["name"] for row in document["variants"]] == ["baseline", "+fused", "everything", "-fused"]
    assert document["variants"][2]["claim"] == {"speed": 3.5, "memory": None}
    assert document["variants"][1]["ratio"]["value"] > 0
    assert list(tmp_path.iterdir()) == []
