"""The picker alone, and what a person does in it."""

from contextlib import asynccontextmanager

from mptui.tui.app import MptuiApp
from mptui.tui.screens.picker import PickerScreen
from tests.hardware.machines import H200


@asynccontextmanager
async def picker(environ, size=(80, 24), device=H200, ascii_only=False):
    """The picker alone; yields (app, pilot, its screen)."""
    screen = PickerScreen(device, environ=environ)
    app = MptuiApp(screen, ascii_only=ascii_only)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot, screen


async def go_to(pilot, screen, key):
    """Put the cursor of the values on `key`."""
    values = screen.query_one("#values")
    values.focus()
    values.highlighted = [option.id for option in values.options].index(key)
    await pilot.pause()


async def write(pilot, text):
    """Replace what stands in the line of text that has the focus."""
    pilot.app.focused.value = text
    await pilot.pause()


async def edit(pilot, screen, key, text):
    """Give a setting another value, by its dialog."""
    await go_to(pilot, screen, key)
    await pilot.press("e")
    await pilot.pause()
    await write(pilot, text)
    await pilot.press("enter")
    await pilot.pause()
