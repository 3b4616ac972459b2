"""The whole program on a terminal in memory, with fake runs that record their commands."""

from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mptui.tui.cockpit import Cockpit
from mptui.tui.look import scan_machine
from mptui.tui.screens.detection import DetectionScreen
from tests.tui.events import MemorySource
from tests.tui.frames import frame, seen

GIB = 1024**3


class FakeRun(MemorySource):
    """A fake run, started with `request`."""

    def __init__(self, request, events=()):
        super().__init__(events)
        self.request = request
        self.exit_code = 0
        self.stopped_by = None
        self.resumed: Path | None = None
        self.group: Sequence[str] = ()

    def stop(self, signal):
        self.stopped_by = signal

    def wait(self):
        pass


def quick_scan(_with_torch):
    """What NVML and the host tell; torch would only say that this machine has no GPU."""
    return scan_machine(False)


@asynccontextmanager
async def cockpit(size=(80, 24), *, scan=quick_scan, events=(), environ=None):
    """The program at its first screen; yields (app, pilot, the runs that were started)."""
    runs = []

    def start(request, resume, group):
        runs.append(FakeRun(request, events))
        runs[-1].resumed, runs[-1].group = resume, group
        return runs[-1]

    app = Cockpit(start, first=DetectionScreen(scan=scan, environ=environ or {}), environ=environ or {})
    async with app.run_test(size=size, notifications=True) as pilot:
        yield app, pilot, runs
        if app.is_running and app._exit is False:
            frame(app)  # whatever a test looks at, its last screen can be drawn


async def until(app, pilot, words):
    """Wait until `words` are shown; slow work happens in threads."""
    assert await seen(app, pilot, words), f"never shown: {words}\n{frame(app)}"
