"""The screen of a run that lasts hours: memory and the cost of a frame stay constant."""

import gc
import itertools
import statistics
import time
import tracemalloc

import pytest

from mptui.events import CheckpointSaved, EpochFinished, StepSkipped, Validated, Warned
from tests.tui.events import START, MemorySource, device_sample, run_started, step_event
from tests.tui.frames import frame, put

AT_ONCE = 1000
EARLY = 2000
FRAMES = 9


class Endless(MemorySource):
    """A run with endless events, some thousands at each poll, as in a journal that is played back."""

    def __init__(self, chance):
        super().__init__()
        self.later = itertools.chain([run_started()], story(chance))
        self.delivered = 0

    def poll(self):
        events = [*super().poll(), *itertools.islice(self.later, AT_ONCE)]
        self.delivered += len(events)
        return events


def story(chance):
    """Yield steps and all other events."""
    for number in itertools.count(1):
        step, when = 12 * number, START + number
        yield step_event(step, when, chance, metrics={"acc1": 0.5 + 0.4 * chance.random()})
        yield device_sample(when, step, chance)
        if number % 50 == 0:
            yield Warned(time=when, step=step, code="w", message=f"warning at {step}")
            yield StepSkipped(time=when, step=step, count=1, total=number // 50, streak=1, loss_scale=1024.0)
        if number % 400 == 0:
            epoch = number // 400
            metrics = {"acc1": 0.7, "acc5": 0.9}
            yield Validated(
                time=when, step=step, epoch=epoch, loss=1.0, metrics=metrics, seconds=3, best=True
            )
            yield EpochFinished(
                time=when,
                step=step,
                epoch=epoch,
                epochs=10**6,
                train_loss=1.0,
                train_metrics={},
                val_loss=1.1,
                lr=0.1,
                seconds=9,
            )
            yield CheckpointSaved(time=when, step=step, path="last", reason="time", seconds=1, size_bytes=9)


async def shown_until(app, pilot, given):
    """Show as many events as `given`."""
    while app.screen.source.delivered < given:
        app.screen.poll()
        await pilot.pause()


async def cost_of_a_frame(app, pilot, chance):
    """Return the median CPU time of this thread for one more step and its frame, in seconds."""
    costs = []
    source, view = app.screen.source, app.screen.view
    later, source.later = source.later, iter(())
    for _ in range(FRAMES):
        began = time.thread_time()
        await put(app, pilot, step_event(view.step + 12, view.time + 1, chance))
        frame(app)
        costs.append(time.thread_time() - began)
    source.later = later
    return statistics.median(costs)


@pytest.mark.parametrize(
    ("events", "largest"),
    [
        pytest.param(4_000, 500_000, marks=pytest.mark.slow),
        pytest.param(1_000_000, 2_000_000, marks=pytest.mark.chaos),
    ],
)
async def test_an_hour_of_events_leaves_memory_flat_and_frames_as_cheap(stage, events, largest, chance):
    source = Endless(chance)
    async with stage.live(source) as (app, pilot):
        await shown_until(app, pilot, EARLY)
        early = await cost_of_a_frame(app, pilot, chance)
        gc.collect()
        tracemalloc.start()
        await shown_until(app, pilot, events)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert "● training" in frame(app)
        late = await cost_of_a_frame(app, pilot, chance)
    assert grown < largest
    assert late < 2.5 * early
