"""A new panel of the live screen is one entry of `PANELS`: it is drawn in a column, a line or a page."""

import time

import pytest
from textual.content import Content

from mptui.runs.planning.plan import Request
from mptui.tui.sources import SessionSource
from mptui.tui.widgets.basics import Panel
from mptui.tui.widgets.panels import PANELS, PanelSpec
from tests.made.events import step_of
from tests.tui.events import START, demo_source
from tests.tui.frames import frame, live, put

DEADLINE_S = 300
TINY = (
    *("model.name=unet", "model.width=2", "model.depth=1", "data.samples=16", "data.image_size=16"),
    *("training.batch_size=8", "training.epochs=1", "hardware.device=cpu"),
)


class SamplesPanel(Panel):
    """Shows the number of samples that the run has processed."""

    DEFAULT_CSS = "SamplesPanel { height: 3; }"

    def __init__(self):
        super().__init__("samples")

    def lines(self, view, width):
        return samples_line(view)


def samples_line(view):
    return [Content(f"{view.latest.samples_seen if view.latest else 0} samples seen")]


@pytest.fixture
def source(monkeypatch, tmp_path):
    """A real run, which pauses after its first batch until a test has looked."""
    spec = PanelSpec(build=lambda _: SamplesPanel(), folded=lambda view, _: samples_line(view))
    monkeypatch.setitem(PANELS, "samples", spec)
    source = SessionSource(Request("debug", {}, TINY, {}), tmp_path / "runs").start()
    source.send("pause")
    yield source
    source.send("stop")
    source.wait()


async def shown(app, pilot, words):
    deadline = time.monotonic() + DEADLINE_S
    while words not in frame(app):
        assert time.monotonic() < deadline, frame(app)
        await pilot.pause(0.05)
    return frame(app)


async def test_it_stands_in_the_column_of_a_wide_screen(source):
    async with live(source, (120, 40)) as (app, pilot):
        text = await shown(app, pilot, "8 samples seen")
    assert "╭─ samples ─" in text
    assert text.index("time per step") < text.index("╭─ samples ─")


async def test_it_is_absent_until_the_run_has_what_it_needs(monkeypatch):
    spec = PanelSpec(build=lambda _: SamplesPanel(), folded=None, needs=lambda view: view.step >= 20_000)
    monkeypatch.setitem(PANELS, "samples", spec)
    async with live(demo_source(), (120, 40)) as (app, pilot):
        await shown(app, pilot, "╭─ time per step")
        assert "╭─ samples ─" not in frame(app)
        await put(app, pilot, step_of(20_000, time=START + 4000))
        await shown(app, pilot, "20000 samples seen")


async def test_it_is_a_line_on_a_narrow_screen_and_whole_on_its_page(source):
    async with live(source, (80, 24)) as (app, pilot):
        folded = await shown(app, pilot, "8 samples seen")
        await pilot.press("tab", "tab")
        whole = frame(app)
        await pilot.resize_terminal(80, 20)
        await pilot.press("tab")
        page = await shown(app, pilot, "╭─ samples ─")
    assert "╭─ samples ─" not in folded
    assert "╭─ mixed precision" in whole
    assert "╭─ mixed precision" not in page
