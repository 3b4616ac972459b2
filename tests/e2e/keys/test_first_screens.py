"""Every key of the devices and of the picker, and those that all screens have."""

import re
import time

import pytest

from mptui.config.profiles import ORDER
from tests.e2e.keys.walk import Walk
from tests.e2e.test_terminal import ENDLESS
from tests.tui.events import demo, finished
from tests.tui.test_runs_screen import a_run

pytestmark = pytest.mark.slow

MACHINE = "tests.e2e.keys.machine:main"


def test_every_key_of_the_first_screens(terminal, tmp_path):
    a_run(tmp_path / "runs", "before", events=[*demo()[::4], finished()])
    environ = ENDLESS | {
        "MPTUI_CONFIG_DIR": str(tmp_path / "config"),
        "MPTUI_RUNS_DIR": str(tmp_path / "runs"),
    }
    program = terminal(environ=environ, call=MACHINE)
    walk = Walk(program)
    program.shows("cuda:0  NVIDIA H200")
    devices(walk)
    data_and_runs(walk)
    all_screens(walk)
    program.press(*["down"] * 3)  # to the CPU, which can train
    program.until(walk.gone("NVIDIA H200"), "the last device")
    walk("detection.choose", "enter", "enter start")
    program.press("escape")
    program.shows("enter settings")
    program.press("tab")
    program.shows("leave it")
    walk("place.go", "enter", "enter start")
    picker(walk)
    walk.pressed_all("first screens")
    program.press("q", "x")
    assert program.exit_code() == 0
    assert program.is_restored()


def devices(walk):
    program = walk.program
    walk.help("detection", but={"place", "newest", "list"})
    for number, key in enumerate(("down", "j"), 1):
        walk("detection.later", key, f"cuda:{number}  NVIDIA H200")
    program.press("j")
    program.shows("cuda:3  NVIDIA H200")
    walk("detection.earlier", "up", "cuda:2  NVIDIA H200")
    walk("detection.earlier", "k", "cuda:1  NVIDIA H200")
    for first, last in (("home", "end"), ("g", "G")):
        walk("detection.last", last, "╭─ cpu  ")
        walk("detection.first", first, "cuda:0  NVIDIA H200")
    program.press("j")
    program.shows("cuda:1  NVIDIA H200")
    walk("detection.mark", "space", "marked: cuda:1")
    program.press("space")
    program.until(walk.gone("marked"), "no mark")
    (detected,) = re.findall(r"detected at [\d:]+", program.text)
    program.until(lambda: time.strftime("%H:%M:%S") not in detected, "another second")
    walk("detection.again", "r", walk.gone(detected), lambda: "detected at" in program.text)
    program.send("up", "j", "space", "down", "space", "k", "k", "space")
    program.shows("marked: cuda:0, 1, 2")
    program.send("space", "j", "space", "j", "space", "j", "up", "up")
    program.until(lambda: "marked" not in program.text and "cuda:1  NVIDIA" in program.text, "no mark")


def data_and_runs(walk):
    program = walk.program
    walk("detection.next", "tab", "leave it")
    walk("place.leave", "escape", walk.gone("leave it"))
    program.press("tab")
    program.shows("leave it")
    walk("place.next", "tab", "enter open")
    walk("newest.next", "tab", walk.gone("enter open"))
    walk("detection.previous", "shift+tab", "enter open")
    walk("newest.open", "enter", "✓ completed")
    program.press("escape")
    program.shows("enter open")
    program.press("escape")
    program.shows("enter settings")
    walk("detection.learn", "l", "Range is in the exponent")
    program.press("escape")
    program.shows("enter settings")
    walk("detection.demo", "d", "the run did not start")  # of a device that is not there
    program.press("escape")
    program.shows("enter settings")


def all_screens(walk):
    program = walk.program
    for key in ("f1", "question_mark"):
        walk("app.help", key, "Esc: close")
        walk("app.back", "escape", walk.gone("Esc: close"))
    walk("app.runs", "o", "1 run in")
    walk("app.back", "backspace", walk.gone("1 run in"))
    walk("app.theme", "ctrl+t", walk.recoloured(0, 0))
    walk("app.palette", "colon", "Search for commands")
    program.press("escape")
    program.until(walk.gone("Search for commands"), "the screen below")
    walk("app.palette", "ctrl+p", "Search for commands")
    program.press("next theme")
    program.shows("ctrl+t")
    again = walk.recoloured(0, 0)
    program.press("enter")
    program.until(again, "the next theme")
    files = lambda: {path.suffix for path in program.folder.glob("mptui-detection-*")}  # noqa: E731
    walk("app.share", "S", "written: mptui-detection-", lambda: files() >= {".svg", ".png"})
    before = len(program.output)
    walk("app.suspend", "ctrl+z", "are suspended; to continue: fg")
    program.go_on()
    program.until(lambda: b"\x1b[?1049h" in program.output[before:], "the screen again")
    program.shows("enter settings")
    program.until(walk.gone("written:"), "the notification's end: it would cover the last keys of a help")


def picker(walk):
    program = walk.program
    walk.help("picker", but={"field"})
    for digit, name in reversed([*enumerate(ORDER[:9], 1)]):
        walk("picker.profile", str(digit), f"╭─ {name} ")
    walk("picker.next", "tab", "escape leave it")
    walk("picker.previous", "shift+tab", walk.gone("escape leave it"))
    program.press("tab")
    program.shows("escape leave it")
    program.press("/nowhere")
    walk("field.start", "enter", "can't be started")
    program.press("ctrl+u")
    program.until(walk.gone("can't be started"), "the notification's end")
    walk("field.leave", "escape", walk.gone("escape leave it"))
    program.press("tab")
    program.shows("Images: ")
    walk("field.next", "tab", walk.gone("Images: "))
    program.press("escape")
    program.until(walk.gone("escape leave it"), "the profiles")
    walk("picker.filter", "slash", "words of a setting")
    program.press("training.lr_sc")
    program.shows("/training.lr_sc")
    program.press("escape")
    program.until(walk.gone("/training"), "all settings")
    walk("picker.changed", "c", "changed only")
    program.press("c")
    program.until(walk.gone("changed only"), "all settings")
    walk("picker.all", "a", walk.changed(19))
    edits(walk)
    for answer in ("q", "enter"):
        walk("discard.discard", answer, walk.gone("discard edits?"), "enter settings")
        program.press("enter")
        program.shows("enter start")
        change(walk, "0.25")
        program.press("escape")
        program.shows("discard edits?")
    program.press("escape")
    program.until(walk.gone("discard edits?"), "the picker")
    walk("picker.save", "w", "Name of the profile")
    program.press("mine", "enter")
    program.shows("saved")
    walk("picker.fill", "f", "filled")
    program.send("4", "slash", *"clip_grad", "enter", "c", "c", "backspace", "3", "4")
    program.shows("╭─ debug ")
    walk("picker.start", "enter", "space pause")


def edits(walk):
    """Edit a value, and stay when asked whether to lose it."""
    program = walk.program
    change(walk, "0.5")
    for key, stay in (("q", "escape"), ("ctrl+q", "backspace"), ("ctrl+c", "escape")):
        walk("app.leave", key, "discard edits?")
        walk("discard.stay", stay, walk.gone("discard edits?"))
    program.press("escape")
    program.shows("discard edits?")


def change(walk, value):
    """Give the first setting with these words another value, after one that is cancelled."""
    program = walk.program
    program.send("slash", *"clip_grad", "enter")
    program.shows("/clip_grad")
    walk("picker.edit", "e", "Enter: apply")
    walk("edit.cancel", "escape", walk.gone("Enter: apply"))
    program.send("e", "ctrl+u", *value)
    program.shows("Enter: apply")
    program.shows(value)
    walk("edit.take", "enter", walk.gone("Enter: apply"), "edited")
    program.press("escape")
    program.until(walk.gone("/clip_grad"), "all settings")
