"""Small terminals: no frame or word is cut, and no line of a dialog is broken."""

import time

import pytest
from textual.color import Color
from textual.widgets import OptionList

from mptui.runs.planning.profile_diff import SwitchPrediction
from mptui.tui.dialogs.questions import SwitchProfileDialog
from mptui.tui.screens.live import PAGES
from mptui.tui.widgets.ribbon import signs
from tests.tui.cockpits import until
from tests.tui.events import MemorySource, demo, demo_source
from tests.tui.frames import DEADLINE_S, frame, live, seen
from tests.tui.pickers import go_to

WORDS = ("mixed precision", "health", "cuda:0", "no throttling", "time per step", "bound by compute")


SIZES = [(80, 24), (60, 16)]
MORE_SIZES = [(60, 20), (100, 30), (100, 33), (120, 35), (60, 24), (100, 24), (140, 45)]


@pytest.mark.parametrize("sizes", [SIZES, pytest.param(MORE_SIZES, marks=pytest.mark.slow)])
async def test_all_panels_are_shown_whole_on_one_page_or_two(stage, sizes):
    async with stage.live(demo_source(), sizes[0]) as (app, pilot):
        right = app.screen.query_one("#right")
        for size in sizes:
            await pilot.resize_terminal(*size)
            missing = set(WORDS)
            for _ in range(PAGES + 1):
                await pilot.press("tab")
                await pilot.pause()
                if right.region.area:
                    missing -= {words for words in WORDS if words in frame(app)}
                    assert right.max_scroll_y == 0, size
            assert not missing, size


@pytest.mark.slow
async def test_the_panels_come_together_again_where_there_is_room(stage):
    async with stage.live(demo_source(), (60, 16)) as (app, pilot):
        await pilot.press("tab", "tab", "tab")
        assert "mixed precision" not in frame(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert all(words in frame(app) for words in WORDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("q", "detach: train in the background"),
        ("question_mark", "save and stop; twice: don't ask"),
    ],
)
async def test_each_key_of_a_dialog_is_told_in_one_line(stage, key, words):
    async with stage.live(MemorySource(demo(), can_detach=True), (80, 24)) as (app, pilot):
        await pilot.press(key)
        assert await seen(app, pilot, words)


@pytest.mark.slow
async def test_no_key_is_told_in_two_lines_in_the_smallest_terminal(stage):
    async with stage.live(demo_source(), (60, 16)) as (app, pilot):
        await pilot.press("question_mark")
        await pilot.pause()
        (lines,) = app.screen.query("Static")
        keys = app.screen_stack[-2].keys_now()
        places = len({key.where for key in keys})
        titles_and_gaps = 2 * (places - 1)
        legend = 2 + len(signs(ascii_only=False))
        assert lines.size.height == len(keys) + titles_and_gaps + legend


async def test_panels_without_room_scroll_by_keys(stage):
    async with stage.live(demo_source(), (100, 23)) as (app, pilot):
        right = app.screen.query_one("#right")
        assert right.max_scroll_y > 0
        while not right.has_focus:
            await pilot.press("tab")
        await pilot.press("down")
        await pilot.pause()
        while right.scroll_offset.y < right.max_scroll_y:
            await pilot.pause(0.03)
        await pilot.resize_terminal(100, 30)
        while right.can_focus:
            await pilot.pause(0.03)


async def test_no_word_of_the_folded_panels_is_cut_in_the_smallest_terminal(stage):
    async with stage.live(demo_source(), (60, 16)) as (app, _):
        lines = str(app.screen.query_one("#folded").render()).splitlines()
        assert [line.split()[0] for line in lines] == ["top-1", "busy", "step"]
        assert not any("…" in line for line in lines)


async def test_nothing_is_an_empty_box_before_the_numbers_were_looked_at(stage):
    async with stage.live(demo_source(), (60, 16)) as (app, pilot):
        await pilot.press("n")
        assert await seen(app, pilot, "waiting for the first numerics sample")
        assert "exponents" not in frame(app)


@pytest.mark.usefixtures("uncounted")
async def test_a_setting_has_its_whole_name_and_no_column_is_a_stub(picker, environ):
    async with picker(environ, (100, 30)) as (app, pilot, screen):
        await go_to(pilot, screen, "precision.fp32_layers")
        await until(app, pilot, "fp32_layers")
        await go_to(pilot, screen, "training.early_stopping_patience")
        await until(app, pilot, "early_stopping_patience")
        await go_to(pilot, screen, "precision.mode")
        await pilot.resize_terminal(60, 16)
        deadline = time.monotonic() + DEADLINE_S
        while not (rows := _rows(app, "mode")) or "…" in rows[0]:  # the list is rebuilt some time after
            assert time.monotonic() < deadline, frame(app)
            await pilot.pause(0.03)
        assert "auto" in rows[0].split()


def _rows(app, name):
    return [line for line in frame(app).splitlines() if f" {name} " in line]


async def test_the_keys_of_a_switch_are_there_in_the_smallest_terminal(stage):
    settings = {f"table.setting_{number}": ["one", "another one"] for number in range(9)}
    prediction = SwitchPrediction(settings, {"data.image_size": ["224", "288"]})
    async with stage.live(demo_source(), (60, 16)) as (app, pilot):
        app.push_screen(SwitchProfileDialog(2, "production", prediction, {}))
        await pilot.pause()
        text = frame(app)
        assert "enter switch (or its digit)" in text
        assert "stay" in text
        assert "224  (production has 288)" in text


@pytest.mark.slow
async def test_the_panels_are_whole_under_an_alert_where_there_is_room(stage):
    async with stage.live(demo_source(), (100, 30)) as (app, pilot):
        assert app.screen.has_class("-alert")
        step = app.screen.query_one("#step")
        assert step.content_size.height == 6
        await pilot.resize_terminal(100, 25)
        while step.content_size.height == 6:
            await pilot.pause(0.03)
        assert "bound by compute" in frame(app)


@pytest.mark.slow
async def test_without_colours_shapes_tell_the_focus_and_the_parts_of_a_step(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with live(MemorySource(demo()), (140, 45)) as (app, _):
        text = frame(app)
    assert "┏━ loss" in text
    assert "╭─ top-1" in text
    assert "forward    31.0 ms 36.8 % ━━━" in text  # each row has its name
    assert "backward   46.0 ms 54.6 % ━━━" in text


@pytest.mark.slow
async def test_words_in_the_accent_colour_are_legible_on_the_chosen_line_in_sixteen_colours(picker, environ):
    async with picker(environ) as (app, pilot, _):
        app.theme = "ansi"
        await pilot.pause()
        listed = app.screen.query_one("#values", OptionList)
        chosen = listed.get_visual_style("option-list--option-highlighted")
        # the background of the terminal is legible with all colours of words
        assert chosen.background == Color.parse("ansi_default")
        assert chosen.underline
