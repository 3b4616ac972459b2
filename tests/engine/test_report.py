"""Aggregation of step figures: events, epoch sums, and counts of the run."""

import math
import time

import numpy as np
import pytest
import torch

from mptui.data.batch import Batch
from mptui.engine.reporting.reporter import CAPACITY, EpochSums, Reporter
from mptui.events import Event, Step, StepSkipped, Warned
from mptui.tasks.classification import Accuracy
from tests.engine.small import CPU, build_trainer, config, end, of, small_net

HOUR = 3600.0


def reporter_with(interval_s):
    events: list[Event] = []
    metrics = Accuracy(3, CPU)
    reporter = Reporter(events.append, CPU, interval_s, metrics=metrics, host_metrics=Accuracy(3, CPU))
    return reporter, events, metrics


def note(reporter, step, loss, *, refused=False, samples=8, waited=0.0, scale=1.0, norm=2.0, lr=0.1):
    values = tuple(torch.tensor(float(v)) for v in (loss, norm, refused, scale, lr))
    reporter.record(values, (step, 1, step, samples, 0), waited)


def test_many_steps_are_one_event_with_their_mean_and_spikes():
    reporter, events, _ = reporter_with(HOUR)
    for step, loss in enumerate([1.0, 5.0, 0.5, 1.5], 1):
        note(reporter, step, loss, norm=step, lr=0.1 * step)
    reporter.flush(wait=True)
    (event,) = of(events, Step)
    assert (event.steps, event.step, event.epoch_step, event.samples_seen) == (4, 4, 4, 32)
    assert (event.loss, event.loss_min, event.loss_max, event.nonfinite) == (2.0, 0.5, 5.0, 0)
    assert event.grad_norm == 4.0
    assert event.lr == pytest.approx(0.4)
    assert event.samples_per_second == pytest.approx(8 / (event.step_time_s or 0))
    assert event.loss_scale is None


def test_an_interval_of_zero_tells_of_each_step():
    reporter, events, _ = reporter_with(0.0)
    for step, loss in enumerate([3.0, 2.0, 1.0], 1):
        note(reporter, step, loss)
    reporter.flush()
    assert [(e.step, e.steps, e.loss) for e in of(events, Step)] == [(1, 1, 3.0), (2, 1, 2.0), (3, 1, 1.0)]
    assert [e.samples_seen for e in of(events, Step)] == [8, 16, 24]


def test_rows_read_early_are_counted_at_once_and_told_with_the_next_ones():
    reporter, events, _ = reporter_with(HOUR)
    seen: list[int] = []
    reporter.on_rows = lambda rows: seen.extend(row.step for row in rows)
    note(reporter, 1, 4.0)
    note(reporter, 2, math.nan, refused=True)
    reporter.catch_up()
    assert not events
    assert seen == [1, 2]
    assert (reporter.state_dict()["tried"], reporter.state_dict()["skipped"]) == (2, 1)
    note(reporter, 3, 2.0)
    reporter.flush(wait=True)
    (event,) = of(events, Step)
    assert (event.steps, event.step, event.samples_seen, event.loss) == (3, 3, 24, 3.0)
    assert [(e.count, e.total) for e in of(events, StepSkipped)] == [(1, 1)]
    assert seen == [1, 2, 3]
    reporter.flush(wait=True)
    assert len(of(events, Step)) == 1


def test_rows_read_early_are_told_when_none_follow():
    reporter, events, metrics = reporter_with(HOUR)
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), 2, 2, np.arange(2))
    metrics.update(torch.eye(3)[:2], batch)
    note(reporter, 1, 4.0)
    reporter.catch_up()
    reporter.flush(wait=True)
    (event,) = of(events, Step)
    assert (event.step, event.metrics["acc1"]) == (1, 1.0)


def test_each_step_has_its_own_event_also_where_rows_are_read_early():
    reporter, events, _ = reporter_with(0.0)
    note(reporter, 1, 4.0)
    note(reporter, 2, 3.0)
    reporter.catch_up()
    assert [(e.step, e.samples_seen) for e in of(events, Step)] == [(1, 8), (2, 16)]


def test_nothing_new_is_no_event():
    reporter, events, _ = reporter_with(0.0)
    reporter.flush(wait=True)
    note(reporter, 1, 1.0)
    reporter.flush(wait=True)
    reporter.flush(wait=True)
    assert len(events) == 1


def test_the_throughput_counts_what_held_up_the_steps_and_not_the_first_interval(monkeypatch):
    reporter, _, _ = reporter_with(HOUR)
    now = time.perf_counter()
    monkeypatch.setattr("mptui.engine.reporting.reporter.time.perf_counter", lambda: now)
    for step, seconds in enumerate([60.0, 1.0, 1.0, 1.0, 37.0], 1):  # a warm-up, and a stall
        note(reporter, step, 1.0, samples=10)
        now += seconds
        reporter.flush(wait=True)
        if step == 1:
            assert reporter.run_throughput.rate == pytest.approx(10 / 60, rel=1e-2)

    assert reporter.run_throughput.rate == pytest.approx(40 / 40)
    assert reporter.epoch_throughput.rate == pytest.approx(50 / 100, rel=1e-2)
    reporter.begin_epoch()
    note(reporter, 6, 1.0, samples=10)
    now += 2.0
    reporter.flush(wait=True)
    assert reporter.epoch_throughput.rate == pytest.approx(5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_counted_and_spoil_no_mean(bad):
    reporter, events, _ = reporter_with(HOUR)
    for step, loss in enumerate([1.0, bad, 3.0], 1):
        note(reporter, step, loss)
    reporter.flush(wait=True)
    (event,) = of(events, Step)
    assert (event.loss, event.loss_min, event.loss_max, event.nonfinite) == (2.0, 1.0, 3.0, 1)


def test_nan_is_shown_where_there_is_nothing_else():
    reporter, events, _ = reporter_with(0.0)
    note(reporter, 1, math.nan)
    reporter.flush()
    (event,) = of(events, Step)
    assert math.isnan(event.loss)
    assert math.isnan(event.loss_min)
    assert math.isnan(event.loss_max)


def test_an_applied_step_with_a_nan_loss_shows_in_the_epochs_mean():
    reporter, _, _ = reporter_with(0.0)
    note(reporter, 1, 1.0)
    note(reporter, 2, math.nan)
    reporter.flush()
    assert math.isnan(reporter.epoch.mean_loss())


def test_the_epochs_mean_is_over_the_samples_of_applied_steps():
    reporter, _, _ = reporter_with(HOUR)
    note(reporter, 1, 1.0, samples=8)
    note(reporter, 2, math.nan, samples=8, refused=True)
    note(reporter, 3, 4.0, samples=4)
    reporter.flush(wait=True)
    assert reporter.epoch.mean_loss() == pytest.approx((8 * 1.0 + 4 * 4.0) / 12)
    assert math.isnan(EpochSums().mean_loss())


def test_skipped_steps_have_their_event_and_their_streak():
    reporter, events, _ = reporter_with(HOUR)
    reporter.scaled = True
    for step, refused in enumerate([True, False, True, True], 1):
        note(reporter, step, 1.0, refused=refused, scale=512.0)
    reporter.flush(wait=True)
    (skipped,) = of(events, StepSkipped)
    assert (skipped.count, skipped.total, skipped.streak, skipped.loss_scale) == (3, 3, 2, 512.0)
    assert (reporter.totals.tried, reporter.totals.skipped, reporter.totals.applied) == (4, 3, 1)
    assert of(events, Step)[0].skipped_steps == 3
    note(reporter, 5, 1.0)
    reporter.flush(wait=True)
    assert reporter.totals.streak == 0
    assert len(of(events, StepSkipped)) == 1


def test_metrics_are_those_at_the_last_step_told():
    reporter, events, metrics = reporter_with(0.0)
    logits = torch.eye(3)
    batch = Batch(torch.zeros(3, 3, 1, 1), torch.tensor([0, 1, 0]), 3, 3, sample_indices=np.arange(3))
    metrics.update(logits, batch)
    note(reporter, 1, 1.0)
    reporter.flush()
    assert of(events, Step)[0].metrics["acc1"] == pytest.approx(2 / 3)


def test_the_share_of_waiting_is_a_share():
    reporter, events, _ = reporter_with(HOUR)
    note(reporter, 1, 1.0, waited=1e6)
    reporter.flush(wait=True)
    assert of(events, Step)[0].data_wait_fraction == 1.0


def test_it_is_full_when_the_ring_is():
    reporter, events, _ = reporter_with(HOUR)
    for step in range(1, CAPACITY + 1):
        assert not reporter.full
        note(reporter, step, 1.0)
    assert reporter.full
    reporter.flush()
    assert not reporter.full
    assert of(events, Step)[0].steps == CAPACITY


def test_counts_go_on_from_a_state():
    reporter, _, _ = reporter_with(0.0)
    note(reporter, 1, 1.5)
    note(reporter, 2, math.nan, refused=True)
    reporter.flush()
    other, _, _ = reporter_with(0.0)
    other.load_state_dict(reporter.state_dict())
    assert (other.totals, other.epoch) == (reporter.totals, reporter.epoch)


def test_the_parts_of_a_step_add_up_to_the_time_of_the_same_steps():
    """Return steps of which one per interval is measured, and some wait much longer."""
    reporter, events, _ = reporter_with(0.001)
    spent = taken = 0.0
    step = 0
    for interval in range(6):
        reporter.restart_clock()
        for number in range(4):
            step += 1
            reporter.clock.begin()
            time.sleep(0.0005)
            reporter.clock.mark("forward")
            if number:  # never in the measured step
                time.sleep(0.002)
            reporter.clock.mark("backward")
            note(reporter, step, 1.0, waited=0.001 * (interval == 3))
            reporter.clock.end()
        reporter.flush(wait=True)
        latest = of(events, Step)[-1]
        spent += (latest.step_time_s or 0.0) * latest.steps
        taken += latest.steps
    assert sum(of(events, Step)[-1].split.values()) == pytest.approx(spent / taken, rel=1e-3)


@pytest.mark.parametrize(("factor", "told"), [(1.0, 0), (200.0, 1)])
def test_a_first_loss_far_above_chance_is_told_once(tmp_path, factor, told):
    class Loud(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, images):
            return self.net(images) * factor

    trainer, events = build_trainer(config(training={"epochs": 2, "lr": 1e-9}), tmp_path, model=Loud())
    trainer.train()
    end(trainer)
    assert sum(each.code == "first_loss" for each in of(events, Warned)) == told
