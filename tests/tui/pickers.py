"""The picker by itself, and user actions in it."""

from contextlib import asynccontextmanager

from mptui.tui.app import MptuiApp
from mptui.tui.screens.picker import PickerScreen
from tests.hardware.machines import H200


@asynccontextmanager
async def picker(environ, size=(80, 24), device=H200, ascii_only=False):
    """Show only the picker; yields (app, pilot, its screen)."""
    screen = PickerScreen(device, environ=environ, ascii_only=ascii_only)
    app = MptuiApp(screen, ascii_only=ascii_only)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot, screen


async def go_to(pilot, screen, key):
    """Move the cursor of the values to `key`."""
    values = screen.query_one("#values")
    values.focus()
    values.highlighted = [option.id for option in values.options].index(key)
    await pilot.pause()


async def write(pilot, text):
    """Replace the text of the focused input."""
    pilot.app.focused.value = text
    await pilot.pause()


async def edit(pilot, screen, key, text):
    """Change a setting by its dialog."""
    await go_to(pilot, screen, key)
    await pilot.press("e")
    await pilot.pause()
    await write(pilot, text)
    await pilot.press("enter")
    await pilot.pause()
