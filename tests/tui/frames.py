"""Screen frames as plain text."""

import re
import time
from contextlib import asynccontextmanager

from textual._context import visible_screen_stack

from mptui.tui.app import MptuiApp
from mptui.tui.keys import Keymap
from mptui.tui.screens.live import LiveScreen

DEADLINE_S = 120
_BORDERS = re.compile("[\u2500-\u259f]")


def frame(app) -> str:
    """Draw all lines of the terminal, with the screens that are seen behind a dialog; return them joined."""
    visible_screen_stack.set(app._background_screens)
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def shown(app, words: str) -> bool:
    """Return whether `words` are shown, on one line or wrapped in a box, as beside a path of any length."""
    lines = frame(app)
    return words in lines or words in " ".join(_BORDERS.sub(" ", lines).split())


@asynccontextmanager
async def live(source, size=(120, 36), *, ascii_only=False, keys=None):
    """Show the live screen of `source` in a terminal of `size`; yields (app, pilot)."""
    keymap = keys or Keymap()
    screen = LiveScreen(source, ascii_only=ascii_only)
    app = MptuiApp(screen, keymap=keymap, ascii_only=ascii_only)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot
        if app.is_running:
            frame(app)  # whatever a test looks at, its last screen can be drawn


async def seen(app, pilot, words) -> bool:
    """Wait for `words`, such as those of a notification or of the next poll; return whether they appear.

    What came with the words is there, too: a widget may have them before its neighbours are laid out.
    """
    deadline, wait_s = time.monotonic() + DEADLINE_S, 0.01
    while not shown(app, words):
        if time.monotonic() > deadline:
            return False
        await pilot.pause(wait_s)
        wait_s = min(1.3 * wait_s, 0.1)  # a look takes milliseconds
    await pilot.pause()
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
