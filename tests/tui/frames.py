"""Screen frames as plain text."""

import re
import time
from contextlib import asynccontextmanager

from mptui.tui.app import MptuiApp
from mptui.tui.keys.keymap import Keymap
from mptui.tui.screens.live import LiveScreen

DEADLINE_S = 120
_BORDERS = re.compile("[\u2500-\u259f]")


def frame(app) -> str:
    """Return all lines of the terminal, joined."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def shown(app, words: str) -> bool:
    """Return whether `words` are shown, on one line or wrapped in a box, as beside a path of any length."""
    lines = frame(app)
    return words in lines or words in " ".join(_BORDERS.sub(" ", lines).split())


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
    """Wait for `words`, such as those of a notification or of the next poll; return whether they appear."""
    deadline = time.monotonic() + DEADLINE_S
    while not shown(app, words):
        if time.monotonic() > deadline:
            return False
        await pilot.pause(0.03)
    return True


async def put(app, pilot, *events):
    """Put these events into the source, and let the screen poll."""
    app.screen.source.waiting += events
    app.screen.poll()
    await pilot.pause()


async def put_below(app, pilot, *events):
    """Let the live screen below handle these events."""
    below = app.screen_stack[-2]
    below.source.waiting += events
    below.poll()
    app.screen.poll()
    await pilot.pause()
