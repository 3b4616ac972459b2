"""Automatic choices of a run: measured, reported, recorded, and reused by a resume."""

import json
import re
from dataclasses import replace

import pytest
import torch

from mptui.config.keys import with_values
from mptui.config.resolve import resolve, values_of
from mptui.config.schema import RunConfig
from mptui.engine.mailbox import Stopped
from mptui.hardware.nvml import GpuInfo
from mptui.lab.measure.core import UnsavedSession
from mptui.runs.planning import auto
from mptui.runs.planning.auto import Decider, choices_taken
from mptui.runs.planning.plan import plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.choices import read_sources
from mptui.runs.store.directory import CHOICES, CONFIG, create_run, read_summary
from tests.made.runs import QUIET, plan_of

SETTINGS = {
    "model.name": "unet",
    "model.width": 2,
    "model.depth": 1,
    "data.name": "shapes",
    "data.image_size": 16,
    "data.samples": 16,
    "data.workers": 0,
    "training.batch_size": 8,
    "training.epochs": 1000,
    "logging.step_interval_s": 0,
    "hardware.device": "cpu",
    **QUIET,
    "precision.mode": "auto",
}
LIMIT_S = 300.0


class Card:
    """Stand-in for `Trial`: takes given seconds per step, and counts the steps."""

    def __init__(self, *, bf16=1.0, fp16=1.0, channels_first=1.0, foreach=1.0):
        self.seconds = {"fp32": 1.0, "bf16": bf16, "fp16": fp16}
        self.channels_first, self.foreach = channels_first, foreach
        self.taken, self.now = 0, 0.0

    def __call__(self, *_):
        return self

    def close(self):
        pass

    def _takes(self, seconds):
        def step():
            self.taken += 1
            self.now += seconds
            return seconds

        return step

    def step(self, precision, *, channels_last):
        seconds = self.seconds[precision]
        return self._takes(seconds if channels_last else seconds * self.channels_first)

    def update(self, *, channels_last, fused):
        return self._takes(1.0 if fused else self.foreach)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def decided(tmp_path, monkeypatch):
    """Run a short part of a long run on a device; return its session after the end."""

    def go(card, name="run", *, resume=False, busy=None, **changed):
        monkeypatch.setattr(auto, "StepTimer", card)
        run = tmp_path / name if resume else create_run(tmp_path, "test", "unet", name)
        plan = plan_of({**SETTINGS, **changed})
        if busy is not None:
            gpu = GpuInfo(index=0, name="card", uuid="GPU-0", utilisation=busy)
            plan = replace(plan, device=replace(plan.device, gpu=gpu))
        session = Session(plan, run, resume=resume)
        heard = session.listen()
        session.start()
        while not session.finished:
            heard.wait(0.1)
            if any(event.kind == "step" for event in heard.drain()):
                session.mailbox.stop(None)
        assert session.wait(LIMIT_S)
        assert session.result.error is None
        assert session.result.bug is None
        return session

    return go


def test_the_fastest_is_used_told_and_written_down(decided):
    session = decided(Card(bf16=0.5, channels_first=0.8, foreach=0.5))
    told = read_summary(session.run)["precision"]
    assert told == {
        "requested": "auto",
        "used": "bf16",
        "reason": "2.00x fp32 here (500 ms per step against 1.00 s)",
    }
    job = session._trainer.context.job
    assert (job.precision, job.config.speed.channels_last, job.config.speed.fused) == ("bf16", False, False)
    notes = session.plan.notes
    assert "channels first: 1.25x channels last here (400 ms per step against 500 ms)" in notes
    assert "a foreach update: 2.00x a fused update here (500 ms per step against 1.00 s)" in notes
    assert 'mode = "auto"' in (session.run / "run.toml").read_text()  # the requested value


def test_a_resumed_run_has_what_it_was_begun_with_and_measures_nothing(decided, tmp_path):
    decided(Card(bf16=0.5, channels_first=0.8, foreach=0.5))
    for file in (tmp_path / "cache").rglob("*.json"):
        file.unlink()
    other = Card(bf16=2.0)
    session = decided(other, resume=True)
    assert other.taken == 0
    job = session._trainer.context.job
    assert (job.precision, job.config.speed.channels_last, job.config.speed.fused) == ("bf16", False, False)
    assert read_summary(session.run)["precision"]["reason"].startswith("2.00x fp32 here")


DAMAGED = '{"precision": {"used": "fp16", "reason": "x"}, "channels_last": "no", "fused": 0}'


def test_a_resumed_run_whose_choices_are_damaged_goes_by_the_table(decided):
    first = decided(Card(bf16=2.0))
    (first.run / CHOICES).write_text(DAMAGED)
    card = Card(bf16=0.5)
    session = decided(card, resume=True)
    assert card.taken == 0
    table = plan_run(session.plan.request).precision.used
    assert session._trainer.context.job.precision == table
    assert session._trainer.context.job.config.speed.channels_last is True


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[]",
        DAMAGED,
        '{"precision": {"used": ["bf16"], "reason": "x"}}',
        '{"precision": {"used": "bf16", "reason": 5}}',
    ],
)
def test_choices_that_are_damaged_change_no_plan(tmp_path, written):
    (tmp_path / CHOICES).write_text(written)
    plan = plan_of(SETTINGS)
    assert choices_taken(plan, tmp_path) == plan


def test_a_requested_precision_is_no_choice_for_a_resume_that_asks_for_auto(decided):
    table = plan_of(SETTINGS).precision
    requested = "fp32" if table.used != "fp32" else "bf16"
    decided(Card(), **{"precision.mode": requested})
    session = decided(Card(), resume=True)
    assert session._trainer.context.job.precision == table.used != requested
    assert read_summary(session.run)["precision"]["reason"] == table.reason


def test_what_was_asked_for_is_not_measured(decided):
    card = Card(bf16=0.5, channels_first=0.5, foreach=0.5)
    asked = {"precision.mode": "fp32", "speed.channels_last": True, "speed.fused": True}
    session = decided(card, **asked)
    assert card.taken == 0
    job = session._trainer.context.job
    assert (job.precision, job.config.speed.channels_last, job.config.speed.fused) == ("fp32", True, True)


def precision_warnings(session):
    warnings = read_summary(session.run)["warnings"]
    return [warning["message"] for warning in warnings if warning["code"] == "precision"]


def test_a_slow_precision_that_was_asked_for_is_warned_of_with_the_measured_factor(decided):
    asked = {"precision.mode": "fp16", "speed.channels_last": True, "speed.fused": True}
    session = decided(Card(fp16=22.0), **asked)

    assert session._trainer.context.job.precision == "fp16"
    assert precision_warnings(session) == [
        "fp16 takes 22 times fp32's time here (22.00 s per step against 1.00 s)"
    ]


def test_a_run_that_is_itself_a_measurement_measures_no_cost(decided, monkeypatch):
    monkeypatch.setattr(Session, "measures_costs", UnsavedSession.measures_costs)
    card = Card(fp16=22.0)
    decided(card, **{"precision.mode": "fp16", "speed.channels_last": True, "speed.fused": True})

    assert card.taken == 0


def test_a_slow_precision_in_a_run_too_short_to_measure_is_warned_of_with_the_known_factor(decided):
    card = Card(fp16=22.0)
    session = decided(card, **{"precision.mode": "fp16", "training.epochs": 3})

    assert card.taken == 0
    said = precision_warnings(session)[0]
    assert re.search(r"times (fp32|bf16)'s time \(.*measured with torch", said)


def test_on_a_gpu_that_others_use_nothing_is_measured(decided):
    card = Card(bf16=0.5, channels_first=0.5)
    session = decided(card, busy=0.6)

    assert card.taken == 0
    assert any("others keep" in note and "60% busy" in note for note in session.plan.notes)

    again = Card(bf16=0.5)
    decided(again, resume=True, busy=0.0)
    assert again.taken == 0  # a resumed run goes on as it began


@pytest.mark.parametrize("why", [{"training.deterministic": True}, {"training.epochs": 3}], ids=str)
def test_a_deterministic_run_and_a_short_one_measure_nothing(decided, why):
    card = Card(bf16=0.5, channels_first=0.5)
    session = decided(card, **why)
    assert card.taken == 0
    assert session._trainer.context.job.precision == plan_run(session.plan.request).precision.used
    assert session._trainer.context.job.config.speed.channels_last is True


def test_a_deterministic_run_takes_nothing_that_was_kept_either(decided):
    decided(Card(bf16=0.5, channels_first=0.5), "first")
    session = decided(Card(), "second", **{"training.deterministic": True})
    assert session._trainer.context.job.config.speed.channels_last is True


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_sources_of_settings_are_kept_with_the_choices_also_by_a_resume(decided, deterministic):
    rate = {"training.lr": 0.02, "training.deterministic": deterministic}
    first = decided(Card(bf16=0.5), **rate)
    for session in (first, decided(Card(), resume=True, **rate)):
        config = resolve(str(session.run / CONFIG), task=None, flags={}, sets=(), environ={}).config
        sources = read_sources(session.run, values_of(config))
        assert sources["training.lr"] == "test"
        changed = with_values(config, {"training.lr": 0.01})
        assert "training.lr" not in read_sources(session.run, values_of(changed))


@pytest.mark.parametrize("written", ["", "[]", '{"settings": 1}', '{"settings": {"training.lr": [1]}}'])
def test_sources_that_are_damaged_are_left_out(tmp_path, written):
    (tmp_path / CHOICES).write_text(written)
    assert read_sources(tmp_path, values_of(RunConfig())) == {}


def test_a_stop_while_it_measures_ends_it_with_nothing_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "StepTimer", Card())

    def stop():
        raise Stopped(15)

    plan = plan_of(SETTINGS)
    decider = Decider(tmp_path, False, lambda _: None, stop)
    dataset = type("Set", (), {"classes": ("a", "b"), "train": range(16), "class_counts": (8, 8)})()
    with pytest.raises(Stopped):
        decider.decide(plan, torch.nn.Identity(), dataset)
    assert not (tmp_path / CHOICES).exists()
    assert list((tmp_path / "cache").rglob("*.json")) == []


@pytest.mark.parametrize(("time", "is_measured"), [("1m", False), ("10m", True)])
def test_measuring_takes_no_more_than_its_share_of_the_time_of_a_run_and_the_run_says_so(
    tmp_path, monkeypatch, time, is_measured
):
    card = Card(bf16=0.5, channels_first=0.8)
    monkeypatch.setattr(auto, "StepTimer", card)
    settings = {key: value for key, value in SETTINGS.items() if key != "training.epochs"}
    plan = plan_of({**settings, "training.time": time})
    dataset = type("Set", (), {"classes": ("a", "b"), "train": range(16), "class_counts": (8, 8)})()
    decider = Decider(tmp_path, False, lambda _: None, lambda: None, clock=lambda: card.now)
    decided = decider.decide(plan, torch.nn.Identity(), dataset)
    recorded = json.loads((tmp_path / CHOICES).read_text())
    words = "not measured, as that takes over 5% of training.time here"
    if is_measured:
        assert recorded["precision"]["reason"].startswith("2.00x fp32 here")
        assert not any(words in note for note in decided.notes)
        return
    assert card.now <= 3.0
    used = plan.precision.used
    assert recorded["precision"] == {"used": used, "reason": words}
    assert (decided.precision.used, decided.channels_last, decided.fused) == (used, True, True)
    assert [note for note in decided.notes if words in note] == [f"precision, layout, update: {words}"]


def test_fp16_is_not_tried_on_a_cpu_and_bf16_is_whatever_the_table_says(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "StepTimer", Card(bf16=0.5))
    plan = plan_of(SETTINGS)
    told = []
    for native in ("native", "emulated"):
        device = replace(plan.device, native={"bf16": native, "fp16": "native"}, name=native)
        dataset = type("Set", (), {"classes": ("a", "b"), "train": range(16), "class_counts": (8, 8)})()
        decider = Decider(
            tmp_path, False, lambda event: told.append(getattr(event, "detail", "")), lambda: None
        )
        assert (
            decider.decide(replace(plan, device=device), torch.nn.Identity(), dataset).precision.used
            == "bf16"
        )
    assert "measuring fp16" not in told
    assert json.loads((tmp_path / CHOICES).read_text())["precision"]["used"] == "bf16"
