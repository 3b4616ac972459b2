import json
import os
import time
from itertools import count
from pathlib import Path

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.events import Print

from mptui.events import to_record
from mptui.runs.remote.feed import AttachedRun
from mptui.tui.app import MptuiApp, TerminalApp
from mptui.tui.screens.page import Page
from mptui.tui.terminal.graphics import AsciiFilter, needs_ascii, to_ascii
from tests.tui.events import demo, finished
from tests.tui.frames import DEADLINE_S, frame, live


@pytest.mark.parametrize(
    ("environ", "ascii_only"),
    [
        ({"LANG": "C"}, True),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "POSIX"}, True),
        ({"LC_CTYPE": "C.utf8", "LANG": "C"}, False),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, True),
        ({"LANG": "C.UTF-8", "TERM": "vt220"}, True),
    ],
)
def test_the_locale_and_the_font_decide_about_ascii(environ, ascii_only):
    assert needs_ascii(environ) is ascii_only


def test_ascii_keeps_the_width():
    assert to_ascii("╭─ 模 ━─ é") == "+- ?? =- ?"


@pytest.mark.parametrize(
    ("environ", "drawn"),
    [
        ({"TERM": "linux", "LANG": "C.UTF-8"}, "┌─┐ = ° · > *"),
        ({"TERM": "linux", "LANG": "C"}, "+-+ =   | > *"),
        ({"TERM": "vt100", "LANG": "C.UTF-8"}, "+-+ =   | > *"),
    ],
)
def test_the_linux_console_keeps_the_signs_of_its_fonts(environ, drawn):
    (segment,) = AsciiFilter(environ).apply([Segment("╭─┓ ━ ° · ▸ ●")], Color.parse("black"))
    assert segment.text == drawn


def test_without_colours_the_output_has_those_of_the_terminal_alone(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    segments = [Segment("words", Style.parse("bold reverse #ff0000 on #00ff00"))]
    for each in MptuiApp(Page(), theme="dark").get_line_filters():
        segments = each.apply(segments, Color.parse("#123456")) if each.enabled else segments
    assert segments == [Segment("words", Style.parse("bold reverse default on default"))]


async def test_a_journal_is_played_back(tmp_path):
    journal = tmp_path / "events.jsonl"
    lines = [json.dumps(to_record(event)) for event in [*demo(), finished()]]
    journal.write_text("\n".join([*lines, "not json", '{"event": "step"', ""])[:-1], encoding="utf-8")
    source = AttachedRun(tmp_path).start()
    assert source.wait(60)
    async with live(source) as (app, pilot):
        while not source.finished:
            app.screen.poll()
        await pilot.pause()
        assert "✓ completed" in frame(app)
        assert "lowest 1.22" in frame(app)


async def test_a_notification_that_ends_as_it_is_shown_stops_nothing(monkeypatch):
    looks = count(time.time(), 0.01)  # what passes between two looks at the clock
    monkeypatch.setattr("textual.notifications.time", lambda: next(looks))
    app = MptuiApp(Page())
    async with app.run_test(notifications=True) as pilot:
        for last_look in range(12):
            ends = next(looks) + (last_look + 0.5) * 0.01
            app.notify("saved", timeout=ends - time.time())
            await pilot.pause()
        deadline = time.monotonic() + DEADLINE_S
        while app.screen.query("Toast"):
            assert time.monotonic() < deadline
            await pilot.pause(0.03)


async def test_a_log_without_room_does_not_end_the_screen():
    app = TerminalApp(Page())
    log = os.dup(2)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), 2)
    try:
        with pytest.raises(OSError, match="No space"):
            os.write(2, b"nothing")
        app.on_print(Print("a library's warning", stderr=True))
    finally:
        os.dup2(log, 2)
        os.close(log)
