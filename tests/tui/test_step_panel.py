"""Lines of panels: the parts of a step's time, and the precision."""

import random
from dataclasses import replace

import pytest

from mptui.events import Advice
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.basics import precision_words
from mptui.tui.widgets.panels import step_line
from tests.made.events import step_of
from tests.tui.events import START, demo, demo_source, run_started, step_event
from tests.tui.frames import put

PARTS = ("data", "copy", "forward", "backward", "optimizer", "logging", "saving", "other")


def test_the_time_beside_the_parts_is_theirs():
    view = RunView()
    view.handle(step_of(step_time_s=0.701, split=dict.fromkeys(PARTS, 0.05)))
    assert "400" in step_line(view)[0].plain


def test_time_steps_and_images_of_a_second_are_of_the_same_steps():
    """The last interval was twice as fast as the steps that the parts are of: 0.4 s for 8 images."""
    step = step_event(1, START, random.Random(0), step_time_s=0.2, samples_per_second=40.0)
    view = RunView()
    view.handle(replace(step, split=dict.fromkeys(PARTS, 0.05)))
    words = [part.plain for part in step_line(view)]
    assert words[0].split() == ["step", "400.0", "ms"]
    assert words[1].split() == ["20", "images/s"]


async def test_what_a_step_waits_for_comes_first_with_what_is_advised(stage):
    """No gain is promised: the share and the rate are measured, the setting is the advice's."""
    last = demo()[-1]
    split = {"data": 0.05, "forward": 0.03, "backward": 0.04, "optimizer": 0.005}
    waits = step_event(
        last.step + 12,
        last.time + 60,
        random.Random(0),
        split=split,
        bound_by="data",
        ceilings={"steps": 1210.0},
    )
    advice = Advice(
        time=last.time + 61, step=last.step, code="data_bound", message="m", setting="data.workers=6"
    )
    async with stage.live(demo_source(), (140, 45)) as (app, pilot):
        await put(app, pilot, waits, advice)
        drawn = app.screen.query_one("#step").render()
        tones = [{str(span.style) for span in line.spans} for line in drawn.split("\n")]
        assert ["$device-curve" in each for each in tones] == [False, True, True, True, False, False]
        assert ["$text-warning" in each for each in tones] == [True, False, False, False, True, False]
        verdict, *rows = str(drawn).splitlines()
        assert verdict.startswith("waiting for data 40.0 %: try data.workers=6")
        assert [row.split()[:5] for row in rows] == [
            ["forward", "30.0", "ms", "24.0", "%"],
            ["backward", "40.0", "ms", "32.0", "%"],
            ["optimizer", "5.0", "ms", "4.0", "%"],
            ["data", "50.0", "ms", "40.0", "%"],
            ["rest", "0.0", "ms", "0.0", "%"],
        ]
        assert len(rows[3].rstrip("─")) > len(rows[1].rstrip("─")) > len(rows[2].rstrip("─"))


@pytest.mark.parametrize("ascii_only", [False, True])
def test_before_the_precision_is_decided_it_is_unknown(ascii_only):
    view = RunView()
    assert precision_words(view.precision, ascii_only).plain == "mp: –"
    view.handle(run_started())
    assert precision_words(view.precision, ascii_only).plain.endswith("fp16")
