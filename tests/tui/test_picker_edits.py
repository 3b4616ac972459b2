"""Edits in the picker: validated, kept with their profile, saved, and not lost."""

from pathlib import Path

import pytest
from textual.events import Key
from textual.widgets import Input

from mptui.config.keys import read_profile
from mptui.tui.selection import save_last
from tests.tui.cockpits import cockpit, until
from tests.tui.frames import frame
from tests.tui.pickers import edit, go_to, write

pytestmark = pytest.mark.usefixtures("uncounted")


async def test_an_edit_is_checked_while_it_is_typed_and_then_shown(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await go_to(pilot, screen, "training.lr")
        await pilot.press("e")
        await pilot.pause()
        await write(pilot, "-1")
        await until(app, pilot, "must be greater than 0")
        await pilot.press("enter")
        await pilot.pause()
        assert "must be greater than 0" in frame(app)
        assert screen.picked.edits == {}
        await write(pilot, "0.05")
        await pilot.press("enter")
        await until(app, pilot, "lr                      0.05         edited (0.1)")
    assert screen.picked.edits == {"training.lr": 0.05}


async def test_a_list_is_shown_and_edited_as_a_profile_has_it(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await go_to(pilot, screen, "precision.fp32_layers")
        await pilot.press("e")
        await pilot.pause()
        assert app.focused.value == "[]"
        await write(pilot, '["fc", "layer4.*"]')
        await pilot.press("enter")
        await until(app, pilot, '["fc", "lay… edited ([])')
    assert screen.picked.edits == {"precision.fp32_layers": ["fc", "layer4.*"]}


async def test_an_edit_that_can_not_be_had_is_refused_with_the_reason(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await edit(pilot, screen, "training.deterministic", "true")
        await until(app, pilot, "autotuning is not repeatable")
        await pilot.press("escape")
        await pilot.pause()
    assert screen.picked.edits == {}


async def test_saving_makes_a_profile_of_how_to_train_and_not_on_what(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        screen.query_one("#model", Input).value = "resnet18"
        await go_to(pilot, screen, "training.batch_size")
        await pilot.press("e")
        await write(pilot, "48")
        await pilot.press("enter", "w")
        await pilot.pause()
        await write(pilot, "../mine")
        await pilot.press("enter")
        await until(app, pilot, "is not a valid profile name")
        await write(pilot, "mine")
        await pilot.press("enter")
        await until(app, pilot, "mine")
    path = Path(environ["MPTUI_CONFIG_DIR"]) / "profiles" / "mine.toml"
    profile, faults = read_profile(path)
    assert faults == []
    assert profile.values["training.batch_size"] == 48
    assert profile.values["speed.compile"] == "max-autotune"
    assert not {"model.name", "data.name", "hardware.device"} & profile.values.keys()
    assert screen.picked.profile == "mine"
    assert screen.picked.edits == {}


async def test_a_value_is_edited_by_keys_typed_in_one_go(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await go_to(pilot, screen, "training.lr")
        for key in ("e", "ctrl+u", *"0.05", "enter"):
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(app, pilot, "lr                      0.05         edited (0.1)")
    assert screen.picked.edits == {"training.lr": 0.05}


async def test_edits_stay_when_another_profile_is_chosen(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await edit(pilot, screen, "training.lr", "0.05")
        await until(app, pilot, "╭─ fast · edited")
        await app.workers.wait_for_complete()  # what is learnt later draws the list again
        await pilot.press("2")
        await until(app, pilot, "╭─ stable · edited")
        assert "2 * stable" in frame(app)
        assert screen.picked.edits == {"training.lr": 0.05}
        await edit(pilot, screen, "training.lr", "0.07")
        await pilot.press("1")
        await until(app, pilot, "╭─ fast · edited")
        assert screen.picked.edits == {"training.lr": 0.07}


async def test_typed_epochs_stay_when_another_profile_is_chosen(picker, environ):
    save_last({"profile": "gone", "model": "", "data": "", "epochs": "9"}, environ)
    async with picker(environ) as (app, pilot, screen):
        assert screen.picked.epochs == ""
        screen.query_one("#epochs", Input).value = "3"
        await until(app, pilot, "epochs     3")
        await pilot.press("4")
        await until(app, pilot, "A first run, or debugging")
        await until(app, pilot, "epochs     3")
        assert screen.picked.epochs == screen.query_one("#epochs", Input).value == "3"
        screen.query_one("#epochs", Input).value = ""
        await until(app, pilot, "epochs     5")


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_edits_are_lost_only_after_a_question(environ, key):
    async with cockpit(environ=environ) as (app, pilot, _runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        screen = app.screen
        await pilot.press("1")
        await edit(pilot, screen, "training.lr", "0.05")
        await pilot.press("2", key)
        await until(app, pilot, "discard edits?")
        await until(app, pilot, "Unsaved edits (w: save): training.lr")
        await pilot.press("escape")
        await until(app, pilot, "enter start")
        assert app.screen is screen
        await pilot.press(key, "q")
        await pilot.pause()
        assert app.return_code == 0 if key == "q" else screen not in app.screen_stack


async def test_edits_that_a_run_has_are_not_lost(environ):
    from tests.tui.events import demo, finished

    async with cockpit(environ=environ, events=[*demo(), finished()]) as (app, pilot, _runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        picked = app.screen
        await edit(pilot, picked, "training.lr", "0.05")
        await pilot.press("enter")
        await until(app, pilot, "✓ completed")
        await pilot.press("escape")
        await until(app, pilot, " · edited")
        await pilot.press("escape")
        await pilot.pause()
        assert picked not in app.screen_stack


@pytest.mark.parametrize("name", ["fast", "Fast"])
async def test_no_profile_of_ones_own_has_the_name_of_a_built_in_one(picker, environ, name):
    async with picker(environ) as (app, pilot, _screen):
        await pilot.press("w")
        await pilot.pause()
        await write(pilot, name)
        await pilot.press("enter")
        await until(app, pilot, "is a built-in profile")
    assert not Path(environ["MPTUI_CONFIG_DIR"]).exists()
