"""The first screen as the way into the program: the data, what Enter would train, the newest runs."""

import re
import threading
from contextlib import asynccontextmanager
from itertools import groupby

import pytest
from textual.events import Paste

from mptui.config.resolve import resolve
from mptui.hardware.advice import choose_precision, suggested_profile
from mptui.runs.listing.rows import RunList
from mptui.tui.cockpit import Cockpit
from mptui.tui.last import save_last
from mptui.tui.look import scan_machine
from mptui.tui.screens.detection import DetectionScreen
from mptui.tui.screens.live import LiveScreen
from tests.data.images import class_folders
from tests.hardware.machines import cpu
from tests.tui.cockpits import FakeRun, quick_scan, until
from tests.tui.frames import DEADLINE_S, frame
from tests.tui.test_runs_screen import a_run, demo_journal

pytestmark = pytest.mark.usefixtures("uncounted")

SIZES = [(80, 24), (60, 16), (120, 35), (200, 60)]


@asynccontextmanager
async def first_screen(tmp_path, size=(80, 24), scan=quick_scan):
    """The program at its first screen, its folders in `tmp_path`; yields (app, pilot, the started runs)."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "MPTUI_CONFIG_DIR": str(tmp_path)}
    folder, started = tmp_path / "runs", []
    folder.mkdir(exist_ok=True)

    def start(request, _resume, _group):
        started.append(FakeRun(request))
        return started[-1]

    screen = DetectionScreen(scan=scan, runs=RunList(folder), environ=environ)
    app = Cockpit(start, first=screen, environ=environ, runs=folder)
    async with app.run_test(size=size, notifications=True) as pilot:
        yield app, pilot, started


SET = "cell-nuclei-of-2018"


def this_cpu():
    return quick_scan(False).devices[-1]


def about():
    """Return the time of 128 images by the profile for this CPU: 0.1 s each, after 10 s."""
    profile = resolve(suggested_profile(this_cpu()), task=None, flags={}, sets=(), environ={})
    return f"about {(10 + 12.8 * profile.config.training.epochs) / 60:.0f} min"


@pytest.fixture
def with_runs(tmp_path):
    """Two runs of a ResNet-18 on this CPU, of which one has failed, with their time."""
    folder = tmp_path / "runs"
    device = this_cpu()
    spent = {
        "device": device.name,
        "samples_seen": 1000,
        "samples_per_second": 12.0,
        "precision": {"used": choose_precision("auto", device).used},
    }
    spent |= {"time": {"total_s": 110.0, "session_s": 110.0, "first_step_s": 10.0}}
    best = {"epoch": 2, "metric": "acc1", "value": 0.764}
    run = a_run(folder, "newer", journal=demo_journal(), best=best, **spent)
    (run / "run.toml").write_text('[model]\nname = "resnet18"\n[data]\nname = "shapes"\nimage_size = 64\n')
    nothing = {"metric": None, "value": None}
    a_run(folder, "older", age_s=7200, status="failed", model="unet", best=nothing, dataset={"name": SET})
    return tmp_path


@pytest.mark.parametrize("size", SIZES)
async def test_the_first_frame_has_its_last_layout_with_what_a_newcomer_asks_first(with_runs, size):
    go = threading.Event()

    def slow_scan(_with_torch):
        go.wait(DEADLINE_S)
        return scan_machine(False)

    async with first_screen(with_runs, size, slow_scan) as (app, pilot, _):
        await until(app, pilot, "looking at this machine")
        ids = "#left", "#data", "#next", "#recent", "DeviceCard"
        before = [app.screen.query_one(each).region for each in ids]
        go.set()
        await until(app, pilot, f"{about()} on this CPU")
        notes = app.screen.query_one("#notes")
        moved = notes.size.height if notes.display else 0
        after = [app.screen.query_one(each).region for each in ids]
        await until(app, pilot, "train resnet18 on built-in shapes")
        await until(app, pilot, "76.4 %")
        text = frame(app)
    assert [(now.x, now.width) for now in after] == [(each.x, each.width) for each in before]
    assert {now.y - each.y for now, each in zip(after, before, strict=True)} <= {0, moved, moved - 1}
    for words in ("trains image networks", "cpu", "use ", "profile ", "data", "built-in shapes", "completed"):
        assert words in text
    assert "failed" in text
    assert (SET in text) == (size[0] >= 120)
    assert "o all runs" in text


async def test_a_machine_without_a_known_pace_promises_no_time(tmp_path):
    async with first_screen(tmp_path) as (app, pilot, _):
        await until(app, pilot, "train resnet18 on built-in shapes")
        await until(app, pilot, "no runs yet")
        assert "about" not in frame(app)
        assert " min" not in frame(app)


@pytest.mark.parametrize("form", ["{}", "'{}'", "file://{}", "shell"])
async def test_a_folder_dropped_on_the_terminal_is_the_data_of_the_run(tmp_path, form):
    folder = tmp_path / "my flowers"
    class_folders(folder, {"roses": 3, "tulips": 3})
    text = str(folder).replace(" ", "\\ ") if form == "shell" else form.format(folder)
    async with first_screen(tmp_path) as (app, pilot, started):
        await until(app, pilot, "built-in shapes")
        app.post_message(Paste(f"{text} \n"))
        await until(app, pilot, "enter settings of a run on it")
        await until(app, pilot, "train resnet18 on")
        await pilot.press("enter")
        await until(app, pilot, "2 classes")
        await pilot.press("enter")
        await until(app, pilot, "space pause")
    assert started[0].request.flags["data.path"][1] == str(folder)


async def test_data_that_is_not_there_is_told_while_it_is_typed(tmp_path):
    async with first_screen(tmp_path) as (app, pilot, _):
        await until(app, pilot, "train resnet18 on built-in shapes")
        await pilot.press("tab", *"/gone")
        await until(app, pilot, "✗ no such folder: /gone")


async def test_what_was_typed_in_the_picker_is_there_again(tmp_path):
    last = {"profile": "stable", "model": "", "data": "cifar10", "epochs": "3"}
    save_last(last, {"XDG_STATE_HOME": str(tmp_path / "state")})
    async with first_screen(tmp_path) as (app, pilot, _):
        await until(app, pilot, "train resnet18 on cifar10: 3 epochs")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        await pilot.press("tab", "end", *["backspace"] * 7, *"shapes", "escape", "escape")
        await until(app, pilot, "train resnet18 on built-in shapes: 3 epochs")


async def test_a_newest_run_is_opened_and_left_again(with_runs):
    async with first_screen(with_runs) as (app, pilot, _):
        await until(app, pilot, "76.4 %")
        await until(app, pilot, "enter settings")
        await pilot.press("tab", "tab")
        await until(app, pilot, "enter open")
        await pilot.press("enter")
        await until(app, pilot, "train longer")
        assert isinstance(app.screen, LiveScreen)
        await pilot.press("escape")
        await until(app, pilot, "enter open")
        await pilot.press("escape")
        await until(app, pilot, "enter settings")
        await pilot.click("#recent #lines", offset=(9, 0))
        await until(app, pilot, "enter open")
        await pilot.double_click("#recent #lines", offset=(9, 0))
        await until(app, pilot, "train longer")


@pytest.mark.parametrize("size", [(80, 24), (60, 16)])
async def test_the_picker_tells_time_and_memory_before_the_start_and_what_its_fields_keys_do(with_runs, size):
    async with first_screen(with_runs, size) as (app, pilot, _):
        await until(app, pilot, "train resnet18 on")
        await pilot.press("enter")
        await until(app, pilot, about())
        assert "memory" in frame(app)
        assert ("as fast as newer" in frame(app)) == (size[1] > 16)
        await pilot.press("tab")
        await until(app, pilot, "enter start  tab next  escape leave it")
        await pilot.press("tab", *"vgg11")
        await until(app, pilot, "no run of vgg11" if size[1] > 16 else "time not known")


async def test_the_demo_trains_on_built_in_images_whatever_was_typed(tmp_path):
    async with first_screen(tmp_path) as (app, pilot, started):
        await until(app, pilot, "train resnet18 on")
        await pilot.press("tab", *"/gone", "escape", "d")
        await until(app, pilot, "space pause")
    assert started[0].request.flags["data.name"][1] == "shapes"
    assert started[0].request.flags["hardware.device"][1] == cpu().torch_name


async def test_the_exercises_are_a_key_away(tmp_path):
    async with first_screen(tmp_path) as (app, pilot, _):
        await until(app, pilot, "train resnet18 on")
        await pilot.press("l")
        await until(app, pilot, "Range is in the exponent")
        await pilot.press("escape")
        await until(app, pilot, "enter settings")


async def test_a_large_screen_has_the_curves_of_the_run_under_the_cursor(with_runs):
    async with first_screen(with_runs, (200, 60)) as (app, pilot, _):
        await until(app, pilot, "lowest")
        assert re.search(r"newer +completed *\n *╭─ loss", frame(app))
        await pilot.resize_terminal(120, 35)
        await until(app, pilot, "newer")
        assert "╭─ loss" not in frame(app)


@pytest.mark.parametrize("size", [(80, 24), (120, 35), (140, 45), (200, 60)])
async def test_without_runs_their_room_says_how_data_may_lie(tmp_path, size):
    async with first_screen(tmp_path, size) as (app, pilot, _):
        await until(app, pilot, "a folder for each: DATA/cat/1.jpg, DATA/dog/2.jpg")
        text = frame(app)
    assert "no runs yet: enter leads to the first" in text
    assert ("mptui data FOLDER says" in text) == (size[1] > 24)


async def test_a_large_screen_without_runs_has_what_a_newcomer_asks_until_there_is_one(tmp_path):
    async with first_screen(tmp_path, (200, 60)) as (app, pilot, _):
        await until(app, pilot, "docs/glossary.md has the words")
        text = frame(app)
        assert re.search(r"stable +Conservative: FP32", text)
        assert re.search(r"space +pause or continue", text)
        assert re.search(r"evaluate +mptui evaluate RUN", text)
        rows = [len(set(line) - set(" │")) == 0 for line in text.splitlines()]
        assert max(len(list(same)) for blank, same in groupby(rows) if blank) < 12
        a_run(tmp_path / "runs", "first", journal=demo_journal())
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        await pilot.press("escape")
        await until(app, pilot, "lowest")
        assert "words on its screen" not in frame(app)
        assert "a folder for each" not in frame(app)
