"""Keys of the live screen: commands to the run, profiles, quitting, help."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from textual.events import Key

from mptui.config.resolve import resolve, to_toml
from mptui.events import Advice, Paused, PresetSwitched, Resumed
from mptui.runs.planning.plan import Request
from mptui.tui.keys import KEYS, Keymap
from mptui.tui.last import load_list, save_last
from mptui.tui.palette import PAGES
from mptui.tui.screens.live import LiveScreen
from tests.tui.cockpits import until
from tests.tui.events import START, demo_source, finished, left, step_event, switched
from tests.tui.frames import frame, live, put, seen


async def test_keys_reach_the_run(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        await pilot.press("c", "v", "2", "2", "space")
        await put(app, pilot, Paused(time=START + 5000, step=14_297))
        assert "■ paused" in frame(app)
        await pilot.press("space")
        await put(app, pilot, Resumed(time=START + 5010, step=14_297))
        await pilot.press("x", "x")
        await pilot.pause()
    assert source.sent == [
        ("checkpoint", None),
        ("validate", None),
        ("preset", "stable"),
        ("pause", None),
        ("resume", None),
        ("stop", None),
    ]


async def test_a_digit_without_a_preset_sends_nothing(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        await pilot.press("9")
        await pilot.pause()
        assert await seen(app, pilot, "no profile 9")
    assert source.sent == []


@pytest.fixture
def fast_run(tmp_path):
    """A run of the profile fast, in a directory."""
    flags = {"model.name": ("--model", "resnet18")}
    config = resolve("fast", task="classification", flags=flags, sets=(), environ={}).config
    (tmp_path / "run.toml").write_text(to_toml(config), encoding="utf-8")
    source = demo_source(profiles=("fast", "stable", "memory-limited", "debug"))
    source.run, source.request = tmp_path, Request(environ={})
    return source


@pytest.mark.parametrize("sizes", [[(120, 36)], pytest.param([(80, 24), (60, 16)], marks=pytest.mark.slow)])
async def test_what_a_preset_can_not_change_is_said_before_it_is_asked_for(stage, fast_run, sizes):
    async with stage.live(fast_run) as (app, pilot):
        for size in sizes:
            await pilot.resize_terminal(*size)
            await pilot.press("4")
            await until(app, pilot, "switch to debug?")
            text = " ".join(frame(app).split())
            assert "can't change during a run" in text
            assert "training.epochs 50 (debug has 5)" in text
            if size == (120, 36):
                last = fast_run.view.latest
                assert f"effective lr {last.lr:.3g} →" in text
                assert "effective batch 64 → 2" in text
                assert "within 30 steps" in text
                assert "training.batch_size" not in text
            assert fast_run.sent == []
            await pilot.press("escape")
            await pilot.pause()
            assert "switch to debug?" not in frame(app)
            assert fast_run.sent == []
        await pilot.press("4")
        await until(app, pilot, "switch to debug?")
        await pilot.press("2")
        await until(app, pilot, "switch to stable?")
        assert fast_run.sent == []
        await pilot.press("2")
        await pilot.pause()
    assert fast_run.sent == [("preset", "stable")]


async def test_no_switch_is_asked_for_by_one_key(stage, fast_run):
    async with stage.live(fast_run) as (app, pilot):
        await pilot.press("1")
        await until(app, pilot, "switch to fast?")
        assert "effective lr  0.1 →" in frame(app)
        assert fast_run.sent == []
        await pilot.press("1")
        await pilot.pause()
    assert fast_run.sent == [("preset", "fast")]


async def test_an_undo_says_what_it_leaves_and_asks(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        await pilot.press("u")
        await until(app, pilot, "undo the switch?")
        await pilot.press("escape")
        await put(app, pilot, switched(14_000))
        await put(app, pilot, step_event(14_103, START + 5010, random.Random(0)))
        await pilot.press("u")
        await until(app, pilot, "undo the switch?")
        text = " ".join(frame(app).split())
        assert "goes on from step 14,000, with stable" in text
        assert "kept at step 14,103" in text
        assert source.sent == []
        await pilot.press("u")
        await pilot.pause()
        assert source.sent == [("undo", None)]
        await put(app, pilot, left(14_103))
        await put(app, pilot, switched(14_000, undone=True))
        await pilot.press("u")
        await until(app, pilot, "undo the undo?")
        assert "from step 14,103 of the branch" in " ".join(frame(app).split())
        await pilot.press("enter")
        await pilot.pause()
    assert source.sent == [("undo", None)] * 2


async def test_remapped_presets_are_remapped_in_their_dialog_too(fast_run):
    async with live(fast_run, keys=Keymap({"live.profile": "f1,f2,f3,f4"})) as (app, pilot):
        await pilot.press("f4")
        await until(app, pilot, "switch to debug?")
        await pilot.press("f4")
        await pilot.pause()
    assert fast_run.sent == [("preset", "debug")]


async def test_leaving_a_live_run_asks(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
        text = frame(app)
        assert "save, stop and quit" in text
        assert "background" not in text
        await pilot.press("d", "escape")
        await pilot.pause()
        assert source.sent == []
        await pilot.press("q", "x")
        await pilot.pause()
        assert source.sent == [("stop", None)]
        assert not app.has_left
        await put(app, pilot, finished())
    assert app.return_value == "left"


@pytest.mark.parametrize("keys", [("q", "d"), ("d",)])
async def test_a_run_that_can_go_on_alone_can_be_left_to_itself(stage, keys):
    source = demo_source(can_detach=True)
    async with stage.live(source) as (app, pilot):
        await pilot.press(*keys)
        await pilot.pause()
    assert app.return_value == "detached"
    assert source.sent == []


async def test_a_run_that_ends_with_its_process_is_not_left_to_itself(stage):
    async with stage.live(demo_source()) as (app, pilot):
        await pilot.press("d")
        assert await seen(app, pilot, "can't detach under")
        assert not app.has_left


@pytest.mark.parametrize("key", ["q", "d"])
async def test_the_run_of_another_process_is_left_without_a_question(stage, key):
    source = demo_source(hosted=False)
    async with stage.live(source) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
    assert app.return_value == "left"
    assert source.sent == []


async def test_a_finished_run_is_left_at_once(stage):
    source = demo_source(finished())
    async with stage.live(source) as (app, pilot):
        assert "✓ completed" in frame(app)
        await pilot.press("space", "q")
        await pilot.pause()
    assert app.return_value == "left"
    assert source.sent == []


async def test_help_lists_the_keys_that_do_something_now(stage):
    source = demo_source()
    async with stage.live(source, (120, 80)) as (app, pilot):
        bound = {key for key in KEYS if key.where == "live" and key.when in {"always", "going", "alert"}}
        reached = {key for key in bound if key.id not in {"live.earlier", "live.later"}}  # a chart has them
        assert {key.id for key in reached} <= {key.id for key in await helped(app, pilot)}
        await put(app, pilot, finished())
        await pilot.press("l")  # the focus goes to the log
        now = {key.id for key in await helped(app, pilot)}
        assert {"live.log", "log.earlier", "app.help"} <= now
        assert not now & {"live.pause", "live.stop", "live.undo", "live.ranks", "chart.earlier"}


async def helped(app, pilot):
    """Return the keys that the help lists."""
    await pilot.press("question_mark")
    await pilot.pause()
    text = frame(app)
    await pilot.press("q")
    await pilot.pause()
    assert "everywhere" not in frame(app)
    return [key for key in KEYS if f"  {key.help}" in text]


async def test_the_palette_has_the_frequent_first_then_metrics_and_pages_by_name(
    stage, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        commands = list(app.get_system_commands(app.screen))
        assert [command.title for command in commands[:2]] == ["pause or continue", "next panel"]
        await pilot.press("colon")
        await until(app, pilot, "pause or continue")
        text = frame(app)
        assert text.index("pause or continue") < text.index("next panel") < text.index("save and stop")
        await pilot.press("escape")
        found = {command.title: command for command in commands}
        await pilot.press("l")
        found["metric top-5"].callback()
        await pilot.pause()
        assert app.focused.border_title.startswith("top-5")
        found["docs forks: forks: the same run in another precision"].callback()
        assert await seen(app, pilot, "docs/forks.md")
        assert app.clipboard == "docs/forks.md"


async def test_the_palette_begins_with_what_was_done_by_it_before(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def first(app):
        return [command.title for command in app.get_system_commands(app.screen)][:3]

    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        for words, shown in (("full log", "╭─ log"), ("smooth noisy", "╭─ log"), ("full log", "╭─ loss")):
            await pilot.press("colon", *words)
            await until(app, pilot, f"{words}")
            await pilot.press("down", "enter")
            await until(app, pilot, shown)
        used = ["full log, or back to the charts", "smooth noisy curves, or not"]
        assert first(app) == [*used, "pause or continue"]
    save_last({"charts": "2x2"})
    assert load_list("used") == ["live.log", "live.smoothing", "live.log"]


async def test_a_key_that_does_nothing_says_once_what_it_is_for(stage):
    async with stage.live(demo_source(), (120, 36)) as (app, pilot):
        app.screen.query_one("#log").focus()
        await pilot.press("w", "j")
        assert await seen(app, pilot, "w does nothing here; in the profiles: save as a profile")
        app.clear_notifications()
        await pilot.press("w", "w", "p")
        assert await seen(app, pilot, "p does nothing here")
        assert "w does nothing here" not in frame(app)
        assert "j does nothing here" not in frame(app)


def test_the_pages_of_the_palette_are_those_that_there_are():
    assert set(PAGES) == {path.stem for path in (Path(__file__).parents[2] / "docs").glob("*.md")}


async def test_remapped_keys_work_and_are_shown():
    source = demo_source()
    keys = Keymap({"live.pause": "p"}, ["keys.toml: live.x: unknown action"])
    async with live(source, keys=keys) as (app, pilot):
        assert "p pause" in frame(app)
        assert await seen(app, pilot, "unknown action")
        await pilot.press("space")
        assert source.sent == []
        await pilot.press("p")
    assert source.sent == [("pause", None)]


async def test_a_click_on_a_key_is_the_key(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        line = frame(app).splitlines()[-1]
        await pilot.click(offset=(line.index("c checkpoint") + 3, 35))
        await pilot.pause()
    assert source.sent == [("checkpoint", None)]


async def test_the_advice_shown_is_taken_by_a_key(stage):
    source = demo_source()
    async with stage.live(source, (120, 36)) as (app, pilot):
        await pilot.press("a")

        assert source.sent[-1] == ("set", "data.workers=12")
        assert "press a to apply data.workers=12" in frame(app)


@pytest.mark.parametrize(("key", "left"), [("q", True), ("x", False)])
async def test_a_question_closes_with_the_run_that_it_is_about(stage, key, left):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        screen = app.screen_stack[-2]
        source.waiting.append(finished())
        for _ in range(2):
            if screen.is_attached:  # its own timer may have been first
                screen.poll()
            await pilot.pause()
        assert (app.return_value == "left") == left
        assert app.screen is screen or left
    assert source.sent == []


@pytest.mark.parametrize("key", ["q", "x"])
async def test_a_run_that_has_ended_below_leaves_the_question_about_another_open(stage, key):
    source = demo_source()
    async with stage.live(demo_source(finished())) as (app, pilot):
        below = app.screen
        await app.push_screen(LiveScreen(source))
        await pilot.press(key)
        below.poll()
        await pilot.pause()
        await pilot.press("x")
        assert source.sent == [("stop", None)]
        assert not app.has_left


async def test_advice_without_a_setting_leaves_the_offer_of_the_key(stage):
    source = demo_source()
    async with stage.live(source, (120, 36)) as (app, pilot):
        await put(app, pilot, Advice(time=START, step=14_100, code="copy_bound", message="copies take long"))
        await pilot.press("a")
    assert source.sent == [("set", "data.workers=12")]


async def test_advice_that_was_taken_is_not_offered_again(stage):
    taken = PresetSwitched(
        time=START, step=14_297, profile="fast", previous="fast", changes={"data.workers": ["8", "12"]}
    )
    source = demo_source(taken)
    async with stage.live(source, (120, 36)) as (app, pilot):
        await pilot.press("a")
        assert await seen(app, pilot, "nothing is offered")
    assert source.sent == []


async def test_one_key_beside_the_checkpoint_ends_no_run(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        await pilot.press("x")
        await until(app, pilot, "stop the run?")
        await until(app, pilot, "x / enter  save and stop")
        assert source.sent == []
        await pilot.press("escape")
        await pilot.pause()
        assert "stop the run?" not in frame(app)
        await pilot.press("x")
        await until(app, pilot, "stop the run?")
        await pilot.press("enter")
        await pilot.pause()
    assert source.sent == [("stop", None)]


async def test_a_stop_key_pressed_twice_at_once_stops(stage):
    source = demo_source()
    async with stage.live(source) as (app, pilot):
        for _ in range(2):
            app.post_message(Key("x", "x"))
        while not source.sent:
            await pilot.pause(0.03)
        assert "stop the run?" not in frame(app)
    assert source.sent == [("stop", None)]


@pytest.mark.parametrize(("status", "offered"), [("stopped", True), ("completed", False)])
async def test_resume_is_offered_where_there_is_something_to_resume(stage, status, offered, tmp_path):
    source = demo_source(replace(finished(), status=status))
    source.run = tmp_path
    async with stage.live(source, (120, 36)) as (app, pilot):
        assert ("r resume" in frame(app)) == offered
        if not offered:
            await pilot.press("r")
            assert await seen(app, pilot, "the run is complete")
