"""Real terminals that nobody reads or that have few capabilities, and names with control sequences."""

import os
import re
import signal
import time

import psutil
import pytest
from PIL import Image

from mptui.events import DeviceSample, Step, Suspended
from mptui.tui.terminal.background import PATIENCE_S
from mptui.tui.themes import DARK, LIGHT
from tests import hostile
from tests.cli.test_run import SMALLEST
from tests.e2e.test_terminal import ENDLESS, SHORT, count, start_training
from tests.made.waiting import wait_until

pytestmark = pytest.mark.program

MIB = 1 << 20


def test_a_terminal_that_nobody_reads_costs_the_run_no_step(training):
    program = training(size=(140, 45))
    # many full frames: more than the terminal's buffer holds, so that the screen has to wait
    program.press(*["\x14"] * 6)
    steps, samples = count(program, Step), count(program, DeviceSample)
    wait_until(lambda: count(program, DeviceSample) > samples)
    memory = program.child.memory_info().rss
    wait_until(lambda: count(program, DeviceSample) >= samples + 2 and count(program, Step) >= steps + 20)
    assert program.child.memory_info().rss < memory + 100 * MIB
    program.press("xx")
    program.shows("■ stopped")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


@pytest.mark.parametrize("number", [signal.SIGSTOP, pytest.param(signal.SIGTSTP, marks=pytest.mark.slow)])
def test_a_stop_from_outside_is_nothing_but_a_pause(terminal, number):
    program = terminal()
    program.shows("q leave")
    child = program.child
    for pid in (program.pid, child.pid):
        os.kill(pid, number)
    wait_until(lambda: child.status() == psutil.STATUS_STOPPED)
    before = len(program.output)
    for pid in (program.pid, child.pid):
        os.kill(pid, signal.SIGCONT)
    program.until(lambda: b"\x1b[?1049h" in program.output[before:], "the screen again")
    program.press("?")
    program.shows("detect the devices again")
    program.press("escape")
    program.until(lambda: "detect the devices again" not in program.text, "the screen below")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


@pytest.mark.slow
def test_the_time_that_ctrl_z_took_a_run_is_told_when_it_goes_on(training):
    program = training(size=(140, 45))
    program.press("\x1a")
    wait_until(lambda: program.child.status() == psutil.STATUS_STOPPED)
    stopped = time.monotonic()
    wait_until(lambda: time.monotonic() > stopped + 12)
    for pid in (program.pid, program.child.pid):
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: count(program, Suspended) == 1)
    program.shows("suspended for")
    assert "no sign" not in program.text
    program.press("xx")
    program.shows("■ stopped")
    program.press("q")
    assert program.exit_code() == 0


@pytest.mark.parametrize("in_time", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_light_terminal_that_says_so_in_time_is_met_by_the_light_theme(terminal, in_time):
    ground = "rgb:ffff/ffff/dddd"
    program = terminal(environ={"COLORTERM": "truecolor"}, ground=ground if in_time else "")
    program.shows("q leave")
    if not in_time:
        since = time.monotonic()
        wait_until(lambda: time.monotonic() > since + PATIENCE_S + 1)
        program.tell_ground(ground)
    program.press("?")
    program.shows("detect the devices again")  # the answer was no key
    program.press("escape")
    program.until(lambda: "detect the devices again" not in program.text, "the screen below")
    theme = LIGHT if in_time else DARK
    assert f"#{program.screen.buffer[0][0].bg}" == theme.background
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


@pytest.fixture
def hostile_data(tmp_path):
    """Images whose class and folder names contain control sequences."""
    names = [name.replace("/", "").replace("\x00", "")[:80] for name in hostile.NAMES]
    folder = tmp_path / "".join(names)[:120]
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for copy in range(4):
            Image.new("RGB", (16, 16), (20 * number, 60 * copy, 0)).save(folder / name / f"{copy}.png")
        (folder / name / f"{name}.png").write_bytes(b"no picture")
    return folder


@pytest.mark.slow
def test_hostile_names_of_data_reach_no_terminal(terminal, hostile_data, tmp_path):
    profiles = tmp_path / "config" / "profiles"
    profiles.mkdir(parents=True)
    for name in hostile.NAMES:
        file = name.replace("/", "").replace("\x00", "")[:80]
        (profiles / f"{file}.toml").write_text("[training]\nbatch_size = 8\n", encoding="utf-8")
    environ = {
        "MPTUI_CONFIG_DIR": str(tmp_path / "config"),
        "MPTUI_DATA_PATH": str(hostile_data),
        "MPTUI_DATA_IMAGE_SIZE": "32",
        "MPTUI_DATA_BAD_SAMPLE_BUDGET": "1.0",
        "MPTUI_MODEL_NAME": SMALLEST,
        "MPTUI_TRAINING_BATCH_SIZE": "8",
        "MPTUI_TRAINING_MAX_STEPS": "2",
    }
    program = terminal(environ=environ, size=(120, 36))
    start_training(program)
    program.shows("completed after")  # with a mark of doubt: two steps learn nothing
    program.press("l")
    program.shows("\\x1b[31mred")  # its line depends on the length of the paths
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()
    written = program.output.decode("utf-8", errors="replace")
    # Textual itself sends escape sequences: without them only text remains
    text = re.sub(
        r"\x1b(\[[0-9;:<=>?]*[ -/]*[@-~]|[()][0-9A-B]|[=>PX^_]|\][^\x07\x1b]*(\x07|\x1b\\))", "", written
    )
    assert not hostile.acts(text) - {"\r"}
    assert "52;c" not in "".join(re.findall(r"\x1b\][^\x07\x1b]*", written))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "size"), [({"LANG": "C"}, (60, 16)), ({"NO_COLOR": "1", "TERM": "screen"}, (80, 24))]
)
def test_a_run_is_readable_on_any_terminal(terminal, environ, size):
    program = terminal(environ=SHORT | environ, size=size, call="tests.program:in_its_locale")
    program.shows("workers")
    program.press("enter")
    program.shows("enter start")
    program.press("4", "enter")
    program.shows("completed")
    for words in ("loss", "best", "q leave"):
        program.shows(words)
    assert program.text.isascii() == (environ.get("LANG") == "C")
    assert "NO_COLOR" not in environ or not re.search(rb"\x1b\[([\d;]*;)?[34]8;", program.output)
    program.resize(50, 10)
    program.shows("mptui needs 60x16 cells")
    program.resize(*size)
    program.shows("best")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()


@pytest.mark.slow
def test_keys_of_one_packet_go_where_each_one_leads(terminal):
    program = terminal(environ=SHORT)
    program.shows("workers")
    program.press("enter")
    program.shows("enter start")
    program.press("\t\tunet\t\t\t4")  # to the model, its name, and back to the profiles
    program.shows("╭─ debug")
    program.shows("│ unet ")
    program.press("q")
    assert program.exit_code() == 0


@pytest.mark.slow
def test_a_stopped_run_is_resumed_where_it_stopped(terminal):
    program = terminal(environ=ENDLESS, size=(120, 36))
    start_training(program)
    program.press("xx")
    program.shows("r resume")
    before = count(program, Step)
    program.press("r")
    program.shows("● training")
    wait_until(lambda: count(program, Step) > before)
    program.press("xx")
    program.shows("■ stopped")
    program.press("q")
    assert program.exit_code() == 0
    assert program.is_restored()
    assert "mptui resume runs/" in program.text
