"""What the live screen shows before the first point of its charts."""

import random
from functools import partial

import numpy as np
import pytest
from textual.widgets import Static

from mptui.data.pictures import SEAM, VOID, bright
from mptui.events import ImagesGenerated, PhaseChanged, RunFinished, Warned
from mptui.runs.store import pictures
from mptui.runs.store.index import from_document, to_document
from mptui.runs.view.run_view import RunView
from mptui.tui.terminal.graphics import Graphics
from mptui.tui.widgets import panels
from tests.tui.events import START, MemorySource, step_event
from tests.tui.frames import frame, put

slow = partial(pytest.param, marks=pytest.mark.slow)

LABELS = ["daisy", "rose", "tulip", "lily"]


def preparation():
    """Return the events of a run that compiles, after 20 s of measuring."""
    return [
        PhaseChanged(time=START, phase="starting"),
        PhaseChanged(time=START + 1, phase="scanning", detail="~/data/flowers"),
        PhaseChanged(time=START + 4, phase="preparing", found="1,000 + 200 images, 10 classes"),
        PhaseChanged(time=START + 5, phase="preparing", found="resnet18, 11.2M parameters"),
        PhaseChanged(time=START + 6, phase="preparing", detail="measuring channels last"),
        PhaseChanged(time=START + 20, phase="preparing", detail="measuring channels first"),
        PhaseChanged(time=START + 25, phase="preparing", found="layout: channels last, 1.19x"),
        Warned(time=START + 26, code="data", message="two classes have few images"),
        PhaseChanged(time=START + 27, phase="compiling", detail="default", expected_s=60.0),
    ]


def pictured(run):
    """Write four images of one colour each, and return their event."""
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)], np.uint8)
    tiles = [np.broadcast_to(colour, (16, 16, 3)) for colour in colours]
    path = pictures.write_data(run, tiles)
    return ImagesGenerated(
        time=START + 5, epoch=0, path=path, images=4, seconds=0.1, what="data", labels=LABELS
    )


@pytest.mark.parametrize("size", [(60, 16), slow((80, 24)), slow((120, 35)), (200, 60)])
async def test_what_was_found_is_shown_beside_the_data_until_the_first_point(stage, tmp_path, size):
    source = MemorySource([*preparation(), pictured(tmp_path)])
    source.run = tmp_path
    async with stage.live(source, size) as (app, pilot):
        text = frame(app)
        for words in ("✓ layout: channels last, 1.19x", "▸ compile (default)", "of about 1 min", "▲ two"):
            assert words in text
        assert "✓ 1,000 + 200 images, 10 classes" in text
        assert all(label in text for label in LABELS[:2])
        assert "▀▀▀▀" in text
        assert "–" not in text
        assert "measuring" not in text
        assert "no data yet" not in text
        await put(app, pilot, step_event(1, START + 90, random.Random(0)))
        assert "✓ layout" not in frame(app)
        assert "╭─ loss" in frame(app)


async def test_terminals_with_graphics_get_the_data_in_pixels(stage, tmp_path, monkeypatch):
    shown = []

    def widget(picture):
        shown.append((picture, Static()))
        return shown[-1][1]

    monkeypatch.setattr(panels, "graphics_of", lambda app: Graphics(widget, (10, 20)))
    source = MemorySource([*preparation(), pictured(tmp_path)])
    source.run = tmp_path
    async with stage.live(source, (120, 35)) as (app, pilot):
        await pilot.pause()
        text = frame(app)
        assert "▀" not in text
        lines, pixels = text.splitlines(), set()
        for picture, drawn in shown:
            pixels |= {colour[:3] for _, colour in picture.getcolors(1 << 20) if colour[3]}
            assert any(label in lines[drawn.region.bottom] for label in LABELS)
        assert pixels == {(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)}


def test_the_times_of_all_candidates_of_a_choice_are_its_time():
    view = RunView()
    for event in preparation():
        view.handle(event)
    (layout,) = (each for each in view.preparation if each.found.startswith("layout"))
    assert layout.ended is not None
    assert layout.ended - layout.began == 20
    assert from_document(to_document(view)).preparation == view.preparation


def test_a_run_that_compiles_its_validation_does_not_prepare_again():
    view = RunView()
    for event in (
        *preparation(),
        step_event(1, START + 90, random.Random(0)),
        PhaseChanged(time=START + 99, phase="compiling"),
    ):
        view.handle(event)
    assert not view.is_preparing
    assert len(view.preparation) == len([each for each in view.preparation if each.began < START + 90])


async def test_a_failure_before_the_first_step_takes_the_place_of_the_checklist(stage):
    failed = RunFinished(time=START + 30, status="failed", exit_code=4, message="no space", hint="free some")
    async with stage.live(MemorySource([*preparation(), failed])) as (app, _):
        assert "the run did not start" in frame(app)
        assert "✓ layout" not in frame(app)


async def test_the_log_can_be_read_meanwhile(stage):
    async with stage.live(MemorySource(preparation())) as (app, pilot):
        await pilot.press("l")
        assert "╭─ log" in frame(app)
        await pilot.press("l")
        assert "✓ layout" in frame(app)


async def test_masks_in_sixteen_colours_have_those_of_classes_alone(stage, tmp_path, monkeypatch):
    tile = np.zeros((64, 64 + SEAM + 64, 3), np.uint8)
    tile[:, :64], tile[:, 64:66] = 200, 128
    tile[::2, 64 + SEAM :] = bright(["background", "tissue"])[1]  # of single pixels, which scaling mixes
    tile[:, -16:] = VOID
    path = pictures.write_data(tmp_path, [tile] * 4)
    source = MemorySource(
        [
            *preparation(),
            ImagesGenerated(time=START + 5, epoch=0, path=path, images=4, seconds=0.1, what="data"),
        ]
    )
    source.run = tmp_path
    async with stage.live(source, (80, 24)) as (app, pilot):
        monkeypatch.setattr(type(app.console), "color_system", "standard")
        await pilot.resize_terminal(120, 35)  # drawn anew
        await pilot.pause()
        first, *_ = app.screen.query("DataPanel > *")
        lines = [first.render_line(y) for y in range(first.size.height - 1)]
        cells = [each.style for line in lines for each in line if each.text.strip()]
        colours = {tuple(colour.triplet) for each in cells for colour in (each.color, each.bgcolor) if colour}
    assert {(85, 255, 255), (170, 170, 170)} <= colours
    seam_and_image = {colour for colour in colours if len({*colour}) == 1}
    assert colours - seam_and_image == {(85, 255, 255)}
