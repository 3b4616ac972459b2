"""The data of the picker in a line and in pictures, the steps of a run, the batch that fills the memory."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from textual.events import Key
from textual.widgets import Input

from mptui.config.profiles import list_profiles
from mptui.config.resolve import data_flags, resolve
from mptui.data.pictures import bright
from mptui.errors import DataError
from mptui.tui.data_preview import preview, preview_here
from mptui.tui.widgets.settings import SampleStrip
from tests.data.images import class_folders, photo
from tests.hardware.machines import GIB, T4, cpu
from tests.tui.cockpits import until
from tests.tui.frames import frame, seen
from tests.tui.pickers import edit, go_to


def asked(where, **settings):
    flags = {f"data.{key}": ("", value) for key, value in {"path": str(where), **settings}.items()}
    return resolve("debug", task="classification", flags=flags, sets=(), environ={})


def looked_at(where, **settings):
    """Look at data in this process; a child does the same."""
    return preview_here(asked(where, **settings))


def test_a_folder_is_counted_and_looked_at_without_a_scan(tmp_path):
    class_folders(tmp_path, {"cats": 10, "dogs": 20})
    Image.new("RGB", (300, 200)).save(tmp_path / "dogs" / "large.jpg")
    (tmp_path / "cats" / "0.png").write_bytes(b"damaged")
    found = looked_at(tmp_path)
    assert (found.train, found.val, found.classes) == (25, 6, 2)
    assert 8 < len(found.pictures) <= 12
    assert max(max(picture.size) for picture in found.pictures) <= 64
    assert found.words == f"25 train · 6 val · 2 classes · {'16 to 200' if found.sides[1] > 16 else 16} px"


def test_images_with_masks_have_no_classes_before_their_scan(tmp_path):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        for number in range(5):
            photo(28, 28).convert("RGB" if name == "images" else "L").save(tmp_path / name / f"{number}.png")
    assert looked_at(tmp_path).words == "4 train · 1 val · 28 px"


def test_damaged_or_missing_data_has_no_preview(tmp_path):
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(DataError):
            looked_at(path)
    path = "/" + "b" * 200_000  # more than a pipe takes at once
    assert preview(asked(path), cpu(), lambda: False) is None
    class_folders(tmp_path, {"cats": 2, "dogs": 2})
    for file in tmp_path.glob("*/*.png"):
        file.write_bytes(b"\x89PNG damaged")
    here, in_a_child = looked_at(tmp_path), preview(asked(tmp_path), cpu(), lambda: False)
    assert (here.words, here.pictures) == ("2 train · 2 val · 2 classes", ())
    assert in_a_child == here


def test_the_sizes_are_those_of_the_set_and_what_is_known_of_it_is_said(tmp_path):
    class_folders(tmp_path, {"frogs": 3, "ships": 40})
    Image.new("RGB", (300, 200)).save(tmp_path / "ships" / "1.png")
    found = looked_at(tmp_path)
    assert found.words == "34 train · 9 val · 2 classes · 16 to 200 px"
    assert found.findings == (
        "unbalanced classes: ships has 32 images, frogs 2: --set data.sampler=balanced, with"
        " training.primary_metric=balanced_accuracy",
    )


def test_masks_are_drawn_over_the_pictures(tmp_path):
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        for number in range(5):
            picture = Image.new("L", (28, 28))
            picture.paste(name == "masks", (0, 14, 28, 28))
            picture.save(tmp_path / name / f"{number}.png")
    picture = looked_at(tmp_path).pictures[0]
    assert picture.getpixel((5, 5)) == (0, 0, 0)
    (colour,) = bright(["background", "1"])[1:2].tolist()
    assert [value / colour[0] for value in colour] == pytest.approx(
        [value / picture.getpixel((5, 20))[0] for value in picture.getpixel((5, 20))], rel=0.03
    )


@pytest.mark.usefixtures("uncounted")
async def test_the_data_is_a_line_and_a_strip_of_pictures(picker, environ, tmp_path):
    class_folders(tmp_path, {"cats": 30, "dogs": 30})
    async with picker(environ) as (app, pilot, screen):
        screen.query_one("#data", Input).value = str(tmp_path)
        await until(app, pilot, "48 train · 12 val · 2 classes · 16 px")
        await until(app, pilot, "6 steps each")
        assert "▀" not in frame(app)  # there is no room beside the settings
        screen.query_one("#data", Input).focus()
        await until(app, pilot, "▀" * 6)
        assert "1 fast" in frame(app)
        await pilot.resize_terminal(140, 45)
        screen.query_one("#profiles").focus()
        while not screen.query_one("#values").region.area:
            await pilot.pause(0.03)
        await until(app, pilot, "▀" * 12)
        screen.query_one("#data", Input).value = str(tmp_path / "gone")
        await until(app, pilot, "✗ no such folder")
        while "▀" in frame(app):
            await pilot.pause(0.03)


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
@pytest.mark.usefixtures("uncounted")
async def test_all_that_is_known_of_the_data_is_read_in_its_field(picker, environ, tmp_path, size):
    class_folders(tmp_path / "train", {"frogs": 3, "ships": 40, "snakes": 1})
    class_folders(tmp_path / "val", {"frogs": 3, "ships": 40, "snakes": 1})
    (tmp_path / "train" / "ships" / "notes.txt").write_text("none")
    async with picker(environ, size) as (app, pilot, screen):
        screen.query_one("#data", Input).value = str(tmp_path)
        await until(app, pilot, "44 train · 44 val · 3 classes")
        screen.query_one("#data", Input).focus()
        await until(app, pilot, "Left out: 1")
        text = " ".join(frame(app).split())
        for part in (
            *("unbalanced classes", "training.primary_metric=balanced_accuracy", "validation images"),
            *("split: folders train and val", "Classes: 3: frogs 3, ships 40, snakes 1", "16 px"),
        ):
            assert part in text
        assert all(finding.rpartition(" ")[2] in text for finding in screen._preview.findings)
        assert len(screen._preview.findings) > 1
        screen.query_one("#profiles").focus()
        while "Left out" in frame(app):
            await pilot.pause(0.03)


DROPPED = {
    "quoted": lambda path: f"'{path}'",
    "double quotes": lambda path: f'"{path}"',
    "escaped": lambda path: str(path).replace(" ", "\\ "),
    "address": lambda path: path.as_uri(),
    "address of this machine": lambda path: path.as_uri().replace("file://", "file://localhost"),
    "the other form of an accent": lambda path: unicodedata.normalize("NFC", str(path)),
    "all of these": lambda path: f"'{Path(unicodedata.normalize('NFC', str(path))).as_uri()}' ",
}


@pytest.mark.parametrize("form", DROPPED)
def test_a_folder_is_found_in_each_form_in_which_it_is_dropped(tmp_path, form):
    folder = tmp_path / unicodedata.normalize("NFD", "my été #1")
    folder.mkdir()
    assert data_flags(DROPPED[form](folder), "--data")["data.path"] == ("--data", str(folder))


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
async def test_any_text_in_the_field_of_the_data_is_looked_at(picker, environ, tmp_path, monkeypatch):
    dropped = tmp_path / unicodedata.normalize("NFD", "my été #1")
    class_folders(dropped, {"cats": 10, "dogs": 10})
    class_folders(tmp_path / "'mine'", {"cats": 15, "dogs": 15})
    class_folders(tmp_path / "mine", {"cats": 3, "dogs": 3})
    (tmp_path / "imagenet100").mkdir()
    (tmp_path / "\x1b[2J").mkdir()
    monkeypatch.chdir(tmp_path)
    async with picker(environ, (100, 30)) as (app, pilot, screen):
        field = screen.query_one("#data", Input)
        for text in ("a" * 20_000, "/" + "b" * 20_000, str(tmp_path / "nothing")):
            field.value = text
            await until(app, pilot, "✗")
            field.value = ""
            await until(app, pilot, "8 classes")
        field.value = DROPPED["all of these"](dropped)
        await until(app, pilot, "16 train · 4 val · 2 classes")
        assert "✗" not in frame(app)
        field.value = f"{tmp_path}/'mine'"  # the one that has quotes in its name
        await until(app, pilot, "24 train · 6 val · 2 classes")
        field.value = "cifar10"
        await until(app, pilot, "✓ cifar10: images in classes")
        field.value = ""
        field.focus()
        await pilot.press(*"~qzx/")  # no prefix of it is a user
        await until(app, pilot, "✗")
        assert screen.picked.data == "~qzx/"
        field.value = ""
        await pilot.press(*"./ima")
        while field._suggestion == "":
            await pilot.pause(0.03)
        await pilot.press("right")
        await pilot.pause()
        assert field.value == "./imagenet100/"


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
async def test_the_screen_and_its_pictures_are_ascii_where_the_terminal_is(picker, environ):
    async with picker(environ, ascii_only=True) as (app, pilot, screen):
        assert frame(app).isascii()
        await pilot.resize_terminal(140, 45)
        await until(app, pilot, "8 classes")
        while not screen.query_one(SampleStrip).region.area:
            await pilot.pause(0.03)
        assert frame(app).isascii()


@pytest.mark.usefixtures("uncounted")
async def test_the_steps_of_an_epoch_and_of_the_run_are_said(picker, environ):
    async with picker(environ, (100, 30), device=cpu()) as (app, pilot, screen):
        await pilot.press("4")
        await until(app, pilot, "epochs     5  64 steps each, 320 in all")  # 128 shapes in batches of 2
        await edit(pilot, screen, "training.max_steps", "7")
        await until(app, pilot, "64 steps each, 7 in all")


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("named_by", ["MPTUI_DATA_PATH", "profile mine"])
async def test_data_that_no_field_names_are_told_as_those_of_the_run(
    picker, environ, tmp_path, monkeypatch, named_by
):
    monkeypatch.chdir(tmp_path)
    folder = "photo\x1b[31ms"
    class_folders(tmp_path / folder, {"cats": 3, "dogs": 3})
    if named_by == "MPTUI_DATA_PATH":
        environ[named_by] = folder
    else:
        profiles = tmp_path / "config" / "profiles"
        profiles.mkdir(parents=True)
        path = folder.replace("\x1b", "\\u001b")
        (profiles / "mine.toml").write_text(f'description = "d"\n[data]\npath = "{path}"\n')
    async with picker(environ, (140, 45), device=cpu()) as (app, pilot, screen):
        if named_by == "profile mine":
            await until(app, pilot, "no data named: shapes")
            names = [info.name for info in list_profiles(environ)]
            screen.query_one("#profiles").highlighted = names.index("mine")
        await until(app, pilot, f"photo\\x1b[31ms ({named_by}): images in classes")
        assert screen.query_one("#data", Input).value == ""
        assert "no data named" not in frame(app)


@pytest.mark.usefixtures("uncounted")
async def test_what_the_data_chooses_is_shown_with_its_reason(picker, environ, tmp_path):
    class_folders(tmp_path, {"cats": 100, "dogs": 100})
    async with picker(environ, (140, 45), device=cpu()) as (app, pilot, screen):
        screen.query_one("#data", Input).value = str(tmp_path)
        await until(app, pilot, "chosen: 160 training images")
        lines = [" ".join(line.replace("│", " ").split()) for line in frame(app).splitlines()]
        assert any("training.batch_size 8 chosen: 160 training images (64)" in line for line in lines)
        assert any("data.image_size 32 chosen" in line for line in lines)
        assert any("training.lr 0.001 default of classification (0.1)" in line for line in lines)
        await edit(pilot, screen, "training.batch_size", "32")
        while "chosen: 160" in frame(app):
            await pilot.pause(0.03)
        assert screen.picked.edits == {"training.batch_size": 32}


@pytest.mark.usefixtures("uncounted")
async def test_the_reason_of_a_choice_is_whole_on_narrow_screens(picker, environ, tmp_path):
    class_folders(tmp_path, {"cats": 100, "dogs": 100})
    async with picker(environ, (80, 24), device=cpu()) as (app, pilot, screen):
        screen.query_one("#data", Input).value = str(tmp_path)
        await until(app, pilot, "batch_size     8            160 images")
        await go_to(pilot, screen, "training.lr")
        await until(app, pilot, "training.lr             0.001        task's default")
        await go_to(pilot, screen, "training.batch_size")
        assert await seen(app, pilot, "training.batch_size (chosen: 160 training images): ")
        await pilot.resize_terminal(60, 16)
        assert await seen(app, pilot, "training.batch_size (chosen: 160 training images): ")


@pytest.mark.usefixtures("recorded")
async def test_the_batch_fills_the_free_memory(picker, environ, tmp_path):
    class_folders(tmp_path, {"cats": 30, "dogs": 30})
    async with picker(environ, device=replace(T4, memory_free=2 * GIB)) as (app, pilot, screen):
        await edit(pilot, screen, "data.image_size", "64")
        app.post_message(Key("f", "f"))  # before it is counted
        await until(app, pilot, "fills 90% of the free memory")
        batch = screen.picked.edits["training.batch_size"]
        assert batch > 64
        assert batch % 8 == 0
        text = " ".join(frame(app).replace("│", " ").split())
        assert f"batch 64 → {batch:,}" in text
        assert "lr 0." in text
        while "fast" not in screen._fits:  # it is counted again
            await pilot.pause(0.03)
        assert screen._fits["fast"].largest // 8 * 8 == batch

        app.clear_notifications()
        screen.query_one("#profiles").focus()
        screen.query_one("#data", Input).value = str(tmp_path)
        await until(app, pilot, "48 train")
        while "fast" not in screen._fits:
            await pilot.pause(0.03)
        await pilot.press("f")
        await until(app, pilot, "all training samples")
        assert screen.picked.edits == {"data.image_size": 64, "training.batch_size": 48}

        screen.query_one("#data", Input).value = ""
        await pilot.press("3")  # memory-limited
        while "memory-limited" not in screen._fits:
            await pilot.pause(0.03)
        await pilot.press("f")
        await until(app, pilot, "memory.budget_gib splits batches")
        assert screen.picked.edits == {"data.image_size": 64, "training.batch_size": 48}
