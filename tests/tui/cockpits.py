"""The whole program on a terminal in memory, with fake runs that record their commands."""

import time
from contextlib import asynccontextmanager
from pathlib import Path

from mptui.tui.cockpit import Cockpit
from mptui.tui.screens.detection import DetectionScreen
from mptui.tui.setup.machine_scan import look
from tests.tui.events import MemorySource
from tests.tui.frames import frame

GIB = 1024**3
DEADLINE_S = 120


class FakeRun(MemorySource):
    """A fake run, started with `request`."""

    def __init__(self, request, events=()):
        super().__init__(events)
        self.request = request
        self.exit_code = 0
        self.stopped_by = None
        self.resumed: Path | None = None

    def stop(self, signal):
        self.stopped_by = signal

    def wait(self):
        pass


def quick_look(_with_torch):
    """Return the results of NVML and the host; torch would find no GPU on this machine."""
    return look(False)


@asynccontextmanager
async def cockpit(size=(80, 24), *, look=quick_look, events=(), environ=None):
    """Start the program at its first screen; yields (app, pilot, list of started runs)."""
    runs = []

    def start(request, resume):
        runs.append(FakeRun(request, events))
        runs[-1].resumed = resume
        return runs[-1]

    app = Cockpit(start, first=DetectionScreen(look=look), environ=environ or {})
    async with app.run_test(size=size, notifications=True) as pilot:
        yield app, pilot, runs


async def until(app, pilot, words):
    """Wait until `words` are shown; slow work happens in threads."""
    deadline = time.monotonic() + DEADLINE_S
    while words not in frame(app):
        assert time.monotonic() < deadline, f"never shown: {words}\n{frame(app)}"
        await pilot.pause(0.01)
