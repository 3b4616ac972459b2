import re
import subprocess
import sys
import threading
import time

import pytest

from mptui.hardware.advice import recommend
from mptui.hardware.devices import describe_machine
from mptui.hardware.nvml import read_gpus
from mptui.hardware.torch_view import TorchView
from mptui.runs.listing.rows import RunList
from mptui.tui.look import DeviceSamplers, MachineScan, scan_machine
from mptui.tui.screens.runs import RunsScreen
from mptui.tui.widgets.device_card import DeviceTable
from tests.hardware.conftest import driver
from tests.hardware.fake_nvml import GIB, h200, t4
from tests.hardware.machines import HOST, MPS, XPU, amd, cpu
from tests.tui.cockpits import cockpit, until
from tests.tui.frames import DEADLINE_S, frame

__all__ = ["driver"]

pytestmark = pytest.mark.usefixtures("uncounted")

ONE, TWO = (f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in (1, 2))


@pytest.fixture
def two_cards(driver):
    """An idle H200, and a T4 that another process uses and that is throttled."""
    nvml = driver(
        h200(uuid=ONE, used=2 * GIB, utilisation=40),
        t4(uuid=TWO, used=6 * GIB, reasons=4, compute=[(4117, 6 * GIB)]),
    )
    nvml.process_names[4117] = "/usr/bin/python"
    return nvml


def test_what_the_first_frame_needs_leaves_out_what_is_slow():
    code = (
        "import sys, mptui.tui.app, mptui.tui.cockpit; "
        "print({'torch', 'torchvision', 'numpy', 'pydantic', 'pynvml', 'psutil'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def test_each_device_has_a_row_and_the_chosen_one_tells_everything(two_cards):
    async with cockpit((80, 24)) as (app, pilot, _):
        await until(app, pilot, "2.0/140")
        first = frame(app)
        await pilot.press("down")
        await until(app, pilot, "python (pid 4117) has 6.0 GiB")
        second = frame(app)
    for words in (
        "cuda:0  NVIDIA H200",
        "Hopper, compute capability 9.0",
        "driver 580 CUDA 13.1",
        "▸   0  H200    ━━───  40 %",
        "no throttling   no other processes",
        "fp16 native   bf16 native   TF32 native",
        "use bf16: native here, without loss scaling",
        "profile fast   batch 64 (a ResNet; 128 to 256 suit it)",
        "  1  T4  ",
        "6.0/15   77/700   34▾  python 4117",
        "in use ◂",
        "2 GPUs",
        "enter settings",
    ):
        assert words in first
    assert "bf16 emulated, slow" in second
    assert "use fp16: native here, with loss scaling" in second
    assert "throttled: power limit   python (pid 4117)" in second


@pytest.mark.slow
async def test_the_freest_card_is_chosen_at_first_and_the_reason_told(two_cards):
    two_cards.gpus[0].used, two_cards.gpus[0].utilisation = 135 * GIB, 93
    async with cockpit((120, 36)) as (app, pilot, _):
        await until(app, pilot, "cuda:1 has the most free capacity")
        await pilot.press("enter")
        await until(app, pilot, "cuda:1  Tesla T4   9.0 GiB free")


@pytest.mark.usefixtures("often_sampled")
async def test_the_recommendation_follows_the_load(two_cards):
    async with cockpit((120, 36)) as (app, pilot, _):
        await until(app, pilot, "2.0/140")
        assert "◂" in _row_of(app, "H200")
        two_cards.gpus[0].used, two_cards.gpus[0].temperature = 138 * GIB, 91
        await until(app, pilot, "138.0/140")
        await until(app, pilot, "77 of 700 W   91 °C")
        assert "◂" in _row_of(app, "T4")
        await pilot.press("down")
        await until(app, pilot, "cuda:1 has the most free capacity of 2 GPUs")
        two_cards.gpus[1].lost = True
        await until(app, pilot, "The GPU is lost")
        assert "◂" in _row_of(app, "H200")


def _row_of(app, name):
    return next(line for line in frame(app).splitlines() if f"  {name}  " in line)


async def test_a_large_terminal_shows_also_what_throttles_and_how_busy_it_was(two_cards):
    async with cockpit((140, 45)) as (app, pilot, _):
        await until(app, pilot, "power limit")
        text = frame(app)
    for words in ("cuda:0  NVIDIA H200", "last 20 s", "throttled by", "power limit", "in use  ◂ recommended"):
        assert words in text
    assert len(text.splitlines()) == 45


async def test_a_machine_without_a_driver_says_so_and_offers_the_cpu():
    async with cockpit() as (app, pilot, _):
        await until(app, pilot, "This machine has no NVIDIA driver.")
        await until(app, pilot, "use ")
        await until(app, pilot, "cpu  ")
        assert "up/down device" not in frame(app)  # there is one


async def test_a_driver_that_hangs_does_not_hold_the_frame(two_cards):
    two_cards.hang_in = "nvmlDeviceGetCount"
    async with cockpit() as (app, pilot, _):
        await until(app, pilot, "detecting devices")
        await pilot.press("question_mark")
        await until(app, pilot, "detect the devices again")
        await pilot.press("escape")
        two_cards.release.set()
        await until(app, pilot, "cuda:0  NVIDIA H200")


async def test_torch_fills_in_its_line_when_it_has_loaded():
    answered = threading.Event()

    def slow_with_torch(with_torch):
        if with_torch:
            answered.wait(60)
        return scan_machine(with_torch)

    async with cockpit(scan=slow_with_torch) as (app, pilot, _):
        await until(app, pilot, "importing torch …")
        await until(app, pilot, "use ")
        answered.set()
        await until(app, pilot, "✓ torch ")


@pytest.mark.parametrize("size", [(80, 24), pytest.param((140, 45), marks=pytest.mark.slow)])
async def test_a_gpu_that_torch_can_not_use_is_shown_with_the_reason_before_a_run_begins(driver, size):
    driver(h200(uuid=ONE))
    torch = TorchView(version="2.14.1+cpu")

    def scan(_with_torch):
        machine = describe_machine(read_gpus(), HOST, torch, {})
        return MachineScan(machine, [recommend(device, 8) for device in machine.devices], 0.0)

    async with cockpit(size, scan=scan) as (app, pilot, _):
        await until(app, pilot, "torch 2.14.1+cpu is a build without CUDA: install torch for")
        await until(app, pilot, "cpu  A C")  # the rows are drawn after the card
        await until(app, pilot, "✗ torch 2.14.1+cpu")  # and what each part says after the rows
        text = frame(app)
        await pilot.press("enter")
        await until(app, pilot, "device can't train")
        await pilot.press("down", "enter")
        await until(app, pilot, "enter start")
    assert re.search(r"▸ +0 +H200 .*can't train", text)
    assert re.search(r"\n\W*cpu .*", text)
    assert "◂" not in text


@pytest.mark.slow
async def test_looking_again_shows_what_is_new_and_keeps_the_choice(two_cards):
    async with cockpit() as (app, pilot, _):
        await until(app, pilot, "2.0/140")
        await pilot.press("down")
        two_cards.gpus[1].name = "Tesla T4 again"
        await pilot.press("r")
        await until(app, pilot, "Tesla T4 again")
        await until(app, pilot, "bf16 emulated, slow")


async def test_enter_goes_on_with_the_chosen_device_and_escape_comes_back(two_cards):
    async with cockpit() as (app, pilot, _):
        await until(app, pilot, "2.0/140")
        await pilot.press("down", "enter")
        await until(app, pilot, "cuda:1  Tesla T4   9.0 GiB free")
        await pilot.press("escape")
        await until(app, pilot, "enter settings")


EIGHT = [f"GPU-00000000-0000-0000-0000-00000000001{n}" for n in range(8)]


@pytest.fixture
def eight_cards(driver):
    """Eight H200, of which each has less free memory than the one before."""
    return driver(*(h200(uuid=uuid, used=(n + 1) * GIB, utilisation=n) for n, uuid in enumerate(EIGHT)))


async def test_a_run_goes_to_all_marked_devices(eight_cards, environ):
    async with cockpit((80, 24), environ=environ) as (app, pilot, runs):
        await until(app, pilot, "1.0/140")
        await pilot.press("space", "down", "down", "space", "down", "space")
        await until(app, pilot, "marked: cuda:0, 2, 3")
        await pilot.press("space", "down", "down", "space", "up")
        await until(app, pilot, "marked: cuda:0, 2, 5")
        await until(app, pilot, "  1 %  ─────   2.0/140")
        text = frame(app)
        await pilot.press("r")
        await until(app, pilot, "marked: cuda:0, 2, 5")
        await pilot.press("enter")
        await until(app, pilot, "cuda:0, 2, 5  NVIDIA H200   134.0 GiB free on each")
        await until(app, pilot, "64 per optimizer step, shared by 3 GPUs")
        await pilot.press("enter")
        await until(app, pilot, "space pause")
    assert re.findall(r"✓ +(\d)  H200", text) == ["0", "2", "5"]
    assert "space mark" in text
    (run,) = runs
    assert run.group == ("--device", "0,2,5")
    assert run.request.flags["hardware.device"][1] == "cuda"


async def test_a_single_marked_device_is_that_of_a_run_in_this_process(eight_cards, environ):
    async with cockpit(environ=environ) as (app, pilot, runs):
        await until(app, pilot, "1.0/140")
        await pilot.press("down", "space", "up", "enter")
        await until(app, pilot, "cuda:1  NVIDIA H200   138.0 GiB free")
        await pilot.press("enter")
        await until(app, pilot, "space pause")
    assert runs[0].group == ()
    assert runs[0].request.flags["hardware.device"][1] == "cuda:1"


async def test_a_batch_with_fewer_samples_than_marked_devices_is_refused(eight_cards, environ):
    async with cockpit(environ={**environ, "MPTUI_TRAINING_BATCH_SIZE": "2"}) as (app, pilot, runs):
        await until(app, pilot, "1.0/140")
        await pilot.press("space", "down", "space", "down", "space", "enter")
        await until(app, pilot, "is shared by 3 processes")
        await pilot.press("enter")
        await until(app, pilot, "can't be started")
    assert runs == []


async def test_the_cpu_can_not_be_marked():
    async with cockpit() as (app, pilot, _):
        await until(app, pilot, "use ")
        await pilot.press("space")
        await until(app, pilot, "the CPU is one device")
        assert "marked: " not in frame(app)


async def test_names_of_hostile_devices_neither_act_nor_break_the_frame(driver):
    driver(h200(uuid=ONE)).gpus[0].name = "\x1b[2J[/x][bold]模型\u202e\n$accent"
    async with cockpit() as (app, pilot, _):
        await until(app, pilot, "[/x][bold]")
        strips = app.screen._compositor.render_strips()
    assert {strip.cell_length for strip in strips} == {80}
    assert not {"\x1b", "\u202e"} & set("".join(strip.text for strip in strips))


@pytest.mark.parametrize(("size", "fits"), [((60, 16), True), ((50, 10), False)])
async def test_small_terminals(two_cards, size, fits):
    async with cockpit(size) as (app, pilot, _):
        await until(app, pilot, "GiB" if fits else "mptui needs 60x16 cells")
        assert ("q leave" in frame(app)) == fits


async def test_a_signal_before_any_run_ends_the_program():
    async with cockpit() as (app, pilot, _):
        app.take_signal(15)
        while app.is_running and app._exit is False:
            await pilot.pause(0.03)
    assert app.exit_code_of_run == 143


def test_the_host_is_not_told_as_the_card_of_another_maker():
    watch = DeviceSamplers()
    watch.follow([amd("gfx942"), XPU, MPS, cpu()])
    try:
        readings = [watch.latest(device) for device in (amd("gfx942"), XPU, MPS)]
        assert all(reading.sample.memory_used is None for reading in readings)
        assert all("No live statistics" in (reading.problem or "") for reading in readings)
        assert watch.latest(cpu()).problem is None
    finally:
        watch.stop()


async def test_enter_while_it_still_looks_goes_on_when_it_has_looked(tmp_path):
    go = threading.Event()

    def slow_scan(_with_torch):
        go.wait(DEADLINE_S)
        return scan_machine(False)

    environ = {"XDG_STATE_HOME": str(tmp_path), "MPTUI_CONFIG_DIR": str(tmp_path)}
    async with cockpit(scan=slow_scan, environ=environ) as (app, pilot, _runs):
        await pilot.press("enter")
        await until(app, pilot, "then the settings")
        go.set()
        await until(app, pilot, "enter start")


async def test_enter_before_another_screen_was_opened_leaves_that_one_open(tmp_path):
    go = threading.Event()

    def slow_scan(_with_torch):
        go.wait(DEADLINE_S)
        return scan_machine(False)

    async with cockpit(scan=slow_scan) as (app, pilot, _runs):
        app.runs = RunList(tmp_path)
        await pilot.press("enter", "o")
        await until(app, pilot, "no runs yet")
        go.set()
        while any(not worker.is_finished for worker in app.workers):
            await pilot.pause(0.01)
        assert isinstance(app.screen, RunsScreen)
        await pilot.press("escape")
        await until(app, pilot, "enter settings")


async def test_devices_found_while_another_screen_is_shown_are_sampled_once_it_is_left(two_cards):
    go = threading.Event()

    def slow_with_torch(with_torch):
        assert not with_torch or go.wait(DEADLINE_S)
        return scan_machine(False)

    async with cockpit(scan=slow_with_torch) as (app, pilot, _runs):
        await until(app, pilot, "2.0/140")
        await pilot.press("enter")
        await until(app, pilot, "enter start")
        go.set()
        while any(not worker.is_finished for worker in app.workers):
            await pilot.pause(0.01)
        assert await stopped(pilot)
        two_cards.gpus[0].used = 9 * GIB
        await pilot.press("escape")
        await until(app, pilot, "9.0/140")


async def stopped(pilot):
    """Wait until no device is sampled."""
    deadline = time.monotonic() + 10
    while any(thread.name == "device-sampler" for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            return False
        await pilot.pause(0.01)
    return True


async def test_a_click_on_a_device_that_is_gone_by_then_chooses_the_last(two_cards):
    async with cockpit() as (app, pilot, _runs):
        await until(app, pilot, "2.0/140")
        del two_cards.gpus[1]
        await pilot.press("r")
        while any(not worker.is_finished for worker in app.workers):
            await pilot.pause(0.01)
        app.screen.query_one(DeviceTable).post_message(DeviceTable.Pressed(2))
        await until(app, pilot, "▸ cpu")


async def test_a_device_that_is_chosen_twice_opens_one_picker(two_cards):
    async with cockpit() as (app, pilot, _runs):
        await until(app, pilot, "2.0/140")
        for _ in range(2):
            app.screen.action_choose()
        await until(app, pilot, "enter start")
        await pilot.press("escape")
        await until(app, pilot, "enter settings")
