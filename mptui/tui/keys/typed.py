"""Handles keys one after another, each after the effect of the previous one.

A slow connection delivers several keys in one packet. Textual sends each to the currently focused widget,
before the first one has had its effect: in `tab 4`, the digit goes into the text field that tab leaves. Here,
a key waits until the previous one is handled, and until what it has asked for is there: in `f enter`, the
checkpoints of a run are read before the dialog of the fork opens, and `enter` is for the dialog.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable

from textual.app import App
from textual.events import Event, Key, Paste
from textual.message import Message
from textual.widgets import Input

KEYS_WAIT = "keys wait"
"""Beginning of the groups of workers that prepare what the next key is for, such as a dialog."""

PATIENCE_S = 1.0
"""Seconds after which an unhandled key, whose widget is gone, no longer delays others."""

PREPARATION_S = 5.0
"""Seconds after which a worker that prepares something no longer delays keys: a disk can hang."""

_LOOK_S = 0.02


class KeyHandled(Message):
    """The key before this message has passed all its widgets; `also_effect`: and what it has posted, too."""

    def __init__(self, *, also_effect: bool = False) -> None:
        super().__init__()
        self.also_effect = also_effect


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
        self._look_again: asyncio.TimerHandle | None = None
        self._writes = False

    async def handle(self, event: Key | Paste) -> None:
        """Pass `event` on, or queue it until the previous ones are handled."""
        self._waiting.append(event)
        if self._busy_since is None or (self._busy_s > PATIENCE_S and not self._is_preparing()):
            await self._next()

    async def key_handled(self, message: KeyHandled) -> None:
        """Pass the next event on, after the effect of the last one."""
        if message.also_effect or (self._writes and isinstance(self._app.focused, Input)):
            await self._next()
        else:
            self._follow_effect()

    def _follow_effect(self) -> None:
        """Go through the widgets once more, behind what an action has posted, such as `Input.Submitted`."""
        if not self._app.screen_stack:
            return  # the app ends
        again = KeyHandled(also_effect=True)
        if self._app.focused is None or not self._app.focused.post_message(again):
            self._app.screen.post_message(again)

    async def _next(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        if self._is_preparing():
            self._look_again = asyncio.get_running_loop().call_later(_LOOK_S, self._follow_effect)
            return
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

    @property
    def _busy_s(self) -> float:
        """Seconds since the last key was passed on."""
        return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def _is_preparing(self) -> bool:
        """Whether what the last key has asked for is not there yet."""
        if self._busy_since is None or self._busy_s > PREPARATION_S:
            return False
        return any(
            worker.group.startswith(KEYS_WAIT) and not worker.is_finished for worker in self._app.workers
        )
