"""A journal may contain any number, by a disk fault or intentionally: no screen fails on one."""

import dataclasses
import math

import pytest

from mptui import text as fmt
from mptui.events import MemorySample, Numerics, NumericsLayer, RunStarted
from mptui.tui.widgets.basics import bar
from tests.tui.events import MemorySource, demo, rank_row, ranks_sampled
from tests.tui.frames import frame, put, put_below

SETS = [
    [math.nan, -math.inf, 1e308],
    pytest.param([math.inf, 5e-324, -1.0, 0.0, -1e308, 1e-320], marks=pytest.mark.slow),
]


def changed(event, number):
    """Return the event with each of its floats replaced, also in lists and tables."""
    changes = {}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if isinstance(value, float) and field.name != "time":
            changes[field.name] = number
        elif isinstance(value, dict) and all(isinstance(each, float) for each in value.values()):
            changes[field.name] = dict.fromkeys(value, number)
    return dataclasses.replace(event, **changes)


def looked(number):
    shares = dict.fromkeys(
        ("zeros", "smallest", "largest", "zeroed", "subnormal", "overflow", "lost"), number
    )
    layer = NumericsLayer(
        name="layer1",
        part="gradient",
        fault="",
        values=1000,
        lost_unscaled=number,
        first_exponent=-20,
        exponents=[1, 2, 3],
        **shares,
    )
    told = dict.fromkeys(("loss_scale", "best_scale", "lost", "lost_at_best", "cost_s", "every_s"), number)
    others = {"others": 3, "others_at_fault": 0, "others_lost": number}
    return Numerics(mode="summary", precision="fp16", eager=False, layers=[layer], **told, **others)


def ranks(number):
    return ranks_sampled([changed(rank_row(0), number), rank_row(1)], steps=0 if number == 0 else 50)


def memory(number):
    return changed(MemorySample(allocated=1, peak=2, reserved=3, gaps=1, process=4), number)


def figures(number):
    """Events of each kind, of each screen, with this number in place of all others."""
    kinds = {type(event): event for event in demo()}
    told = [changed(event, number) for event in kinds.values()]
    return [*told, looked(number), ranks(number), memory(number)]


@pytest.mark.parametrize("numbers", SETS)
async def test_no_number_of_a_journal_breaks_the_live_screen(stage, numbers):
    events = demo()
    sources = []
    async with stage.live(MemorySource()) as (app, pilot):
        for number in numbers:
            started = next(event for event in events if isinstance(event, RunStarted))
            sources.append(MemorySource([started, *events[5:9]]))
            app.screen.follow(sources[-1])
            for _ in range(2):
                await put(app, pilot, *figures(number))
                await pilot.press("y", "s")
            assert "╭─ loss" in frame(app)
        await pilot.resize_terminal(80, 24)
        for source in sources:
            app.screen.follow(source)
            await pilot.pause()
            assert "stable" in frame(app)


@pytest.mark.parametrize("numbers", SETS)
@pytest.mark.parametrize(
    ("key", "words", "orders"),
    [("n", "layers by risk", ""), ("R", "2 by rank", "s" * 10), ("m", "measured", "")],
)
async def test_no_number_of_a_journal_breaks_the_screens_above_it(stage, key, words, orders, numbers):
    async with stage.live(MemorySource([*demo()[:9], *figures(1.0)])) as (app, pilot):
        await pilot.press(key)
        for number in numbers:
            await put_below(app, pilot, *figures(number))
            await pilot.press(*orders)
            assert words in frame(app)


def test_a_run_that_ends_beyond_all_calendars_shows_its_screen_all_the_same():
    assert [fmt.clock(moment) for moment in (math.nan, math.inf, 1e18, -1e18)] == [fmt.UNKNOWN] * 4


def test_what_is_no_number_has_no_height_and_fills_no_bar():
    assert fmt.sparkline([1.0, math.nan, 2.0, math.inf, 3.0]) == "▁×▅×█"
    assert bar(math.nan, 4).plain == bar(None, 4).plain
    assert bar(math.inf, 4).plain == "━━━━"
