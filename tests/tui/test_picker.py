"""The picker: what it tells of profiles, networks and memory, what starts, and what it remembers."""

import json
import threading
from dataclasses import replace

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from mptui.config.profiles import list_profiles
from mptui.engine.memory.tape import UncountableError
from mptui.io.files import state_folder
from mptui.runs.planning.plan import Request
from mptui.tui import work
from mptui.tui.last import load_last, save_last
from mptui.tui.screens.picker import PickerScreen
from mptui.tui.selection import Fit
from tests import hostile
from tests.hardware.machines import GIB, H200, T4
from tests.tui.cockpits import cockpit, until
from tests.tui.frames import frame
from tests.tui.pickers import footprint_of, go_to, write


@pytest.mark.parametrize("digits", ["592", pytest.param("512346789", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("uncounted")
async def test_profiles_have_digits_and_are_told_in_words_and_in_values(picker, environ, digits):
    names = [info.name for info in list_profiles(environ)]
    assert names[:4] == ["fast", "stable", "memory-limited", "debug"]
    async with picker(environ) as (app, pilot, screen):
        first = frame(app)
        for digit in digits:
            await pilot.press(digit)
            assert screen.picked.profile == names[int(digit) - 1]
        text = frame(app)
        for number, name in enumerate(names[:9], 1):
            assert f"{number} {name}" in text
        await pilot.press("1")
        await go_to(pilot, screen, "guards.detect_anomaly")
        await pilot.press("4")
        await until(app, pilot, "detect_anomaly          true         profile (false)")
        debug = frame(app)
        await pilot.press("1")
        await until(app, pilot, "batch      64")
        screen.query_one("#model", Input).value = "unet"  # which decides about the task
        await until(app, pilot, "batch      8")
        screen.query_one("#epochs", Input).focus()
        for key, letter in (("tab", "\t"), ("4", "4")):  # in one go: the key goes where the tab leads
            app.post_message(Key(key, letter))
        await until(app, pilot, "precision  fp32  requested")
        assert screen.picked.profile == "debug"
        assert screen.picked.epochs == ""
    assert "Quick results" in first
    assert "precision  bf16  native here, without loss scaling" in first
    assert "batch      64  64 per optimizer step" in first
    assert "precision  fp32  requested" in debug
    assert "anomaly detection: names the operation" in debug


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
async def test_all_that_is_needed_to_start_is_on_the_screen(picker, environ):
    async with picker(environ, (120, 36)) as (app, pilot, _):
        for size in ((120, 36), (80, 24), (60, 16)):
            await pilot.resize_terminal(*size)
            await until(app, pilot, "no data named")
            text = frame(app)
            for words in (
                "1 fast",
                "╭─ model",
                "╭─ data",
                "╭─ epochs",
                "precision",
                "enter start",
                "q leave",
            ):
                assert words in text, (size, words)
            assert len(text.splitlines()) == size[1]
        await pilot.resize_terminal(50, 10)
        await until(app, pilot, "mptui needs 60x16 cells")


@pytest.mark.usefixtures("uncounted")
async def test_a_profile_that_can_not_be_had_is_greyed_and_says_why(picker, environ, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ["MPTUI_CONFIG_DIR"] = "config"  # a path of fixed length, since the text after it is wrapped
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    (folder / "wrong.toml").write_text('[training]\nbatch_size = "many"\n', encoding="utf-8")
    async with picker(environ) as (app, pilot, screen):
        profiles = screen.query_one("#profiles")
        place = [option.id for option in profiles.options].index("wrong")
        assert "$text-disabled" in str(profiles.options[place].prompt.spans)
        profiles.highlighted = place
        await until(app, pilot, "batch_size =")
        await until(app, pilot, "must be a whole number")
        await pilot.press("enter")
        await until(app, pilot, "can't be started")
    assert not (tmp_path / "state" / "mptui" / "last.json").exists()


@pytest.mark.usefixtures("uncounted")
async def test_all_that_keeps_a_run_from_its_start_is_told_line_by_line(picker, environ):
    environ |= {"MPTUI_TRAINING_LR": "-1", "MPTUI_TRAINING_BATCH_SIZE": "0"}
    async with picker(environ) as (app, pilot, _):
        await pilot.press("w")
        await until(app, pilot, "can't be saved")
        text = frame(app)
    assert "x0a" not in text
    assert text.count("MPTUI_TRAINING_LR") == 2


@pytest.mark.usefixtures("recorded")
async def test_a_run_says_whether_it_fits(picker, environ):
    device = replace(T4, memory_free=3 * GIB // 2)
    async with picker(environ, device=device) as (app, pilot, screen):
        screen.query_one("#model", Input).value = "resnet18"
        await until(app, pilot, "network    resnet18  11.2M weights, images of 224 px")
        await until(app, pilot, "of 1.5 GiB  ✗ too much; batch ")
        assert "precision  fp16  native here, with loss scaling; bf16 is" in frame(app)
        profiles = screen.query_one("#profiles").options
        greyed = [each.id for each in profiles if "$text-disabled" in str(each.prompt.spans)]
        assert "max-batch" in greyed
        assert "debug" not in greyed
        await pilot.press("4")
        await until(app, pilot, "✓ fits, up to batch")
        await until(app, pilot, ", rest ")
        (parts,) = (line for line in frame(app).splitlines() if "working " in line)
        assert ", rest " in parts  # all in one line


def test_the_largest_batch_is_the_same_whether_the_run_fits_or_not():
    def words(batch):
        return Fit("net", 32, footprint_of(batch, 10, weights=200), batch, free=100_000, classes=10).words

    assert words(4) == "✓ fits, up to batch 8,980"
    assert words(20_000) == "✗ too much; batch 8,980 fits"
    assert words(8_980) == "✓ fits, up to batch 8,980"


@pytest.mark.usefixtures("recorded")
async def test_what_is_known_to_be_wrong_does_not_start_and_keys_typed_in_one_go_do(environ):
    wrong = [
        ("model", "vit_b_17", "✗ model.name: no network"),
        ("data", "/nowhere/at/all", "✗ no such folder"),
    ]
    async with cockpit(environ=environ) as (app, pilot, runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        app.screen.query_one("#model", Input).value = "alexnet"
        await until(app, pilot, "network    alexnet")
        for name, text, said in wrong:
            field = app.screen.query_one(f"#{name}", Input)
            app.screen.query_one("#profiles").focus()
            field.value = text
            await until(app, pilot, f"╭─ ✗ {name}")
            await pilot.press("enter")
            await until(app, pilot, "can't be started")
            assert field.has_focus
            await until(app, pilot, said)
            app.clear_notifications()
            field.value = ""
            await until(app, pilot, f"╭─ {name}")
        assert runs == []
        app.screen.query_one("#profiles").focus()
        await pilot.pause()
        for key, letter in (("4", "4"), ("enter", "\r")):
            app.post_message(Key(key, letter))
        await until(app, pilot, "space pause")
    assert [run.request.profile for run in runs] == ["debug"]


@pytest.mark.usefixtures("uncounted")
async def test_enter_in_a_field_starts_what_is_there_and_a_wrong_name_stays_with_its_message(environ):
    async with cockpit(environ=environ) as (app, pilot, runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        typed = [
            ("data", "/nowhere", "✗ no such folder"),
            ("model", "resnet1", "did you mean resnet18"),
        ]
        for name, text, said in typed:
            field = app.screen.query_one(f"#{name}", Input)
            field.focus()
            await pilot.pause()
            app.post_message(Paste(text))  # in one go, before anything is known of it
            app.post_message(Key("enter", "\r"))
            await until(app, pilot, "can't be started")
            await until(app, pilot, said)
            assert (field.value, field.has_focus) == (text, True)
            assert f"╭─ ✗ {name}" in frame(app)
            app.clear_notifications()
            field.value = ""
        assert runs == []
        app.post_message(Paste("resnet18"))
        app.post_message(Key("enter", "\r"))
        await until(app, pilot, "space pause")
    assert [run.request.flags["model.name"][1] for run in runs] == ["resnet18"]


@pytest.mark.usefixtures("uncounted")
async def test_what_is_learnt_while_the_cursor_moves_leaves_it_where_it_is(environ):
    async with cockpit(environ=environ) as (app, pilot, runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        profiles = app.screen.query_one("#profiles")
        for learnt in (app.screen.show_learnt, app.screen.show_selection):
            profiles.highlighted = 3
            learnt()  # before the message of the cursor arrives
            await pilot.pause()
            assert (profiles.highlighted, app.screen.picked.profile) == (3, "debug")
            profiles.highlighted = 0
            await pilot.pause()
        picker = app.screen
        for act in (picker.action_save, picker.action_edit):
            profiles.highlighted = 3
            act()  # before the message of the cursor, too
            assert picker.picked.profile == "debug"
            await pilot.pause()
            await pilot.press("escape")
            profiles.highlighted = 0
            await pilot.pause()
        profiles.focus()
        profiles.highlighted = 3
        app.screen.show_learnt()
        await pilot.press("enter")
        await until(app, pilot, "space pause")
    assert [run.request.profile for run in runs] == ["debug"]


@pytest.mark.usefixtures("uncounted")
async def test_what_was_picked_is_what_is_asked_for(environ):
    environ |= {"MPTUI_TRAINING_MAX_STEPS": "7"}
    async with cockpit(environ=environ) as (app, pilot, runs):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        await pilot.press("4")
        await go_to(pilot, app.screen, "training.seed")
        await pilot.press("e")
        await write(pilot, "3")
        await pilot.press("enter", "shift+tab", *"2", "shift+tab")  # the last field before the settings
        await write(pilot, "resnet18")
        await pilot.press("shift+tab", *"shapes", "enter")
        await until(app, pilot, "space pause")
        await pilot.press("x", "x")
        await pilot.pause()
    assert [run.request for run in runs] == [
        Request(
            "debug",
            {
                "hardware.device": ("picked", "cpu"),
                "model.name": ("picked", "resnet18"),
                "data.path": ("picked", None),
                "data.name": ("picked", "shapes"),
                "training.epochs": ("picked", 2),
                "training.seed": ("edited", 3),
            },
            (),
            environ,
        )
    ]
    assert runs[0].sent == [("stop", None)]
    picked = {"profile": "debug", "model": "resnet18", "data": "shapes", "epochs": "2"}
    assert load_last(environ) == picked | {"charts": ""}


def test_the_last_choice_is_there_again(environ):
    save_last({"profile": "stable", "model": "vit_b_16", "data": "cifar10", "epochs": "3"}, environ)
    picked = PickerScreen(H200, environ=environ).picked
    assert (picked.profile, picked.model, picked.data, picked.epochs) == (
        "stable",
        "vit_b_16",
        "cifar10",
        "3",
    )


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"profile": 3, "data": null}', "\x00", '{"profile": "gone"}']
)
def test_a_damaged_memory_is_no_memory(environ, content):
    folder = state_folder(environ)
    folder.mkdir(parents=True)
    (folder / "last.json").write_text(content, encoding="utf-8")
    picked = PickerScreen(H200, environ=environ).picked
    assert picked.profile == "fast"
    assert (picked.model, picked.data, picked.epochs) == ("", "", "")


@pytest.mark.slow
@pytest.mark.usefixtures("uncounted")
async def test_hostile_texts_neither_act_nor_break_the_frame(picker, environ, tmp_path):
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    files = [name.replace("/", "").replace("\x00", "")[:200] for name in hostile.NAMES]
    for file, name in zip(files, hostile.NAMES, strict=True):
        (folder / f"{file}.toml").write_text(f"description = {json.dumps(name)}\n", encoding="utf-8")
    save_last(dict.fromkeys(("profile", "model", "data", "epochs"), "".join(hostile.NAMES)), environ)
    frames = []
    async with picker(environ) as (app, pilot, screen):
        screen.query_one("#profiles").focus()
        for keys in ("end", *["up"] * len(files), "tab", "end", "e", "escape", "w", "escape", "enter"):
            await pilot.press(keys)
            frames.append(frame(app))
        assert app.screen is screen
    for each in frames:
        assert not hostile.acts(each)
        assert not hostile.overflows(each, 80)


async def test_no_more_memory_is_counted_while_a_run_trains(environ, monkeypatch):
    counted, free = [], threading.Event()

    def waiting(config, *_, **__):
        counted.append(config)
        free.wait()
        raise UncountableError

    monkeypatch.setattr("mptui.engine.memory.ledger.footprint", waiting)
    async with cockpit(environ=environ) as (app, pilot, _):
        await until(app, pilot, "use ")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        while not counted:
            await pilot.pause(0.03)
        await pilot.press("enter")
        await until(app, pilot, "x stop")  # the live screen
        begun = len(counted)  # once, and again if the classes of the data have become known since
        free.set()
        assert work.wait(60)
        assert len(counted) == begun <= 2
        app.pop_screen()
        while len(counted) < len(list_profiles(environ)):
            await pilot.pause(0.03)


def test_the_fields_begin_with_what_a_variable_names(tmp_path):
    places = {"XDG_STATE_HOME": str(tmp_path)}
    save_last({"data": "before", "model": "resnet18"}, places)
    named = {"MPTUI_DATA_PATH": "photos", "MPTUI_MODEL_NAME": "unet"}
    found = load_last(places | named)
    assert (found["data"], found["model"]) == ("photos", "unet")
    save_last({"epochs": "3"}, places | named)
    assert load_last(places)["data"] == "before"
    # no field can show a control character, and its escaped text is another folder
    assert load_last(places | {"MPTUI_DATA_PATH": "photos\x1b[31m"})["data"] == ""
    # a set and its folder: no field can name both
    assert load_last(places | named | {"MPTUI_DATA_NAME": "cifar10"})["data"] == "before"
