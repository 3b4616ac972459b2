"""What has to be whole in a terminal of 80x24: nothing is cut off, and no line of a dialog is broken."""

import pytest

from tests.tui.events import MemorySource, demo
from tests.tui.frames import frame, live, seen


async def test_all_panels_have_room():
    async with live(MemorySource(demo()), (80, 24)) as (app, pilot):
        await pilot.press("tab", "tab")
        await pilot.pause()
        text = frame(app)
        for words in ("mixed precision", "health", "cuda:0", "where a step goes", "bound by compute"):
            assert words in text
        assert app.screen.query_one("#right").max_scroll_y == 0


@pytest.mark.parametrize(
    ("key", "words"),
    [("q", "keep training in the background"), ("question_mark", "stop the run, and save it first")],
)
async def test_each_key_of_a_dialog_is_told_in_one_line(key, words):
    async with live(MemorySource(demo(), can_detach=True), (80, 24)) as (app, pilot):
        await pilot.press(key)
        assert await seen(app, pilot, words)
