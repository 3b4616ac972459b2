"""What a key never waits for: the disk, styles that are parsed anew, pictures drawn cell by cell."""

import os
import pkgutil

import numpy as np
from textual.css.stylesheet import Stylesheet
from textual.screen import Screen

from mptui.tui import dialogs, screens
from mptui.tui.last import load_last, load_list
from tests.runs.made_pictures import RED, sample
from tests.tui.events import demo_source
from tests.tui.test_pictures_screen import opened, written


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


async def test_no_key_waits_until_the_style_of_each_cell_of_a_picture_is_parsed(stage, tmp_path, monkeypatch):
    parsed = []
    parse = Stylesheet.parse_style

    def counted(sheet, style):
        parsed.append(style)
        return parse(sheet, style)

    monkeypatch.setattr(Stylesheet, "parse_style", counted)
    pixels = np.arange(32 * 32 * 3, dtype=np.uint16).reshape(32, 32, 3).astype(np.uint8)
    groups = {"worst": [sample(number, RED, pixels_HWC=pixels + number) for number in range(8)]}
    async with stage.live(written(tmp_path, groups=groups), (120, 35)) as (app, pilot):
        text = await opened(app, pilot)
    assert text.count("▀") > 1000
    assert len(parsed) < 500
