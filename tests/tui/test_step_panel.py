"""Lines of panels: the parts of a step's time, and the precision."""

import random
from dataclasses import replace

import pytest

from mptui.events import Step
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.panels import precision_line, precision_words, step_line
from tests.tui.events import START, run_started, step_event

PARTS = ("data", "copy", "forward", "backward", "optimizer", "logging", "saving", "other")


def test_the_time_beside_the_parts_is_theirs():
    view = RunView()
    view.handle(
        Step(
            step=1,
            epoch=1,
            epoch_step=1,
            steps=1,
            samples_seen=8,
            loss=1.0,
            loss_min=1.0,
            loss_max=1.0,
            lr=0.1,
            step_time_s=0.701,
            split=dict.fromkeys(PARTS, 0.05),
        )
    )
    assert "400" in step_line(view)[0].plain


def test_time_steps_and_images_of_a_second_are_of_the_same_steps():
    """The last interval was twice as fast as the steps that the parts are of: 0.4 s for 8 images."""
    step = step_event(1, START, random.Random(0), step_time_s=0.2, samples_per_second=40.0)
    view = RunView()
    view.handle(replace(step, split=dict.fromkeys(PARTS, 0.05)))
    words = [part.plain for part in step_line(view)]
    assert words[0].split() == ["step", "400.0", "ms"]
    assert words[1].split() == ["20", "images/s"]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_before_the_precision_is_decided_it_is_unknown(ascii_only):
    view = RunView()
    assert precision_words(view, ascii_only).plain == precision_line(view, ascii_only)[0].plain == "mp: –"
    view.handle(run_started())
    assert precision_words(view, ascii_only).plain.endswith("fp16")
