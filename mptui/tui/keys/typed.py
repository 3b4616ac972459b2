"""Keys in the order of their effects.

A slow link brings several keys in one packet. Textual hands each of them to whatever has the focus at that
moment, before the first one has had its effect: in `tab 4` the digit goes into the line of text that the tab
leaves. Here a key is held back until the one before it was heard.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable

from textual.app import App
from textual.events import Event, Key, Paste
from textual.message import Message
from textual.widgets import Input

PATIENCE_S = 1.0
"""After so long a key that was never heard, since its widget has gone, holds back no other."""


class Heard(Message):
    """The key before this message has passed all widgets that it was meant for."""


class Typed:
    """Hands keys and pasted text to an app one at a time.

    Args:
        app: The app, which calls `heard` for each `Heard` that comes to it.
        hand_over: How the app takes an event itself.
    """

    def __init__(self, app: App[str], hand_over: Callable[[Event], Awaitable[None]]) -> None:
        self._app, self._hand_over = app, hand_over
        self._waiting: deque[Key | Paste] = deque()
        self._busy_since: float | None = None
        self._writes = False

    async def take(self, event: Key | Paste) -> None:
        """Hand `event` over, or keep it for when those before it were heard."""
        self._waiting.append(event)
        if self._busy_since is None or time.monotonic() - self._busy_since > PATIENCE_S:
            await self._next()

    def heard(self) -> None:
        """Go on with the next one, once the screen has done what the last one asked for."""
        if self._writes and isinstance(self._app.focused, Input):
            self._app.call_later(self._next)
        else:
            self._app.screen.call_later(self._app.call_later, self._next)

    async def _next(self) -> None:
        self._busy_since = time.monotonic() if self._waiting else None
        if not self._waiting:
            return
        event = self._waiting.popleft()
        target = self._app.focused or self._app.screen
        self._writes = isinstance(event, Paste) or event.is_printable
        await self._hand_over(event)
        # it takes the way of the key, behind it
        if not target.post_message(Heard()):
            await self._next()
