"""Handles keys one after another, each after the effect of the previous one.

A slow connection delivers several keys in one packet. Textual sends each to the currently focused widget,
before the first one has had its effect: in `tab 4`, the digit goes into the text field that tab leaves. Here,
a key waits until the previous one is handled.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable

from textual.app import App
from textual.events import Event, Key, Paste
from textual.message import Message
from textual.widgets import Input

PATIENCE_S = 1.0
"""Seconds after which an unhandled key, whose widget is gone, no longer delays others."""


class KeyHandled(Message):
    """The key before this message has passed all its widgets."""


class KeyQueue:
    """Passes keys and pasted text to an app one at a time.

    Args:
        app: The app, which calls `key_handled` for each `KeyHandled` that it receives.
        hand_over: Passes an event to the app.
    """

    def __init__(self, app: App[str], hand_over: Callable[[Event], Awaitable[None]]) -> None:
        self._app, self._hand_over = app, hand_over
        self._waiting: deque[Key | Paste] = deque()
        self._busy_since: float | None = None
        self._writes = False

    async def handle(self, event: Key | Paste) -> None:
        """Pass `event` on, or queue it until the previous ones are handled."""
        self._waiting.append(event)
        if self._busy_since is None or time.monotonic() - self._busy_since > PATIENCE_S:
            await self._next()

    def key_handled(self) -> None:
        """Pass the next event on, after the effect of the last one."""
        if self._writes and isinstance(self._app.focused, Input):
            self._app.call_later(self._next)
            return
        screen, focused = self._app.screen, self._app.focused
        # what an action has posted, such as `Input.Submitted`, goes by the widget and the screen first
        if focused is None or not focused.call_later(screen.call_later, self._app.call_later, self._next):
            screen.call_later(self._app.call_later, self._next)

    async def _next(self) -> None:
        self._busy_since = time.monotonic() if self._waiting else None
        if not self._waiting:
            return
        event = self._waiting.popleft()
        target = self._app.focused or self._app.screen
        self._writes = isinstance(event, Paste) or event.is_printable
        await self._hand_over(event)
        # it follows the key through the same widgets
        if not target.post_message(KeyHandled()):
            await self._next()
