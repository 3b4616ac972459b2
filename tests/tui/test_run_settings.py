"""The settings of a running run: listed, searched, changed by a command; greyed out where they can't be."""

import json
import re
from dataclasses import replace

import pytest
from textual.color import Color
from textual.events import Key

from mptui.config.resolve import resolve, to_toml
from mptui.events import CommandAnswered, PresetSwitched
from tests.tui.cockpits import until
from tests.tui.events import START, demo_source, finished
from tests.tui.frames import frame, put, seen
from tests.tui.pickers import edit, go_to, write


def save(folder, **flags):
    flags = {"model.name": ("", "resnet18"), **{key.replace("__", "."): ("", v) for key, v in flags.items()}}
    config = resolve("fast", task="classification", flags=flags, sets=(), environ={}).config
    (folder / "run.toml").write_text(to_toml(config), encoding="utf-8")


@pytest.fixture
def source(tmp_path):
    """A run of the profile fast, in a directory."""
    save(tmp_path)
    source = demo_source()
    source.run = tmp_path
    return source


async def opened(app, pilot):
    await pilot.press("e")
    await until(app, pilot, "settings of ")
    return app.screen


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_a_setting_is_changed_in_the_run(stage, source, tmp_path, size):
    async with stage.live(source, size) as (app, pilot):
        below = app.screen
        screen = await opened(app, pilot)
        await go_to(pilot, screen, "training.lr")
        assert "training.lr: Peak learning rate" in frame(app)
        await pilot.press("enter")
        await write(pilot, "-1")
        await until(app, pilot, "must be greater than 0")
        await write(pilot, "0.05")
        await pilot.press("enter")
        await pilot.pause()
        assert source.sent == [("set", "training.lr=0.05")]
        save(tmp_path, training__lr=0.05)
        source.waiting += [
            CommandAnswered(time=START, step=14_297, command="set", state="asked", detail="training.lr=0.05"),
            PresetSwitched(
                time=START,
                step=14_297,
                profile="fast",
                previous="fast",
                changes={"training.lr": ["0.1", "0.05"]},
            ),
        ]
        below.poll()
        screen.poll()
        await until(app, pilot, "changed at step 14,297: training.lr 0.1 → 0.05")
        await until(app, pilot, "0.05         (0.1)")
        await pilot.press("escape")
        await until(app, pilot, "╭─ loss")


async def test_a_setting_that_can_not_change_is_greyed_and_says_why(stage, source):
    async with stage.live(source, (80, 24)) as (app, pilot):
        screen = await opened(app, pilot)
        options = {option.id: option for option in screen.query_one("#values").options}
        assert "$text-disabled" in str(options["training.seed"].prompt.spans)
        assert "$text-disabled" not in str(options["training.lr"].prompt.spans)
        await go_to(pilot, screen, "training.seed")
        await until(app, pilot, "training.seed is fixed during a run: the order of its samples")
        await pilot.press("e")
        assert await seen(app, pilot, "╭─ settings of ")
        assert app.screen is screen
        await edit(pilot, screen, "speed.compile", "off")
    assert source.sent == [("set", "speed.compile=off")]


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.slow)])
async def test_what_can_not_change_has_less_contrast_than_what_can(stage, source, theme):
    async with stage.live(source, (80, 24)) as (app, pilot):
        app.theme = theme
        await opened(app, pilot)
        await pilot.pause()
        fixed, free = (_colour(app, name) for name in ("max_steps", "batch_size"))
        ground = app.screen.background_colors[1]
        assert abs(fixed.brightness - ground.brightness) < abs(free.brightness - ground.brightness)


def _colour(app, name):
    strips = app.screen._compositor.render_strips()
    (segment,) = (each for strip in strips for each in strip if each.text.strip().startswith(name))
    return Color.from_rich_color(segment.style.color)


async def test_an_impossible_combination_is_refused_before_it_is_sent(stage, source, tmp_path):
    save(tmp_path, training__deterministic=True, speed__compile="default")
    async with stage.live(source, (80, 24)) as (app, pilot):
        screen = await opened(app, pilot)
        await edit(pilot, screen, "speed.compile", "max-autotune")
        await until(app, pilot, "autotuning is not repeatable")
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is screen
    assert source.sent == []


async def test_keys_typed_in_one_go_search_and_change(stage, source):
    async with stage.live(source, (80, 24)) as (app, pilot):
        screen = await opened(app, pilot)
        typed = ("slash", *"label_smoothing", "enter", "e", "ctrl+u", *"0.1", "enter")
        for key in typed:
            app.post_message(Key(key, "/" if key == "slash" else key if len(key) == 1 else None))
        while not source.sent:
            await pilot.pause(0.03)
        assert app.screen is screen
        assert "/label_smoothing" in frame(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is screen
    assert source.sent == [("set", "training.label_smoothing=0.1")]


async def test_what_the_run_refuses_is_said(stage, source):
    async with stage.live(source, (80, 24)) as (app, pilot):
        below = app.screen
        screen = await opened(app, pilot)
        answer = CommandAnswered(
            time=START, command="set", state="refused", detail="this screen is read-only"
        )
        source.waiting.append(answer)
        below.poll()
        screen.poll()
        await until(app, pilot, "set refused (this screen is read-only)")


async def test_a_run_without_settings_says_so(stage):
    async with stage.live(demo_source()) as (app, pilot):
        await pilot.press("e")
        assert await seen(app, pilot, "the run has no settings yet")


async def test_the_settings_of_an_ended_run_are_found_and_not_changed(stage, source):
    async with stage.live(source) as (app, pilot):
        await put(app, pilot, replace(finished(), status="stopped"))
        screen = await opened(app, pilot)
        await go_to(pilot, screen, "training.lr")
        assert "training.lr: Peak learning rate" in frame(app)
        await pilot.press("enter")
        assert await seen(app, pilot, "the run has ended")
        assert app.screen is screen
    assert source.sent == []


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (120, 35)])
async def test_who_chose_a_setting_stands_beside_it_until_it_is_changed(stage, source, tmp_path, size):
    few = {"value": 8, "source": "chosen: 160 training images"}
    rate = {"value": 0.5, "source": "--lr"}
    mode = {"used": "bf16", "reason": "native here, without loss scaling"}
    kept = {"version": 1, "precision": mode, "settings": {"training.batch_size": few, "training.lr": rate}}
    (tmp_path / "choices.json").write_text(json.dumps(kept), encoding="utf-8")
    save(tmp_path, training__batch_size=8, training__lr=0.25)
    async with stage.live(source, size) as (app, pilot):
        screen = await opened(app, pilot)
        await go_to(pilot, screen, "precision.mode")
        assert await seen(app, pilot, "precision.mode (chosen: bf16, native here, without loss scaling): ")
        if size == (80, 24):
            assert re.search(r" mode +auto +chosen: bf16 ", frame(app))
        await go_to(pilot, screen, "training.batch_size")
        text = frame(app)
    (line,) = (each for each in text.splitlines() if "batch_size  " in each and " 8 " in each)
    assert ("chosen: 160 training images" in line) == (size[0] > 60)
    assert "chosen: 160 training images" in " ".join(text.replace("│", " ").split())
    assert "--lr" not in text
