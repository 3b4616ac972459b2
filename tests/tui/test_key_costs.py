"""What a key never waits for: the disk, and styles that are parsed anew."""

import os
import pkgutil

from textual.screen import Screen

from mptui.tui import dialogs, screens
from mptui.tui.last import load_last, load_list
from tests.tui.events import demo_source


async def test_no_key_waits_until_a_choice_is_on_the_disk(stage, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    async with stage.live(demo_source()) as (app, pilot):
        await pilot.press("slash", "l", "o", "enter", "ctrl+t", "right_square_bracket")
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        await commands["smooth noisy curves, or not"].callback()
        await pilot.pause()
    assert "lo" in load_last()["charts"]
    assert load_list("used") == ["live.smoothing"]
    assert (tmp_path / "mptui" / "theme").read_text().strip()
    assert synced == []


def test_no_screen_that_opens_has_the_styles_of_all_parsed_anew():
    # as Textual does for a sheet that a screen brings with it
    for room in (screens, dialogs):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            for name, found in vars(pkgutil.resolve_name(module.name)).items():
                if isinstance(found, type) and issubclass(found, Screen):
                    assert [found.CSS_PATH, found.CSS] in ([None, ""], [[], ""]), name
