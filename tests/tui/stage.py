"""A program that stays open over many tests: each shows a screen of its own in it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from mptui.tui.app import MptuiApp
from mptui.tui.screens.live import LiveScreen
from mptui.tui.screens.page import Page
from mptui.tui.widgets import header


class OpenApp(MptuiApp):
    """A program that notes what it was left with, in `return_value`, and stays."""

    NOTIFICATION_TIMEOUT = 20
    """Seconds; a busy machine may look at a message later than the usual 5."""

    def exit(self, result: object = None, *_: object, **__: object) -> None:
        """Note the result."""
        self.has_left, self.left_with = True, result

    has_left = False
    left_with: object = None

    @property
    def return_value(self) -> Any:
        """What the screen was left with; None: it is still there."""
        return self.left_with


class Stage:
    """Shows screens in programs that are opened once, one in Unicode and one in ASCII."""

    def __init__(self) -> None:
        self._pilots: dict[bool, Pilot[Any]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    @asynccontextmanager
    async def show(
        self, screen: Page, size: tuple[int, int] = (80, 24), *, ascii_only: bool = False
    ) -> AsyncIterator[tuple[OpenApp, Pilot[Any]]]:
        """Show `screen` as the first of the program, in a terminal of `size`; yields (app, pilot)."""
        pilot = self._pilots.get(ascii_only) or await self._opened(ascii_only)
        app = pilot.app
        assert isinstance(app, OpenApp)
        try:
            with app._context():  # as in `run_test`, which was entered by another task
                await _clear(app)  # the first page, or what a test has left that failed
                app.has_left, app.left_with = False, None
                await pilot.resize_terminal(*size)
                await app.push_screen(screen, app.exit)
                await pilot.pause()
                yield app, pilot
                await _clear(app)
        finally:
            if (
                app._exception is not None
            ):  # it has ended; `run_test` would raise it at the end of the package
                del self._pilots[ascii_only]
                raise app._exception

    def live(self, source, size=(120, 36), *, ascii_only=False):
        """Show the live screen of `source`; see `show`."""
        return self.show(LiveScreen(source, ascii_only=ascii_only), size, ascii_only=ascii_only)

    async def close(self) -> None:
        """Close the programs."""
        self._over.set()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _opened(self, ascii_only: bool) -> Pilot[Any]:
        opened = asyncio.get_running_loop().create_future()
        # in a task of its own: each test is another one, and a program is closed by the task that opened it
        keeper = asyncio.create_task(self._keep_open(OpenApp(Page(), ascii_only=ascii_only), opened))
        self._keepers.append(keeper)
        await asyncio.wait((keeper, opened), return_when=asyncio.FIRST_COMPLETED)
        if keeper.done():
            await keeper
        self._pilots[ascii_only] = opened.result()
        return self._pilots[ascii_only]

    async def _keep_open(self, app: OpenApp, opened: "asyncio.Future[Pilot[Any]]") -> None:
        async with app.run_test(notifications=True) as pilot:
            opened.set_result(pilot)
            await self._over.wait()


async def _clear(app: OpenApp) -> None:
    """Take away a test's screens, before its patches and its folders go."""
    while len(app.screen_stack) > 1:
        await app.pop_screen()
    app.clear_notifications()
    app.theme = "dark"
    header._ANSWERED.pop(app, None)
