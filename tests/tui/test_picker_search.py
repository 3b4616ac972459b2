"""The settings of the picker: searched, only changed ones, and explained in place."""

import pytest
from textual.events import Key

from mptui.config.keys import SETTINGS
from mptui.tui.widgets import settings
from tests.tui.cockpits import until
from tests.tui.frames import frame
from tests.tui.pickers import edit, go_to

pytestmark = pytest.mark.usefixtures("uncounted")


def listed(screen):
    """Return the keys of the settings that are listed, without the headings."""
    return [option.id for option in screen.query_one("#values").options if not option.id.endswith(".")]


@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_settings_are_searched_by_name_and_by_meaning(picker, environ, at_once):
    async with picker(environ) as (app, pilot, screen):
        usual = listed(screen)
        assert usual[:2] == ["training.batch_size", "training.epochs"]
        assert {"training.lr", "precision.mode", "speed.compile"} <= set(usual)  # the last is the profile's
        assert len(usual) < 20
        await pilot.press("a")
        everything = listed(screen)
        assert set(usual) < set(everything)
        if at_once:
            for key in ("slash", *"warm", "enter"):
                app.post_message(Key(key, "/" if key == "slash" else key if len(key) == 1 else None))
        else:
            await pilot.press("slash", *"warm", "enter")
        await until(app, pilot, f"/warm · 3 of {len(everything)}")
        found = listed(screen)
        assert found == [key for key in everything if "warm" in f"{key} {SETTINGS[key].help}".lower()]
        assert {"training.warmup_epochs", "training.schedule"} <= set(
            found
        )  # by its name, and by its meaning
        while not screen.query_one("#values").has_focus:
            await pilot.pause(0.03)
        await pilot.press("escape")
        await pilot.pause()
        assert listed(screen) == everything
        assert screen.is_current


async def test_all_words_of_a_search_are_in_what_it_finds_and_the_cursor_stays(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await go_to(pilot, screen, "training.warmup_epochs")
        await pilot.press("slash", *"rate epochs")
        await until(app, pilot, "/rate epochs")
        assert "training.warmup_epochs" in listed(screen)
        assert "training.lr" not in listed(screen)
        assert screen.query_one("#values").highlighted_id == "training.warmup_epochs"
        await pilot.press(*" zzz")
        await until(app, pilot, "no such setting")
        assert listed(screen) == []
        await pilot.press("enter", "e")  # there is nothing to edit
        await pilot.pause()
        assert app.screen is screen


async def test_only_changed_settings_are_listed(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await edit(pilot, screen, "training.seed", "7")
        await edit(pilot, screen, "training.warmup_epochs", "2")
        everything = listed(screen)
        await pilot.press("c")
        await until(app, pilot, "changed only")
        found = listed(screen)
        assert {"training.seed", "training.warmup_epochs", "speed.compile"} <= set(
            found
        )  # edited, and of the profile
        assert "training.accumulate" not in found
        await pilot.press("slash", *"warmup_epochs", "enter")
        await until(app, pilot, f"/warmup_epochs · changed only · 1 of {len(everything)}")
        await pilot.press("escape", "c")
        await pilot.pause()
        assert listed(screen) == everything


@pytest.mark.slow
async def test_the_list_is_laid_out_once_for_each_width_and_values(picker, environ, monkeypatch):
    laid_out, lay_out = [], settings.value_options

    def noted(values, room):
        laid_out.append((room, tuple(value for _, value in values)))
        return lay_out(values, room)

    monkeypatch.setattr(settings, "value_options", noted)
    async with picker(environ) as (app, pilot, _):
        await until(app, pilot, "no data named")  # shown again, as the data has been looked at
        assert len(laid_out) == len(set(laid_out))
        await pilot.resize_terminal(150, 24)
        await until(app, pilot, SETTINGS["precision.mode"].help[:20])  # the meanings, beside the values
    rooms = [room for room, _ in laid_out]
    assert rooms[-1] == max(rooms)
    assert len(laid_out) == len(set(laid_out))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_the_setting_under_the_cursor_is_explained_in_full(picker, environ, size):
    key = "training.primary_metric"  # the longest
    async with picker(environ, size) as (app, pilot, screen):
        await go_to(pilot, screen, key)
        await until(app, pilot, f"{key}: ")
        text = " ".join(frame(app).split())
        assert SETTINGS[key].help in text
        assert "Default: unset." in text
        assert "batch      64  64 per optimizer step" in frame(app)
        assert len(frame(app).splitlines()) == size[1]


async def test_escape_in_a_field_leaves_the_field_and_then_ends_the_search(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await pilot.press("slash", *"warm", "enter")
        await until(app, pilot, "/warm")
        screen.query_one("#epochs").focus()
        await pilot.press("escape")
        await pilot.pause()
        assert screen.query_one("#profiles").has_focus
        assert "/warm" in frame(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "/warm" not in frame(app)


async def test_a_search_without_a_match_says_what_to_do(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        await pilot.press("slash", *"zebra", "enter")
        await until(app, pilot, "no setting has these words: esc shows all")
        await pilot.press("e")  # there is nothing to edit
        await pilot.press("escape")
        await pilot.pause()
        assert screen.query_one("#values").highlighted_id is not None


async def test_the_palette_finds_keys_settings_and_profiles_by_name(picker, environ):
    async with picker(environ) as (app, pilot, screen):
        found = {command.title: command for command in app.get_system_commands(screen)}
        assert found["start the run"].help == "enter"
        found["setting training.accumulate"].callback()
        assert screen.query_one("#values").highlighted_id == "training.accumulate"
        found["profile debug"].callback()
        await pilot.pause()
        assert screen.picked.profile == "debug"
        await pilot.press("colon")
        await until(app, pilot, "start the run")
        await pilot.press("escape")
