"""A live screen with a grid of images, as a program: the folder of the run is its argument."""

import sys
from pathlib import Path

from PIL import Image

from mptui.events import ImagesGenerated
from mptui.tui.app import MptuiApp
from mptui.tui.keys import Keymap
from mptui.tui.screens.live import LiveScreen
from tests.tui.events import START, MemorySource, run_started

GREEN = (0, 255, 0)


def show() -> int:
    """Show the screen until `q`."""
    run = Path(sys.argv[1])
    (run / "samples").mkdir()
    Image.new("RGB", (48, 32), GREEN).save(run / "samples" / "epoch-0003.png")
    made = ImagesGenerated(
        time=START + 5, step=9, epoch=3, path="samples/epoch-0003.png", images=6, seconds=0.5
    )
    keymap = Keymap()
    source = MemorySource([run_started(directory=str(run)), made])
    MptuiApp(LiveScreen(source), keymap=keymap, ascii_only=False).run()
    return 0
