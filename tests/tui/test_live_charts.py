"""The charts of the live screen: which are drawn, their windows, cursor and marks."""

from dataclasses import replace

import pytest
from textual.events import MouseScrollUp

from mptui.events import PresetSwitched, Validated
from mptui.tui.widgets.chart.chart import Chart
from mptui.tui.widgets.chart.plot import GUTTER
from tests.tui.events import START, MemorySource, demo, device_sample, finished, step_event
from tests.tui.frames import frame, live, put, seen


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 16)])
async def test_metrics_are_searched_and_drawn_first_as_they_are_chosen(size):
    async with live(MemorySource(demo()), size) as (app, pilot):
        await pilot.press("slash", *"scale")
        assert await seen(app, pilot, "65,536")
        assert "gradient norm  " not in frame(app)
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert "╭─ loss scale" in frame(app)
        assert size[0] < 100 or "╭─ loss ─" in frame(app)
        await pilot.press("slash", "down", "down", "up", "enter", "escape")
        await pilot.press("slash", *"loss scale", "enter", "escape")
        await pilot.pause()
        assert "╭─ loss scale" not in frame(app)
        await pilot.press("slash", *"nothing", "enter", "down", "escape")
        await pilot.pause()
        assert "metrics to draw" not in frame(app)


async def test_the_chart_of_the_loss_says_what_is_in_it():
    events = [
        replace(event, loss_terms=["label smoothing 0.1"]) if isinstance(event, Validated) else event
        for event in demo()
    ]
    async with live(MemorySource(events)) as (app, _):
        assert "╭─ loss with label smoothing 0.1 ─" in frame(app)


async def test_axis_smoothing_and_cursor():
    async with live(MemorySource(demo())) as (app, pilot):
        await pilot.press("y", "s")
        await pilot.pause()
        assert "log axis · not smoothed" in frame(app)
        await pilot.press("left", "left")
        assert await seen(app, pilot, "step 14,275")
        assert "validation 1.22" in frame(app)
        await pilot.press("right", "right")
        assert await seen(app, pilot, "step 14,29")
        await pilot.press("escape")
        await pilot.pause()
        assert "step 14,29" not in frame(app).split("loss", 1)[1]


async def test_keys_and_the_wheel_zoom_and_pan_all_charts():
    async with live(MemorySource(demo())) as (app, pilot):
        await pilot.press("plus", "plus")
        assert await seen(app, pilot, "last 2,000 steps")
        assert frame(app).count("last 2,000 steps") == len([c for c in app.screen.query(Chart) if c.size])
        await pilot.press("comma")
        assert await seen(app, pilot, "steps 11,297 to 13,297")
        await pilot.press("0")
        await pilot.pause()
        assert "steps 11,297" not in frame(app)
        chart = app.screen.query_one("#chart-0")
        scroll = {"widget": chart, "delta_x": 0, "delta_y": 0, "button": 0, "meta": False, "ctrl": False}
        x, y = chart.content_region.x + GUTTER, chart.content_region.y + 5
        for shift in (False, True):
            place = {"x": GUTTER + 2, "y": 5, "screen_x": x, "screen_y": y, "shift": shift}
            chart.post_message(MouseScrollUp(**scroll, **place))
            await pilot.pause()
        assert await seen(app, pilot, "steps 0 to 5,000")
        await pilot.press("minus", "minus", "minus")
        await pilot.pause()
        assert "steps 0 to" not in frame(app)


async def test_the_planned_learning_rate_is_drawn_to_the_end_of_the_run():
    async with live(MemorySource(demo()), (140, 45)) as (app, _):
        chart = app.screen.query_one("#chart-2", Chart)
        assert "100k" in chart.render_line(chart.size.height - 1).text
        middle = [chart.render_line(y).text[30:40] for y in range(1, chart.size.height - 1)]
    assert any(0x2800 < ord(sign) < 0x2900 for row in middle for sign in row)


@pytest.mark.parametrize(("size", "charts"), [((120, 36), 3), ((140, 45), 4), ((200, 60), 6)])
async def test_a_larger_screen_has_more_charts(size, charts):
    names = ["loss", "accuracy", "learning rate", "gradient norm", "speed", "device"]
    async with live(MemorySource(demo()), size) as (app, _):
        shown = [name for name in names if f"╭─ {name} ─" in frame(app)]
    assert shown == names[:charts]


async def test_a_second_escape_leads_back_where_the_first_removed_the_cursor():
    async with live(MemorySource([*demo(), finished()])) as (app, pilot):
        screen = app.screen
        await pilot.press("left")
        assert await seen(app, pilot, "step 14,29")
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is screen
        assert "◂" not in frame(app)


async def test_nothing_is_drawn_while_nothing_changes(chance):
    async with live(MemorySource(demo())) as (app, pilot):
        charts = app.screen.query(Chart)
        await pilot.pause()
        before = [chart.drawn for chart in charts]
        app.screen.poll()
        await put(app, pilot, device_sample(START + 4000, 14_297, chance))
        assert [chart.drawn for chart in charts] == before
        await put(app, pilot, step_event(14_400, START + 4000, chance))
        assert charts.first().drawn == before[0] + 1


async def test_a_setting_that_was_changed_is_a_mark_on_the_curve():
    changed = PresetSwitched(
        time=START + 2e6, step=9_000, profile="fast", previous="fast", changes={"data.workers": ["8", "12"]}
    )
    async with live(MemorySource([*demo(), changed]), (120, 36)) as (app, _):
        text = frame(app)

        assert "▼ workers 8 → 12" in text
        assert "changed at step 9,000: data.workers 8 → 12" in text
