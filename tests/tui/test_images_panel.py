"""The panel that shows the images of a diffusion model."""

import numpy as np
import pytest
from PIL import Image

from mptui.events import ImagesGenerated
from mptui.tui.widgets.panels import ImagesPanel
from tests.tui.events import START, MemorySource, run_started
from tests.tui.frames import frame, put

SIZE = (120, 45)


def made(path="samples/epoch-0003.png", **changes):
    return ImagesGenerated(
        **{"time": START + 5, "step": 9, "epoch": 3, "path": path, "images": 4, "seconds": 0.5, **changes}
    )


@pytest.fixture
def run(tmp_path):
    """A run directory with a grid: the upper half is red, the lower one blue; larger than the panel."""
    (tmp_path / "samples").mkdir()
    pixels = np.zeros((200, 200, 3), np.uint8)
    pixels[:100, :, 0] = pixels[100:, :, 2] = 255
    Image.fromarray(pixels).save(tmp_path / "samples" / "epoch-0003.png")
    return tmp_path


def colours(app, panel):
    """Return the rows of the picture: the colours of the upper and the lower half of their first cells."""
    lines = app.screen._compositor.render_strips()
    region = panel.content_region
    firsts = (lines[y].crop(region.x, region.x + 1)._segments[0] for y in range(region.y, region.bottom))
    return [(first.style.color.name, first.style.bgcolor.name) for first in firsts if first.text == "▀"]


async def test_the_picture_is_drawn_in_half_blocks_where_there_is_room(stage, run):
    async with stage.live(MemorySource([run_started(directory=str(run))]), SIZE) as (app, pilot):
        panel = app.screen.query_one(ImagesPanel)
        assert not panel.display
        await put(app, pilot, made())
        text = frame(app)
        rows = colours(app, panel)
        assert panel.display
        assert "images of epoch 3" in text
        assert "▀" * 10 in text
        assert rows[0] == ("#ff0000", "#ff0000")
        assert rows[-1] == ("#0000ff", "#0000ff")
        assert len(rows) == panel.content_size.height
        Image.new("RGB", (4, 4), (0, 255, 0)).save(run / "samples" / "epoch-0004.png")
        await put(app, pilot, made("samples/epoch-0004.png", step=12, epoch=4))
        assert set(colours(app, panel)) == {("#00ff00", "#00ff00")}
        assert "images of epoch 4" in frame(app)


@pytest.mark.parametrize("path", ["samples/gone.png", "", "../secret.png"])
async def test_a_picture_that_is_not_there_is_named(stage, run, path):
    Image.new("RGB", (4, 4)).save(run / "secret.png")
    async with stage.live(MemorySource([run_started(directory=str(run))]), SIZE) as (app, pilot):
        await put(app, pilot, made(path))
        assert "▀" not in frame(app)
        assert (path or "not written") in frame(app)


async def test_a_file_that_is_no_picture_is_named(stage, run):
    (run / "samples" / "epoch-0003.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    async with stage.live(MemorySource([run_started(directory=str(run))]), SIZE) as (app, pilot):
        await put(app, pilot, made())
        assert "samples/epoch-0003.png" in frame(app)


async def test_without_half_blocks_brightness_is_in_characters(stage, run):
    Image.new("RGB", (40, 40), (255, 255, 255)).save(run / "samples" / "epoch-0003.png")
    async with stage.live(MemorySource([run_started(directory=str(run))]), SIZE, ascii_only=True) as (
        app,
        pilot,
    ):
        await put(app, pilot, made())
        assert "@" * 10 in frame(app)
