"""The start of a run by the program, from the picker or from the screen of a run that has ended."""

import os
import threading
from dataclasses import replace

import pytest

from mptui.tui.screens.picker import PickerScreen
from tests.tui.cockpits import cockpit, until
from tests.tui.events import demo, finished
from tests.tui.frames import put
from tests.tui.pickers import edit

pytestmark = pytest.mark.usefixtures("uncounted")


async def test_the_ended_run_leads_back_to_the_picker(environ):
    async with cockpit((120, 36), environ=environ, events=[*demo(), finished()]) as (app, pilot, runs):
        await until(app, pilot, "workers")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        picked = app.screen
        await edit(pilot, picked, "training.lr", "0.05")
        await pilot.press("enter")
        await until(app, pilot, "✓ completed")
        written = threading.Event()
        runs[0].wait = written.wait
        await pilot.press("escape")
        await until(app, pilot, " · edited")
        await pilot.press("enter")
        await until(app, pilot, "starts once the files of the last run are")
        assert len(runs) == 1
        written.set()
        await until(app, pilot, "✓ completed")
        assert len(runs) == 2
        runs[-1].finished = True
        await pilot.press("escape")
        await until(app, pilot, " · edited")
        await pilot.press("escape")  # without a question, as the runs have the edits
        await pilot.pause()
        assert picked not in app.screen_stack
        runs[-1].exit_code = 4
        await pilot.press("q")
    assert app.exit_code_of_run == 4
    assert os.environ.get("MPTUI_TRAINING_MAX_STEPS") is None


async def test_an_ended_run_is_resumed_on_its_screen(environ, tmp_path):
    async with cockpit((120, 36), environ=environ, events=demo()) as (app, pilot, runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        await pilot.press("enter")
        await until(app, pilot, "● training")
        app.post_message(PickerScreen.Started(runs[0].request, ()))
        await until(app, pilot, "this program trains a run already")
        assert len(runs) == 1
        runs[0].run, runs[0].finished = tmp_path, True
        await put(app, pilot, replace(finished(), status="stopped"))
        await until(app, pilot, "■ stopped")
        await pilot.press("r")
        while len(runs) < 2:
            await pilot.pause(0.03)
        await until(app, pilot, "● training")
        await until(app, pilot, "space pause")
    assert (runs[1].resumed, runs[1].request.profile) == (tmp_path, str(tmp_path / "run.toml"))
    assert runs[0].resumed is None
