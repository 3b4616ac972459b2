"""Apps without a terminal: what they need not do where a test opens them."""

import asyncio
from typing import Any

import pytest
from textual._compositor import Compositor
from textual._context import active_app
from textual.css.stylesheet import Stylesheet
from textual.screen import UPDATE_PERIOD


@pytest.fixture(scope="session", autouse=True)
def drawn_when_looked_at():
    """Draw the frames that tests look at, and no others.

    Without a terminal, Textual draws each change of the screen and drops it: half of the time of an app.
    """
    render_update = Compositor.render_update

    def whole_alone(self, full=False, **settings):
        if full:  # such as a screenshot
            return render_update(self, full, **settings)
        self._dirty_regions.clear()
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compositor, "render_update", whole_alone)
        yield


@pytest.fixture(scope="session", autouse=True)
def styles_are_parsed_once():
    """Parse a style sheet once for all apps.

    Textual does it for each, which is a quarter of the time to open one.
    """
    parse_rules, parsed = Stylesheet._parse_rules, {}

    def from_before(self, *source, **settings):
        key = frozenset(self._variables.items()), source, frozenset(settings.items())
        if key not in parsed:
            parsed[key] = parse_rules(self, *source, **settings)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", from_before)
        yield


SOON_S = 2.1 * UPDATE_PERIOD
"""Seconds: a timer that is due later, such as that of a poll, is not waited for.

A frame may be due in two periods, as a timer that is behind passes over one.
"""


async def _quiet(min_sleep: float = 0, max_sleep: float = 1) -> None:
    """Wait, for at most `max_sleep` seconds, until nothing is left to do in the event loop, now or soon."""
    loop: Any = asyncio.get_running_loop()
    end = loop.time() + max_sleep
    app = active_app.get(None)
    while (now := loop.time()) < end:
        await asyncio.sleep(0)
        if loop._ready:
            continue
        due = min((timer.when() for timer in loop._scheduled if not timer.cancelled()), default=end)
        if due > now + SOON_S or (app is not None and app._exit):  # whose timer of drawing goes on
            return
        await asyncio.sleep(due - now)


@pytest.fixture(scope="session", autouse=True)
def waits_are_for_work_alone():
    """Wait in the pilot until the loop has no work left: Textual sleeps, for 40 ms and more for each key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual.pilot.wait_for_idle", _quiet)
        patch.setattr("textual.app.wait_for_idle", _quiet)
        yield
