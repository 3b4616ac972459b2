"""Edits in the picker: validated, kept with their profile, saved, and not lost."""

from pathlib import Path

import pytest
from textual.events import Key
from textual.widgets import Input

from mptui.config.keys import read_profile
from mptui.tui.last import save_last
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
        await until(app, pilot, "training.lr             0.05         edited (0.1)")
        assert screen.picked.edits == {"training.lr": 0.05}

        for key in ("e", "ctrl+u", *"0.07", "enter"):  # typed in one go
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(app, pilot, "training.lr             0.07         edited (0.1)")
        assert screen.picked.edits == {"training.lr": 0.07}

        await go_to(pilot, screen, "precision.fp32_layers")
        await pilot.press("e")
        await pilot.pause()
        assert app.focused.value == "[]"  # as a profile has it
        await write(pilot, '["fc", "layer4.*"]')
        await pilot.press("enter")
        await until(app, pilot, '["fc", "lay… edited ([])')
        edits = {"training.lr": 0.07, "precision.fp32_layers": ["fc", "layer4.*"]}
        assert screen.picked.edits == edits

        await edit(pilot, screen, "training.deterministic", "true")
        await until(app, pilot, "autotuning is not repeatable")
        await pilot.press("escape")
        await pilot.pause()
    assert screen.picked.edits == edits


async def test_saving_makes_a_profile_of_how_to_train_and_not_on_what(picker, environ):
    path = Path(environ["MPTUI_CONFIG_DIR"]) / "profiles" / "mine.toml"
    async with picker(environ) as (app, pilot, screen):
        screen.query_one("#model", Input).value = "resnet18"
        await go_to(pilot, screen, "training.batch_size")
        await pilot.press("e")
        await write(pilot, "48")
        await pilot.press("enter", "w")
        await pilot.pause()
        for name, fault in (
            ("../mine", "is not a valid profile name"),
            ("fast", "is a built-in profile"),
            ("Fast", "is a built-in profile"),
        ):
            await write(pilot, name)
            await pilot.press("enter")
            await until(app, pilot, fault)
            assert not path.parent.parent.exists()
            await write(pilot, "")
        await write(pilot, "mine")
        await pilot.press("enter")
        await until(app, pilot, "mine")
    profile, faults = read_profile(path)
    assert faults == []
    assert profile.values["training.batch_size"] == 48
    assert profile.values["speed.compile"] == "max-autotune"
    assert not {"model.name", "data.name", "hardware.device"} & profile.values.keys()
    assert screen.picked.profile == "mine"
    assert screen.picked.edits == {}


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


@pytest.mark.parametrize("key", ["q", pytest.param("escape", marks=pytest.mark.slow)])
async def test_edits_are_lost_only_after_a_question(environ, key):
    async with cockpit(environ=environ) as (app, pilot, _runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        screen = app.screen
        await pilot.press("1")
        await edit(pilot, screen, "training.lr", "0.05")
        await pilot.press("2")
        for asking in ("escape", "q"):
            await pilot.press(asking)
            await until(app, pilot, "discard edits?")
            await until(app, pilot, "Unsaved edits (w: save): training.lr")
            await pilot.press("escape")
            await until(app, pilot, "enter start")
            assert app.screen is screen
        await pilot.press(key, "q")
        await pilot.pause()
        assert app.return_code == 0 if key == "q" else screen not in app.screen_stack


async def test_what_was_typed_is_there_again_after_going_back(environ):
    async with cockpit(environ=environ) as (app, pilot, _runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        await pilot.press("tab", *"cifar10", "escape", "4", "escape", "enter")
        await until(app, pilot, "enter start")
        assert app.screen.query_one("#data", Input).value == "cifar10"
        assert app.screen.picked.profile == "debug"


async def test_a_wrong_word_is_told_with_its_field_and_empties_nothing(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        listed = [option.id for option in screen.query_one("#values").options]
        await pilot.press("tab", "tab", "tab", *"many")
        await until(app, pilot, "✗ epochs: must be a whole number")
        assert "╭─ ✗ epochs" in frame(app)
        assert "enter start  tab next  escape leave it" in frame(app)
        assert [option.id for option in screen.query_one("#values").options] == listed
        await pilot.press("enter")
        await until(app, pilot, "can't be started")
        assert screen.query_one("#epochs").has_focus
        await pilot.click("KeyBar", offset=(frame(app).splitlines()[-1].index("leave it"), 0))
        assert screen.query_one("#profiles").has_focus
