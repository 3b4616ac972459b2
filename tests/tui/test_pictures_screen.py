"""The screen of the pictures of validations."""

import json

import numpy as np
import pytest
from textual.widgets import Static

from mptui.events import ImagesGenerated, to_record
from mptui.runs.store.files import Records
from mptui.runs.store.journal import NAME as JOURNAL
from mptui.tui.terminal.graphics import Graphics
from mptui.tui.widgets import panels
from tests.runs.made_pictures import BLUE, RED, pictures, sample
from tests.tui.events import START, MemorySource, demo, run_started
from tests.tui.frames import frame, put_below, seen

SIZES = [(80, 24), (140, 45)]


def made(path, **changes):
    values = {"time": START + 5, "step": 9, "epoch": 3, "path": path, "images": 4, "seconds": 0.5}
    return ImagesGenerated(**{**values, "what": "predictions", **changes})


def source(run, *events):
    shown = MemorySource([run_started(directory=str(run)), *events])
    shown.run = run
    return shown


def written(run, **changes):
    records = Records(run)
    path = records.write_pictures(pictures(3, 9, **changes))
    records.close()
    return source(run, made(path))


async def opened(app, pilot):
    await pilot.press("i")
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()
    return frame(app)


@pytest.mark.parametrize("size", [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.slow)])
async def test_the_tabs_show_what_is_predicted_of_each_image(stage, tmp_path, size):
    groups = {
        "worst": [sample(7, RED), sample(3, BLUE, truth=1, probability=0.5)],
        "random": [sample(1, BLUE, file="x/photo.jpg")],
        "by class": [],
    }
    async with stage.live(written(tmp_path, groups=groups), size) as (app, pilot):
        text = await opened(app, pilot)
        assert "worst · 1–2 of 2 · epoch 3" in text
        assert "→ 75 % dog" in text
        assert "= 50 % dog" in text
        assert "7.png" in text
        assert "▀" * 10 in text
        assert " random " in text
        assert "by class" not in text
        await pilot.press("tab")
        assert await seen(app, pilot, "random · 1–1 of 1")
        assert "photo.jpg" in frame(app)
        await pilot.press("tab")
        assert await seen(app, pilot, "confusion · rows are true classes · epoch 3")
        row = next(line for line in frame(app).splitlines() if "0 cat" in line)
        assert row.strip("│ ").split() == ["0", "cat", "5", "2"]
        await pilot.press("tab")
        assert await seen(app, pilot, "worst · 1–2")
        await pilot.press("i")
        await pilot.pause()
        assert "worst · 1–2" not in frame(app)
        assert app.screen.where == "live"


@pytest.mark.slow
async def test_rows_that_do_not_fit_are_scrolled_to(stage, tmp_path):
    groups = {"worst": [sample(number, RED, file=f"{number}.png") for number in range(40)]}
    async with stage.live(written(tmp_path, groups=groups), SIZES[0]) as (app, pilot):
        await opened(app, pilot)
        for size in SIZES:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert " 39.png" not in frame(app)
            await pilot.press("down", "pagedown", "pagedown", "pagedown")
            assert await seen(app, pilot, "–40 of 40")
            assert "39.png" in frame(app)
            await pilot.press("pageup", "pageup", "pageup", "pageup")
            assert await seen(app, pilot, "worst · 1–")


async def test_masks_have_a_legend(stage, tmp_path):
    masks = sample(4, RED, (64, 262), truth=None, predicted=None, probability=None, error=0.25)
    shown = written(tmp_path, groups={"worst": [masks] * 4}, classes=("background", "tissue"))
    async with stage.live(shown, (120, 35)) as (app, pilot):
        text = await opened(app, pilot)
        heading = next(line for line in text.splitlines() if " prediction " in line)
        assert heading.strip("│ ").split() == ["image", "truth", "prediction", "errors"]
        assert text.count("25.0 % wrong") == 2
        assert "██ hit  ██ missed  ██ extra" in text
        assert "25.0 % wrong" in text
        assert "██ tissue" in text
        assert "██ ignored" in text


async def test_the_columns_of_a_matrix_have_names_where_they_fit(stage, tmp_path):
    async with stage.live(written(tmp_path, classes=("airplane", "automobile")), (140, 45)) as (app, pilot):
        await opened(app, pilot)
        await pilot.press("shift+tab")
        assert await seen(app, pilot, "   airplane automobile")


async def test_of_many_classes_the_pairs_that_are_confused_most_are_listed(stage, tmp_path):
    confusion = np.diag(np.full(1000, 40))
    confusion[17, 940], confusion[3, 4] = 160, 8
    shown = written(tmp_path, classes=[f"class {n}" for n in range(1000)], confusion=confusion)
    async with stage.live(shown) as (app, pilot):
        await opened(app, pilot)
        await pilot.press("shift+tab")
        assert await seen(app, pilot, "of true")
        lines = [line.strip("│ ").split() for line in frame(app).splitlines()]
        first = next(number for number, line in enumerate(lines) if line[:1] == ["true"])
        assert lines[first + 1] == ["class", "17", "class", "940", "160", "80.0", "%"]
        assert lines[first + 2] == ["class", "3", "class", "4", "8", "16.7", "%"]


async def test_what_is_not_there_is_said(stage, tmp_path):
    async with stage.live(source(tmp_path)) as (app, pilot):
        live = app.screen
        assert "no pictures yet" in await opened(app, pilot)
        await pilot.press("i")
        live.follow(source(tmp_path, made("predictions/epoch-0003-step-9.png")))
        assert "the pictures of epoch 3 are not on disk" in await opened(app, pilot)
        await pilot.press("i")
        live.follow(written(tmp_path))
        (tmp_path / "predictions" / "epoch-0003-step-9.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
        assert "the pictures of epoch 3 are not on disk" in await opened(app, pilot)


async def test_new_pictures_replace_those_on_the_screen(stage, tmp_path):
    shown = written(tmp_path)
    async with stage.live(shown) as (app, pilot):
        await opened(app, pilot)
        records = Records(tmp_path)
        path = records.write_pictures(pictures(4, 12))
        records.close()
        shown.waiting.append(made(path, step=12, epoch=4))
        assert await seen(app, pilot, "epoch 4")


async def test_a_chosen_tab_comes_back_with_its_pictures(stage, tmp_path):
    shown = written(tmp_path)
    async with stage.live(shown) as (app, pilot):
        await opened(app, pilot)
        await pilot.press("tab")
        assert await seen(app, pilot, "random · 1–1 of 1 · epoch 3")
        worst = {"worst": [sample(7, RED)], "random": []}
        for epoch, groups, title in ((4, worst, "worst · 1–1 of 1"), (5, None, "random · 1–1 of 1")):
            records = Records(tmp_path)
            path = records.write_pictures(pictures(epoch, epoch, groups=groups))
            records.close()
            await put_below(app, pilot, made(path, step=epoch, epoch=epoch))
            assert await seen(app, pilot, f"{title} · epoch {epoch}")


async def test_without_half_blocks_brightness_is_in_characters(stage, tmp_path):
    async with stage.live(written(tmp_path), ascii_only=True) as (app, pilot):
        text = await opened(app, pilot)
        assert "▀" not in text
        assert "::::" in text


async def test_images_that_the_network_has_made_are_shown_whole(stage, tmp_path):
    (tmp_path / "samples").mkdir()
    records = Records(tmp_path)
    path = records.write_images(2, np.full((4, 8, 8, 3), 255, np.uint8), keep=2)
    records.close()
    async with stage.live(source(tmp_path, made(path, epoch=2, what="samples"))) as (app, pilot):
        text = await opened(app, pilot)
        assert "images of epoch 2" in text
        assert "▀" * 10 in text


async def test_terminals_with_graphics_get_a_part_of_the_file_in_pixels(stage, tmp_path, monkeypatch):
    shown = []

    def widget(picture):
        shown.append(picture)
        return Static()

    monkeypatch.setattr(panels, "graphics_of", lambda app: Graphics(widget, (10, 20)))
    groups = {"worst": [sample(number, RED if number < 8 else BLUE) for number in range(32)]}
    async with stage.live(written(tmp_path, groups=groups), (100, 24)) as (app, pilot):
        assert "▀" not in await opened(app, pilot)
        assert "worst · 1–24 of 32" in frame(app)
        assert (*RED, 255) in dict(map(reversed, shown[-1].getcolors(1 << 20)))
        await pilot.press("pagedown")
        assert await seen(app, pilot, "9–32 of 32")
        assert (*RED, 255) not in dict(map(reversed, shown[-1].getcolors(1 << 20)))


async def test_an_earlier_moment_has_its_own_pictures(stage, tmp_path):
    records = Records(tmp_path)
    paths = [records.write_pictures(pictures(epoch, 10 * epoch)) for epoch in (3, 9)]
    records.close()
    events = demo()
    for path, epoch in zip(paths, (3, 9), strict=True):
        place = next(n for n, event in enumerate(events) if getattr(event, "epoch", 0) > epoch)
        at = {"time": events[place].time, "step": events[place].step, "epoch": epoch}
        events.insert(place, made(path, **at))
    lines = [json.dumps(to_record(event), separators=(",", ":")) + "\n" for event in events]
    (tmp_path / JOURNAL).write_text("".join(lines))
    source = MemorySource(events)
    source.run = tmp_path
    async with stage.live(source) as (app, pilot):
        assert "epoch 9" in await opened(app, pilot)
        await pilot.press("escape", *["pageup"] * 6)
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "epoch 3" in await opened(app, pilot)
