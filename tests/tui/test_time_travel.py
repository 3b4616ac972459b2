"""The timeline of the live screen, and the way back in time."""

import json
import random
import re
from dataclasses import replace

import pytest
from textual.events import MouseScrollDown, MouseScrollUp

from mptui.events import CheckpointSaved, Paused, Resumed, to_record
from mptui.runs.store.journal import NAME
from mptui.tui.widgets.ribbon import FEWER_LANES, LANES, Ribbon, signs
from tests.tui.events import (
    START,
    MemorySource,
    beginning,
    demo,
    demo_source,
    finished,
    run_started,
    step_event,
)
from tests.tui.frames import frame, put, seen

ENDED = replace(finished(), time=demo()[-1].time + 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with its journal."""
    folder = tmp_path_factory.mktemp("run")
    lines = [json.dumps(to_record(event), separators=(",", ":")) + "\n" for event in (*demo(), ENDED)]
    (folder / NAME).write_text("".join(lines))
    return folder


@pytest.fixture
def source(run):
    """The run, read to its end."""
    made = demo_source(ENDED)
    made.run = run
    return made


LANES_BY_SIZE = [((80, 24), 1), ((120, 35), FEWER_LANES), ((140, 45), LANES)]
MORE_SIZES = [((60, 16), 0), ((100, 24), 0), ((100, 30), 1), *LANES_BY_SIZE]


@pytest.mark.parametrize("lanes", [LANES_BY_SIZE, pytest.param(MORE_SIZES, marks=pytest.mark.slow)])
async def test_the_timeline_has_the_lanes_that_there_is_room_for(stage, source, lanes):
    async with stage.live(source, (60, 16)) as (app, pilot):
        for size, height in lanes:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert app.screen.query_one(Ribbon).size.height == height
            lines = frame(app).splitlines()
            if height:
                assert "━━━" in lines[1]
                assert "▼" in lines[height]
            if height == FEWER_LANES:
                assert [line.split()[0] for line in lines[1:4]] == ["state", "precision", "events"]
    assert [line.split()[0] for line in lines[1:5]] == ["state", "precision", "scale", "busy"]
    assert "fp16" in lines[2]
    assert "x" in lines[3]
    assert "█" in lines[4]


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_keys_lead_back_in_time_and_escape_to_now(stage, source, size):
    async with stage.live(source, size) as (app, pilot):
        await pilot.press("pageup", "pageup")
        assert await seen(app, pilot, "ago, step 11,")
        await app.workers.wait_for_complete()
        await pilot.pause()
        text = frame(app)
        assert "epoch 8 " in text
        assert "epoch 11 " not in text.replace("in epoch 11 ", "")  # the best one
        assert "advice:" not in text
        assert "bound by compute" in text
        assert text.count("step 11,") >= 2  # the charts, too
        assert re.search("fast .*● training   ◂ .* ago, step 11,[0-9]*, fp16; Esc: now", text)
        await pilot.press("n")
        await pilot.pause()
        first = frame(app).splitlines()[0]
        assert "fast" in first
        assert "● training" in first
        await pilot.press("n")
        await pilot.press("escape")
        await pilot.pause()
        assert "ago, step" not in frame(app)
        assert "advice:" in frame(app)
        await pilot.press("home")
        assert await seen(app, pilot, "ago, step 0, fp16")
        assert "● scanning" in frame(app).splitlines()[0]
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "images/s" not in frame(app)
        await pilot.press("end")
        await pilot.pause()
        assert "ago, step" not in frame(app)


async def test_columns_of_the_timeline_are_reached_by_arrows_and_the_mouse(stage, source):
    async with stage.live(source, (140, 45)) as (app, pilot):
        app.screen.set_focus(None)
        await pilot.press("left")
        assert await seen(app, pilot, "ago, step 14,")
        first = app.screen._moment
        await pilot.press("left", "right")
        assert app.screen._moment == first
        await pilot.press("right", "right")
        assert "ago, step" not in frame(app)
        await pilot.click(Ribbon, offset=(60, 1))
        assert await seen(app, pilot, "ago, step")
        moment = app.screen._moment
        assert moment is not None
        assert 4000 < moment.step < 10_000
        ribbon = app.screen.query_one(Ribbon)
        places = 60, 1, 0, 1, 0, False, False, False
        for turned, steps in ((MouseScrollUp, -1), (MouseScrollDown, 0)):
            ribbon.post_message(turned(ribbon, *places))
            await pilot.pause()
            assert (app.screen._moment.step < moment.step) == (steps < 0)
        assert app.screen._moment == moment
        await pilot.press("n")
        await pilot.pause()
        await pilot.press("escape")
        await pilot.pause()
        assert "ago, step" in frame(app)


async def test_a_run_that_goes_on_leaves_the_chosen_moment(stage, tmp_path, chance):
    source = demo_source()
    async with stage.live(source, (140, 45)) as (app, pilot):
        await pilot.press("pageup")
        moment = app.screen._moment
        view = app.screen.view
        for _ in range(4):
            await put(app, pilot, step_event(view.step + 12, view.time + 60, chance))
        assert app.screen._moment == moment
        assert f"step {moment.step:,}" in frame(app)
        await pilot.press("escape")
        await pilot.pause()
        assert f"step  {view.step:,}" in frame(app)


async def test_before_the_first_step_there_is_a_timeline_and_nothing_to_go_back_to(stage):
    async with stage.live(MemorySource(beginning()[:1]), (140, 45)) as (app, pilot):
        await pilot.press("left", "home", "pageup", "end", "pagedown")
        await pilot.pause()
        assert "mptui" in frame(app)


async def test_each_state_has_a_sign_of_its_own_without_colours(stage):
    paused = Paused(time=demo()[-1].time + 1, step=14_297)
    source = demo_source(paused, Resumed(time=paused.time + 600, step=14_297))
    async with stage.live(source, (140, 45)) as (app, pilot):
        assert {"░", "▒", "━", "║"} <= set(_line_of(app, "state"))
        await pilot.resize_terminal(140, 90)
        await pilot.press("question_mark")
        assert await seen(app, pilot, "║  paused")
        assert all(words in frame(app) for _, words in signs(ascii_only=False))


async def test_the_lane_of_the_loss_scale_says_where_none_is_needed(stage, chance):
    started = run_started(precision="bf16")
    steps = [step_event(12 * n, START + 60 * n, chance, loss_scale=None) for n in range(1, 9)]
    async with stage.live(MemorySource([started, *steps]), (140, 45)) as (app, _):
        assert _line_of(app, "scale").split() == ["scale", "not", "needed", "in", "bf16"]


async def test_in_ascii_each_state_has_a_letter_which_is_explained(stage):
    async with stage.live(demo_source(), (140, 90), ascii_only=True) as (app, pilot):
        line = _line_of(app, "state")
        assert line.isascii()
        assert {"-", "#", "="} <= set(line)
        await pilot.press("question_mark")
        await pilot.pause()
        for words in ("=  training", "v  validating", "#  compiling", "w  waiting", "p  paused"):
            assert words in frame(app)


async def test_of_the_saves_only_those_that_were_asked_for_are_events(stage):
    """A run of eleven epochs has saved at the end of each; all have the best validation so far."""
    last = demo()[-1]
    asked = CheckpointSaved(
        time=last.time + 60, step=last.step, path="p", reason="asked", seconds=0.1, size_bytes=1
    )
    async with stage.live(demo_source(), (140, 45)) as (app, pilot):
        events = _line_of(app, "events").removeprefix(" events")
        assert "c" not in events
        assert events.count("●") == 1
        await put(app, pilot, asked, step_event(last.step + 12, last.time + 200, random.Random(0)))
        assert "c" in _line_of(app, "events").removeprefix(" events")


def _line_of(app, label):
    return next(line for line in frame(app).splitlines() if line.startswith(f" {label} "))
