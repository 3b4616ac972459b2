"""Screen frames as plain text."""

from contextlib import asynccontextmanager

from mptui.tui.app import MptuiApp
from mptui.tui.keys.keymap import Keymap
from mptui.tui.screens.live import LiveScreen


def frame(app) -> str:
    """Return all lines of the terminal, joined."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@asynccontextmanager
async def live(source, size=(120, 36), *, ascii_only=False, keys=None):
    """Show the live screen of `source` in a terminal of `size`; yields (app, pilot)."""
    keymap = keys or Keymap()
    screen = LiveScreen(source, keymap=keymap.keys, ascii_only=ascii_only)
    app = MptuiApp(screen, keymap=keymap, ascii_only=ascii_only)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot


async def seen(app, pilot, words) -> bool:
    """Wait for `words`; return whether they appear: a notification takes a few rounds of the event loop."""
    for _ in range(30):
        if words in frame(app):
            return True
        await pilot.pause()
    return False


async def put(app, pilot, *events):
    """Put these events into the source, and let the screen poll."""
    app.screen.source.waiting += events
    app.screen.poll()
    await pilot.pause()
