"""A journal may contain any number, by a disk fault or intentionally: no screen fails on one."""

import dataclasses
import math

import pytest

from mptui import format as fmt
from mptui.events import MemorySample, Numerics, NumericsLayer, RunStarted
from mptui.tui.widgets.bars import bar
from tests.tui.events import MemorySource, demo, rank_row, ranks_sampled
from tests.tui.frames import frame, live, put

NUMBERS = [math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-320, 5e-324, -1.0, 0.0]


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


@pytest.mark.parametrize("number", NUMBERS)
async def test_no_number_of_a_journal_breaks_a_screen(number):
    events = demo()
    kinds = {type(event): event for event in events}
    source = MemorySource([kinds[RunStarted], *events[5:9]])
    async with live(source) as (app, pilot):
        for _ in range(2):
            figures = [changed(event, number) for event in kinds.values()]
            await put(app, pilot, *figures, looked(number), ranks(number), memory(number))
            await pilot.press("y", "s")
        await pilot.press("n")
        await pilot.pause()
        assert "layers by risk" in frame(app)
        await pilot.press("n", "g", *"ssssssssss")
        await pilot.pause()
        assert "2 by rank" in frame(app)
        await pilot.press("g", "m")
        await pilot.pause()
        assert "measured" in frame(app)
        await pilot.press("m")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "stable" in frame(app)


def test_a_run_that_ends_beyond_all_calendars_shows_its_screen_all_the_same():
    assert [fmt.clock(moment) for moment in (math.nan, math.inf, 1e18, -1e18)] == [fmt.UNKNOWN] * 4


def test_what_is_no_number_has_no_height_and_fills_no_bar():
    assert fmt.sparkline([1.0, math.nan, 2.0, math.inf, 3.0]) == "▁×▅×█"
    assert bar(math.nan, 4).plain == bar(None, 4).plain
    assert bar(math.inf, 4).plain == "━━━━"
