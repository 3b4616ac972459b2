"""Make `live.svg`, the picture of the live screen: the real program, driven through a real run.

    python docs/make_picture.py [docs/live.svg]

A ResNet-18 learns the built-in shapes for some epochs, on the first usable device; the profile is switched
on the way. Runs go to a temporary folder.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from mptui.runs.planning.plan import Request
from mptui.tui.cockpit import Cockpit
from mptui.tui.dialogs.switch_profile import SwitchProfileDialog
from mptui.tui.screens.live import LiveScreen
from mptui.tui.sources.in_process import SessionSource

SIZE = (120, 36)
EPOCHS_BEFORE, EPOCHS = 4, 9
SETTINGS = {
    "MPTUI_MODEL_NAME": "resnet18",
    "MPTUI_DATA_NAME": "shapes",
    "MPTUI_DATA_SAMPLES": "256",
    "MPTUI_DATA_IMAGE_SIZE": "32",
    "MPTUI_TRAINING_BATCH_SIZE": "16",
    "MPTUI_TRAINING_EPOCHS": "60",
    "MPTUI_TRAINING_WARMUP_EPOCHS": "1",
}
LIMIT_S = 540.0


async def picture(folder: Path) -> str:
    """Drive the program from its first screen into a run, and return the live screen as SVG."""
    environ = {**SETTINGS, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}

    def start(request: Request, run: Path | None, _group: Sequence[str]) -> SessionSource:
        return SessionSource(request, folder / "runs", resume=run).start()

    app = Cockpit(start, environ=environ)
    async with app.run_test(size=SIZE) as pilot:
        screen = await _live(app, pilot)
        await _epochs(screen, pilot, EPOCHS_BEFORE)
        await _switch(app, screen, pilot)
        await _epochs(screen, pilot, EPOCHS)
        await pilot.pause(2)
        # without the fonts that it would fetch: a picture asks nothing of the network
        svg = re.sub(r"@font-face {.*?}\s*", "", app.export_screenshot(title="mptui"), flags=re.DOTALL)
        await pilot.press("x", "enter")
        assert app.run_now is not None
        app.run_now.wait()
    return svg


async def _live(app: Cockpit, pilot: Pilot[Any]) -> LiveScreen:
    """Go on with the first device and the profile `stable`, until the run is shown."""
    while not app.screen.query("#profiles"):
        await pilot.press("enter")
        await pilot.pause(0.5)
    await pilot.press("2", "enter")
    while not isinstance(screen := app.screen, LiveScreen):
        await pilot.pause(0.5)
    return screen


async def _switch(app: Cockpit, screen: LiveScreen, pilot: Pilot[Any]) -> None:
    """Switch to the profile `fast`, through the dialog that says what of it can't change."""
    await pilot.press("1")
    while screen.view.profile != "fast":
        if isinstance(app.screen, SwitchProfileDialog):
            await pilot.press("enter")
        await pilot.pause(0.2)


async def _epochs(screen: LiveScreen, pilot: Pilot[Any], number: int) -> None:
    """Wait until so many epochs are done."""
    deadline = time.monotonic() + LIMIT_S
    while screen.view.epoch <= number:
        if screen.view.finished is not None or time.monotonic() > deadline:
            raise SystemExit(f"the run did not come so far: {screen.view.finished}")
        await pilot.pause(0.2)


def main() -> None:
    """Write the picture."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/live.svg")
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    with tempfile.TemporaryDirectory() as folder:
        target.write_text(asyncio.run(picture(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
