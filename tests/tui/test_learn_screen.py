"""The screen of the exercises, before one has something to show."""

import threading

from mptui.lab.learn.formats import LearnChoices, Lesson
from mptui.runs.planning.plan import Request
from mptui.tui.screens import learn
from tests.tui.frames import frame


async def test_charts_have_their_frames_before_their_curves(stage, monkeypatch):
    goes_on = threading.Event()

    def slow(*_):
        goes_on.wait(10)
        return Lesson({}, lambda *_: [], {})

    monkeypatch.setattr(learn, "run_exercise", slow)
    choices = LearnChoices(Request(None, {}, (), {}))
    async with stage.show(learn.LearnScreen(choices, "overflow"), (100, 35)) as (app, pilot):
        await pilot.pause()
        text = frame(app)
        goes_on.set()
        assert "╭─ loss ─" in text
        assert "╭─ loss scale, log2" in text
