"""The line of the live screen for what needs a person."""

import re
import time
from dataclasses import replace

import pytest
from textual.drivers.headless_driver import HeadlessDriver

from mptui.events import (
    Advice,
    Alert,
    DeviceSample,
    PresetSwitched,
    RunFinished,
    Validated,
    Warned,
    from_record,
    to_record,
)
from mptui.tui.keys import Keymap
from mptui.tui.screens.live import LiveScreen
from mptui.tui.terminal.process import fault_of_choice, sequences
from mptui.tui.widgets.header import AlertBar
from tests.tui.events import (
    START,
    MemorySource,
    demo,
    demo_source,
    finished,
    rank_row,
    ranks_sampled,
    run_started,
)
from tests.tui.frames import frame, live, put

LATER = START + 9000
DIVERGING = Alert(time=LATER, step=14_300, code="diverging", message="the run is diverging")
GENTLER = Advice(time=LATER, step=14_300, code="diverging", message="use less", setting="training.lr=0.01")
FULL = Alert(time=LATER + 1, step=14_301, code="disk", message="the disk is nearly full")
LOST = Warned(time=LATER + 2, step=14_302, code="rank_lost", message="rank 3 was killed")


def line(app) -> str:
    """Return the line of the alert; "" without one."""
    bar = app.screen.query_one(AlertBar)
    return frame(app).splitlines()[bar.region.y].strip() if bar.region.area else ""


@pytest.mark.parametrize(
    "size", [(80, 24), *(pytest.param(size, marks=pytest.mark.slow) for size in [(60, 16), (140, 45)])]
)
async def test_alerts_are_answered_one_after_another(stage, size):
    source = demo_source()
    async with stage.live(source, size) as (app, pilot):
        assert line(app).startswith("▲ waiting for data")
        assert re.search(r" a (data\.)?workers=12  h hide$", line(app))
        assert "…" not in line(app)
        await put(app, pilot, FULL, DIVERGING, GENTLER)
        assert line(app).startswith("▲ 1 of 3  the run is diverging")
        assert "lr=0.01  h hide" in line(app)
        await pilot.press("a")
        await pilot.pause()
        assert line(app).startswith("▲ 1 of 2  the disk")
        await pilot.press("h")
        await pilot.pause()
        assert line(app).startswith("▲ waiting for data")
        await pilot.press("h")
        await pilot.pause()
        assert line(app) == ""
        assert source.sent == [("set", "training.lr=0.01")]


@pytest.mark.parametrize("size", [(80, 24), (60, 16)])
async def test_what_to_do_is_not_cut_where_no_key_does_it(stage, size):
    words = "the validation guesses: its loss is that of equal chances for 10 classes; look at the labels"
    async with stage.live(MemorySource(), size) as (app, pilot):
        await put(app, pilot, replace(DIVERGING, code="guessing", message=words))
        bar = app.screen.query_one(AlertBar).region
        lines = [text.strip() for text in frame(app).splitlines()[bar.y : bar.bottom]]
        assert " ".join(lines).split() == ["▲", *words.split(), "h", "hide"]
        assert lines[-1].endswith("h hide")
        await pilot.press("h")
        await pilot.pause()
        assert line(app) == ""


async def test_an_answered_alert_stays_answered_where_the_run_is_opened_again(stage):
    events = [replace(event, time=event.time + 0.00061) for event in [*demo(), FULL]]
    async with stage.live(MemorySource(events)) as (app, pilot):
        await pilot.press("h")
        await pilot.pause()
        journal = [from_record(to_record(event), type(event)) for event in events]
        await app.push_screen(LiveScreen(MemorySource(journal, hosted=False)))
        await pilot.pause()
        assert line(app).startswith("▲ waiting for data")
        await put(app, pilot, replace(FULL, time=LATER + 60, over=True))
        await put(app, pilot, replace(FULL, time=LATER + 90))
        assert line(app).startswith("▲ 1 of 2  the disk")


async def test_a_condition_that_has_ended_takes_its_alert_away(stage):
    async with stage.live(MemorySource()) as (app, pilot):
        for end in (
            replace(DIVERGING, over=True),
            finished(),
            run_started(time=LATER + 5, resumed_from_step=14_000),
        ):
            app.screen.follow(MemorySource([DIVERGING, GENTLER]))
            await pilot.pause()
            assert "the run is diverging" in line(app)
            await put(app, pilot, end)
            assert line(app) == ""


async def test_a_lost_rank_is_told_after_all_have_started_again_and_its_offer_shows_the_ranks(stage):
    ranks = ranks_sampled([rank_row(0), rank_row(1)])
    started = run_started(time=LATER + 5, ranks=2, resumed_from_step=14_000)
    async with stage.live(MemorySource([LOST, started, ranks])) as (app, pilot):
        assert line(app).startswith("▲ rank 3 was killed")
        assert "a show the ranks" in line(app)
        await pilot.press("a")
        await pilot.pause()
        assert app.screen.where == "ranks"


def sample(after_s, *reasons) -> DeviceSample:
    return DeviceSample(time=LATER + after_s, step=14_300, name="GPU", throttle=list(reasons))


async def test_heat_that_lasts_is_an_alert_until_it_is_gone_and_a_power_limit_is_none(stage):
    async with stage.live(MemorySource([sample(t, "power limit") for t in range(30)])) as (app, pilot):
        assert line(app) == ""
        await put(app, pilot, sample(30, "heat"), sample(31), sample(45))
        assert line(app) == ""
        await put(app, pilot, sample(50, "heat"), sample(60, "heat", "power limit"))
        assert "clocks of the device are reduced (heat)" in line(app)
        await pilot.press("a")
        await put(app, pilot, sample(65))
        assert "clocks of the device" in line(app)
        await put(app, pilot, sample(71))
        assert line(app) == ""


async def test_a_rank_that_is_throttled_is_an_alert_though_the_first_is_not(stage):
    def hot(time):
        return ranks_sampled([rank_row(0), rank_row(1, throttle=["heat"])], time=time)

    async with stage.live(MemorySource([hot(LATER), sample(5), hot(LATER + 11)])) as (app, _):
        assert "reduced (heat)" in line(app)


async def test_what_was_done_about_it_otherwise_is_offered_no_more(stage):
    plateau = Advice(time=LATER, code="plateau", message="no better", setting="training.lr=0.01")
    best = Validated(time=LATER + 1, epoch=2, loss=1.0, metrics={}, seconds=1.0, best=True)
    changes = {"training.lr": ["0.1", "0.05"]}
    switch = PresetSwitched(time=LATER + 2, profile="fast", previous="fast", changes=changes)
    async with stage.live(MemorySource([plateau])) as (app, pilot):
        assert "no better" in line(app)
        await put(app, pilot, best)
        assert line(app) == ""
        await put(app, pilot, plateau, DIVERGING, GENTLER, switch)
        assert line(app).startswith("▲ the run is diverging")
        assert "training.lr" not in line(app)


async def test_a_run_that_failed_says_so_and_markup_in_its_message_is_text(stage):
    ended = RunFinished(time=LATER, step=9, status="diverged", exit_code=4, message="[b]no[/x] \x1b[2J\nmore")
    async with stage.live(demo_source(ended)) as (app, _):
        assert line(app).startswith(r"▲ diverged: [b]no[/x] \x1b[2J")
        assert "more" not in line(app)


async def test_no_row_is_taken_without_an_alert(stage):
    async with stage.live(MemorySource([run_started()])) as (app, pilot):
        assert not app.screen.query_one(AlertBar).region.area
        await pilot.press("a", "h")
        assert not app.screen.query_one(AlertBar).region.area


async def test_the_users_own_keys_are_named_and_work():
    keys = Keymap({"live.advice": "z", "live.hide": "ctrl+g"})
    async with live(demo_source(), keys=keys) as (app, pilot):
        assert line(app).endswith("z data.workers=12  ctrl+g hide")
        await pilot.press("ctrl+g")
        await pilot.pause()
        assert line(app) == ""


# -- calling


@pytest.fixture
def sent(monkeypatch):
    """What is written to the terminal, beside its frames."""
    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, data: written.append(data))
    return written


async def test_the_person_is_called_for_what_is_new_and_for_the_end(stage, monkeypatch, sent):
    monkeypatch.setenv("MPTUI_NOTIFY", "osc9")
    async with stage.live(demo_source(DIVERGING)) as (app, pilot):
        assert not any("mptui:" in each for each in sent)
        now = time.time() + 60
        await put(app, pilot, replace(FULL, time=now, message="full\x1b]0;evil\a"))
        name = run_started().run
        assert f"\x1b]9;mptui: {name}: full\\x1b]0;evil\\x07\a" in sent
        await put(app, pilot, replace(finished(), time=now + 1))
        assert f"\x1b]9;mptui: {name}: completed\a" in sent
        assert sum("mptui:" in each for each in sent) == 2


async def test_nobody_is_called_who_has_not_asked(stage, sent):
    async with stage.live(demo_source()) as (app, pilot):
        await put(app, pilot, replace(FULL, time=time.time() + 60))
        assert not any(each == "\a" or "nearly full" in each for each in sent)


@pytest.mark.parametrize(
    ("environ", "called"),
    [
        ({}, ""),
        ({"MPTUI_NOTIFY": ""}, ""),
        ({"MPTUI_NOTIFY": "bell"}, "\a"),
        ({"MPTUI_NOTIFY": "osc777, bell"}, "\x1b]777;notify;mptui;a, b\a\a"),
        ({"MPTUI_NOTIFY": "bell,osc9", "TMUX": "x"}, "\a\x1bPtmux;\x1b\x1b]9;mptui: a; b\a\x1b\\"),
    ],
)
def test_what_is_sent(environ, called):
    assert sequences("a; b", environ) == called


@pytest.mark.parametrize("way", ["bell", "osc9", "osc777"])
def test_no_text_ends_its_sequence(way):
    plain = sequences("x", {"MPTUI_NOTIFY": way})
    hostile = sequences("x\a\x1b\\\x9c\x1b]52;c;eA==\a\n", {"MPTUI_NOTIFY": way})
    assert sum(not c.isprintable() for c in hostile) == sum(not c.isprintable() for c in plain)


def test_a_way_that_is_unknown_is_told():
    assert fault_of_choice({"MPTUI_NOTIFY": "bell,osc9"}) is None
    assert fault_of_choice({}) is None
    assert "osc777" in str(fault_of_choice({"MPTUI_NOTIFY": "bell,osc77"}))
