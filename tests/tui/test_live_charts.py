"""The charts of the live screen: which are drawn, their windows, cursor and marks."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from textual.events import MouseScrollUp

from mptui.events import PresetSwitched, Validated
from mptui.tui.widgets.chart import Chart
from mptui.tui.widgets.plot import GUTTER
from tests.tui.events import START, MemorySource, demo, demo_source, device_sample, finished, step_event
from tests.tui.frames import frame, put, seen


@pytest.fixture(autouse=True)
def _nothing_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def titles(app):
    """Return the charts that are shown, in their order on the left, then on the right."""
    charts = [chart for chart in app.screen.query(Chart) if chart.region.area]
    return [re.split(r"  |\[", str(chart.border_title))[0] for chart in charts]


@pytest.mark.parametrize("size", [(120, 36), pytest.param((80, 24), marks=pytest.mark.slow)])
async def test_charts_follow_the_names_and_globs_that_are_typed(stage, size):
    async with stage.live(demo_source(), size) as (app, pilot):
        before = titles(app)
        await pilot.press("slash", *"l*s scale")
        assert await seen(app, pilot, " /l*s scale ")
        assert titles(app) == ["loss scale"]
        await pilot.press("ctrl+u", *"norm, lear")
        await pilot.press("enter")
        await pilot.pause()
        assert titles(app) == ["gradient norm", "learning rate"][: 2 if size[0] > 80 else 1]
        await pilot.press("slash", "ctrl+u", *"nothing")
        assert await seen(app, pilot, " /nothing: no metric ")
        await pilot.press("escape")
        await pilot.pause()
        assert titles(app) == before
        assert "/nothing" not in frame(app)


async def test_the_grid_of_rows_and_columns_its_pages_and_its_names_are_there_at_the_next_start(stage):
    async with stage.live(demo_source(), (200, 60)) as (app, pilot):
        assert len(titles(app)) == 6
        await pilot.press("right_square_bracket", "right_curly_bracket")
        await pilot.pause()
        assert len(titles(app)) == 8  # all that there are
        assert " 2x3 " in frame(app)
        await pilot.press("left_curly_bracket", "left_curly_bracket", "slash", *"o", "enter")
    async with stage.live(demo_source(), (200, 60)) as (app, pilot):
        first = titles(app)
        assert len(first) == 5
        assert " 1x3 · /o · page 1 of 2 " in frame(app)
        await pilot.press("right_parenthesis")
        assert await seen(app, pilot, " page 2 of 2 ")
        await pilot.pause()
        rest = titles(app)
        assert rest
        assert not {*rest} & {*first}
        await pilot.press("right_parenthesis")
        await pilot.pause()
        assert titles(app) == first
        await pilot.resize_terminal(100, 24)
        await pilot.pause()
        assert len(titles(app)) == 1
        await pilot.press("right_square_bracket")
        assert await seen(app, pilot, "no room for more charts")


async def test_a_chart_that_has_just_become_narrower_covers_no_neighbour(stage, monkeypatch):
    async with stage.live(demo_source(), (120, 36)) as (app, pilot):
        chart = app.screen.query_one("#chart-0", Chart)
        before = chart.outer_size
        monkeypatch.setattr(Chart, "on_resize", lambda self: None)  # which draws anew, after a frame
        await pilot.press("right_square_bracket")
        await pilot.pause()
        now = chart.outer_size
        assert now.width < before.width
        assert {cell_len(line.text) for line in chart.render_lines(now.region)} == {now.width}


async def test_the_chart_of_the_loss_says_what_is_in_it(stage):
    events = [
        replace(event, loss_terms=["label smoothing 0.1"]) if isinstance(event, Validated) else event
        for event in demo()
    ]
    async with stage.live(MemorySource(events)) as (app, _):
        assert "╭─ loss with label smoothing 0.1  train " in frame(app)


async def test_axis_smoothing_and_cursor(stage):
    async with stage.live(demo_source()) as (app, pilot):
        assert "▲" in frame(app).partition("╭─ loss")[2]
        await pilot.press("z")
        assert await seen(app, pilot, "─ all values ─")
        assert "▲" not in frame(app).partition("╭─ loss")[2]
        await pilot.press("z", "y", "s")
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


async def test_keys_and_the_wheel_zoom_and_pan_all_charts(stage):
    async with stage.live(demo_source()) as (app, pilot):
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
            assert await seen(app, pilot, "steps 8,297 to 13,297" if shift else "last 5,000 steps")
        await pilot.double_click("#chart-0", offset=(GUTTER + 20, 5))
        while " steps" in str(chart.border_subtitle):  # the suite's limit of time ends it
            await pilot.pause(0.02)
        await pilot.press("plus", "plus")
        assert " steps" in str(chart.border_subtitle)
        await pilot.press("minus", "minus", "minus")
        await pilot.pause()
        assert "steps 0 to" not in frame(app)


async def test_the_planned_learning_rate_is_drawn_to_the_end_of_the_run(stage):
    async with stage.live(demo_source(), (140, 45)) as (app, _):
        chart = app.screen.query_one("#chart-2", Chart)
        assert "100k" in chart.render_line(chart.size.height - 1).text
        middle = [chart.render_line(y).text[30:40] for y in range(1, chart.size.height - 1)]
    assert any(0x2800 < ord(sign) < 0x2900 for row in middle for sign in row)


@pytest.mark.slow
async def test_a_larger_screen_has_more_charts(stage):
    names = ["loss", "top-1", "learning rate", "gradient norm", "speed", "device"]
    async with stage.live(demo_source()) as (app, pilot):
        for size, charts in (((120, 36), 3), ((140, 45), 4), ((200, 60), 6)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            shown = [name for name in names if f"╭─ {name}  " in frame(app)]
            assert shown == names[:charts]


async def test_a_second_escape_leads_back_where_the_first_removed_the_cursor(stage):
    async with stage.live(demo_source(finished())) as (app, pilot):
        screen = app.screen
        await pilot.press("left")
        assert await seen(app, pilot, "step 14,29")
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is screen
        assert "◂" not in frame(app)


async def test_nothing_is_drawn_while_nothing_changes(stage, chance):
    async with stage.live(demo_source()) as (app, pilot):
        charts = app.screen.query(Chart)
        await pilot.pause()
        before = [chart.drawn for chart in charts]
        app.screen.poll()
        await put(app, pilot, device_sample(START + 4000, 14_297, chance))
        assert [chart.drawn for chart in charts] == before
        await put(app, pilot, step_event(14_400, START + 4000, chance))
        assert charts.first().drawn == before[0] + 1


async def test_a_setting_that_was_changed_is_a_mark_on_the_curve(stage):
    changed = PresetSwitched(
        time=START + 2e6, step=9_000, profile="fast", previous="fast", changes={"data.workers": ["8", "12"]}
    )
    async with stage.live(demo_source(changed), (120, 36)) as (app, _):
        text = frame(app)

        assert "▼ workers 8 → 12" in text
        assert "changed at step 9,000: data.workers 8 → 12" in text


async def test_a_figure_in_the_title_of_a_chart_is_left_out_and_never_cut(stage):
    async with stage.live(demo_source(), (120, 35)) as (app, pilot):
        for width in range(100, 124):
            await pilot.resize_terminal(width, 35)
            await pilot.pause()
            titles = frame(app).splitlines()
            assert not [line for line in titles if line.startswith("╭─") and "…" in line.split("╮")[0]]
