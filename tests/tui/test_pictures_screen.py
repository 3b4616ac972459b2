"""The screen of the pictures of validations."""

import json
import re

import numpy as np
import pytest
from textual.events import MouseScrollDown
from textual.widgets import Static

from mptui.data.pictures import EXTRA, HIT, MISSED, ClassShare
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
        assert re.search(r"✗ dog [━╸─]+ +75 %", text)
        assert re.search(r"✓ dog [━╸─]+ +50 %", text)
        assert "7.png" in text
        assert "▀" * 10 in text
        assert " random " in text
        assert "by class" not in text
        await pilot.press("tab")
        assert await seen(app, pilot, "random · 1 of 1")
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


def shares(*pairs):
    return [ClassShare(number, probability) for number, probability in pairs]


CLASSES = ("cat", "dog", "owl", "fox")
UNSURE = shares((1, 0.5), (0, 0.3), (3, 0.1))


@pytest.mark.parametrize("size", [(60, 16), pytest.param(SIZES[0], marks=pytest.mark.slow), (120, 35)])
async def test_the_three_most_probable_classes_are_bars_and_the_right_one_has_a_sign(stage, tmp_path, size):
    groups = {"worst": [sample(7, RED, top=UNSURE), sample(8, RED, truth=2, top=UNSURE)]}
    async with stage.live(written(tmp_path, groups=groups, classes=CLASSES), size) as (app, pilot):
        lines = (await opened(app, pilot)).splitlines()
        first = next(number for number, line in enumerate(lines) if "cat  7.png" in line)
        assert "owl  8.png" in lines[first]
        bars = [re.findall(r"([✓✗ ]) (\w+) [━╸─]+ +(\d+) %", line) for line in lines[first + 1 : first + 4]]
        assert bars == [
            [("✗", "dog", "50")] * 2,
            [("✓", "cat", "30"), (" ", "cat", "30")],
            [(" ", "fox", "10")] * 2,
        ]
        long, short = (line.count("━") for line in (lines[first + 1], lines[first + 3]))
        assert long > short


async def test_each_class_has_a_row_of_its_worst(stage, tmp_path):
    of_dogs = [sample(number, BLUE, truth=1) for number in (3, 9)]
    groups = {"by class": [*of_dogs, *(sample(number, RED) for number in (7, 2, 4, 5))]}
    async with stage.live(written(tmp_path, groups=groups), (120, 35)) as (app, pilot):
        lines = (await opened(app, pilot)).splitlines()
        assert "by class · 1–2 of 2 classes, the worst of each" in lines[2]
        rows = [line.strip("│ ").split() for line in lines]
        dogs, cats = rows.index(["dog"]), rows.index(["cat"])
        assert (
            dogs
            < rows.index(["▸", "3.png", "9.png"])
            < cats
            < rows.index(["7.png", "2.png", "4.png", "5.png"])
        )
        await pilot.press("right", "down", "right")
        assert any("▸ 4.png" in line for line in frame(app).splitlines())


async def test_images_are_searched_by_class_and_file(stage, tmp_path):
    groups = {
        "worst": [sample(7, RED), sample(3, BLUE, truth=1), sample(9, BLUE, truth=1)],
        "random": [sample(1, RED)],
    }
    async with stage.live(written(tmp_path, groups=groups), (80, 24)) as (app, pilot):
        await opened(app, pilot)
        await pilot.press("slash", *"DOG", "enter")
        assert await seen(app, pilot, "▸ dog  3.png")
        assert " /dog" in frame(app)
        assert "7.png" not in frame(app)
        await pilot.press("n")
        assert "▸ dog  9.png" in frame(app)
        await pilot.press("N")
        assert "▸ dog  3.png" in frame(app)
        await pilot.press("tab")
        assert "no image has these words: esc shows all" in frame(app)
        await pilot.press("escape")
        assert "1.png" in frame(app)
        assert app.screen.where == "pictures"


async def test_the_mouse_chooses_one_and_shows_it_large(stage, tmp_path):
    groups = {"worst": [sample(number, RED, file=f"{number}.png") for number in range(12)]}
    async with stage.live(written(tmp_path, groups=groups), (120, 35)) as (app, pilot):
        await opened(app, pilot)
        assert "▸ cat  0.png" in frame(app)
        await pilot.click("SamplesPanel", offset=(60, 20))
        assert await seen(app, pilot, "▸ cat  6.png")
        panel = app.screen.query_one("SamplesPanel")
        panel.post_message(MouseScrollDown(panel, 60, 20, 0, 1, 0, False, False, False, 60, 20))
        assert await seen(app, pilot, "▸ cat  10.png")
        await pilot.click("SamplesPanel", offset=(5, 20), times=2)
        assert await seen(app, pilot, "worst · 9 of 12")
        await pilot.click("SamplesPanel", offset=(5, 20), times=2)
        assert await seen(app, pilot, "▸ cat  8.png")


async def test_one_is_shown_large_and_the_name_of_its_file_can_be_copied(stage, tmp_path, monkeypatch):
    name = "data/a folder/" + "x" * 60 + "/8.png"
    groups = {"worst": [sample(7, RED), sample(8, BLUE, file=name, top=UNSURE), sample(9, RED)]}
    async with stage.live(written(tmp_path, groups=groups, classes=CLASSES), SIZES[0]) as (app, pilot):
        copied: list[str] = []
        monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
        await opened(app, pilot)
        await pilot.press("right", "enter")
        text = frame(app)
        assert "worst · 2 of 3 · epoch 3" in text
        assert "7.png" not in text
        beside = [line.rpartition("▀")[2].strip("│ ") for line in text.splitlines()]
        assert name in "".join(beside)
        await pilot.press("c")
        assert copied == [name]
        await pilot.press("right")
        assert "worst · 3 of 3" in frame(app)
        await pilot.press("escape")
        assert "worst · 1–3 of 3" in frame(app)
        await pilot.press("c", "escape")
        assert copied == [name, "data/9.png"]
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
            assert await seen(app, pilot, "40 of 40")
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
        assert "▕██▏ hit  ▕██▏ missed  ▕██▏ extra" in text  # framed: one is the ground of a theme
        assert "25.0 % wrong" in text
        assert "▕██▏ tissue" in text
        assert "▕██▏ ignored" in text


async def test_masks_in_sixteen_colours_have_those_of_their_legend_alone(stage, tmp_path, monkeypatch):
    pixels = np.zeros((64, 262, 3), np.uint8)  # of single pixels, which scaling mixes
    for part, colour in enumerate(((200, 200, 200), (86, 180, 233), (86, 180, 233), HIT)):
        pixels[::2, 66 * part : 66 * part + 64] = colour
    pixels[::2, 218:230], pixels[::2, 230:240] = MISSED, EXTRA
    masks = sample(4, RED, pixels_HWC=pixels, truth=None, predicted=None, probability=None, error=0.25)
    shown = written(tmp_path, groups={"worst": [masks] * 4}, classes=("background", "tissue"))
    async with stage.live(shown, (80, 24)) as (app, pilot):
        monkeypatch.setattr(type(app.console), "color_system", "standard")
        await opened(app, pilot)
        (drawn,) = app.screen.query("SamplesPanel > *")
        lines = [drawn.render_line(y) for y in range(drawn.size.height - 1)]  # the last may be half a line

        def colours(first, end):
            parts = (each for line in lines for each in line.crop(first, end))
            cells = [each.style for each in parts if each.text.strip()]
            return {tuple(colour.triplet) for each in cells for colour in (each.color, each.bgcolor)}

        width = drawn.size.width
        assert colours(width // 4 + 2, width // 2 - 2) <= {(0, 0, 0), (85, 255, 255)}
        assert colours(3 * width // 4 + 2, width) == {(0, 0, 0), (85, 85, 255), (170, 85, 0), (255, 255, 255)}


async def test_a_legend_without_colours_has_the_signs_of_the_pictures(stage, tmp_path, monkeypatch):
    masks = sample(4, RED, (64, 262), truth=None, predicted=None, probability=None, error=0.25)
    shown = written(tmp_path, groups={"worst": [masks] * 4}, classes=("background", "tissue"))
    async with stage.live(shown, (120, 35)) as (app, pilot):
        monkeypatch.setattr(app, "no_color", True)
        text = await opened(app, pilot)
    assert "[--] hit  [==] missed  [@@] extra" in text


@pytest.mark.parametrize(("size", "lines"), [((80, 24), 15), ((120, 35), 26)])
async def test_masks_take_the_whole_screen_two_parts_at_a_time(stage, tmp_path, size, lines):
    masks = sample(4, RED, (64, 262), truth=None, predicted=None, probability=None, error=0.25)
    shown = written(tmp_path, groups={"worst": [masks] * 4}, classes=("background", "tissue"))
    async with stage.live(shown, size) as (app, pilot):
        await opened(app, pilot)
        seen_parts, heights = [], []
        for _ in range(3):
            await pilot.press("enter")
            await pilot.pause()
            drawn = frame(app).splitlines()
            seen_parts.append(drawn[3].strip("│ ").split())
            heights.append(sum("▀▀" in line for line in drawn))
        assert seen_parts == [["image", "errors"], ["truth", "prediction"], seen_parts[2]]
        assert seen_parts[2][:4] == ["image", "truth", "prediction", "errors"]
        assert heights[0] == heights[1] == lines
        await pilot.press("enter", "escape")
        await pilot.pause()
        assert drawn == frame(app).splitlines()


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
        assert await seen(app, pilot, "random · 1 of 1 · epoch 3")
        worst = {"worst": [sample(7, RED)], "random": []}
        for epoch, groups, title in ((4, worst, "worst · 1 of 1"), (5, None, "random · 1 of 1")):
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


async def test_terminals_with_graphics_get_the_same_rows_in_pixels(stage, tmp_path, monkeypatch):
    shown = []

    def widget(picture):
        shown.append((picture, Static()))
        return shown[-1][1]

    def colours(picture):
        return {colour[:3] for _, colour in picture.getcolors(1 << 20) if colour[3]}

    monkeypatch.setattr(panels, "graphics_of", lambda app: Graphics(widget, (10, 20)))
    groups = {"worst": [sample(number, RED if number < 4 else BLUE) for number in range(32)]}
    async with stage.live(written(tmp_path, groups=groups), (120, 35)) as (app, pilot):
        text = await opened(app, pilot)
        assert "▀" not in text
        assert "worst · 1–8 of 32" in text
        assert [colours(picture) for picture, _ in shown] == [{RED}, {BLUE}]
        lines = text.splitlines()
        for (picture, drawn), name in zip(shown, ("0.png", "4.png"), strict=True):
            words = next(number for number, line in enumerate(lines) if f" {name}" in line)
            assert drawn.region.bottom == words  # the words of a row are just below its pictures
            assert picture.height == 20 * drawn.region.height
        await pilot.press("right")  # the same pictures
        assert len(shown) == 2
        await pilot.press("pagedown")
        assert await seen(app, pilot, "25–32 of 32")
        assert [colours(picture) for picture, _ in shown[2:]] == [{BLUE}, {BLUE}]
        await pilot.press("enter")
        await pilot.pause()
        assert shown[-1][1].region.height > 20
        assert len(app.screen.query("SamplesPanel > *")) == 1


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
