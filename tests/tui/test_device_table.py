"""The table of devices on the first screen: eight GPUs at 80 columns, and what each row tells."""

import os

import pynvml
import pytest

from mptui.events import DeviceProcess, DeviceSample
from mptui.tui.look import HISTORY, DeviceSamplers
from mptui.tui.widgets.device_card import DeviceRow, DeviceTable, short_name, table_lines
from tests.hardware.conftest import driver
from tests.hardware.fake_nvml import GIB, FakeGpu
from tests.hardware.machines import card
from tests.tui.cockpits import cockpit, until
from tests.tui.frames import frame

__all__ = ["driver"]

UUIDS = [f"GPU-00000000-0000-0000-0000-0000000000{n:02}" for n in range(24)]


def h100(number: int, **changes) -> FakeGpu:
    return FakeGpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, uuid=UUIDS[number], **changes)


@pytest.fixture
def eight(driver):
    """Eight H100: the first two are used by others, the third is throttled by heat, the others are free."""
    nvml = driver(
        h100(0, used=47 * GIB, utilisation=93, power_mw=640_000, compute=[(8123, 46 * GIB)]),
        h100(1, used=71 * GIB, utilisation=100, power_mw=698_000, compute=[(8124, 40 * GIB), (8125, GIB)]),
        h100(2, temperature=88, reasons=pynvml.nvmlClocksEventReasonSwThermalSlowdown),
        *(h100(n) for n in range(3, 8)),
    )
    nvml.process_names |= {8123: "/usr/bin/python3.11", 8124: "/opt/\x1b[2Jevil\u202e", 8125: "x"}
    return nvml


def row_of(text: str, label: str) -> str:
    """The row of a device, without its cursor and mark."""
    rows = [line[1:].lstrip("▸✓ ") for line in text.splitlines()]
    return next(line for line in rows if line.startswith(f"{label}  "))


async def test_eight_devices_and_the_chosen_one_are_read_at_once_at_80_columns(eight):
    async with cockpit((80, 24)) as (app, pilot, _):
        await until(app, pilot, "47.0/80")
        await until(app, pilot, "100 %")
        text = frame(app)
        strips = app.screen._compositor.render_strips()
    assert {strip.cell_length for strip in strips} == {80}
    rows = [row_of(text, str(n)) for n in range(8)]
    assert len({row.index("/80 ") for row in rows}) == 1
    assert " 93 %" in rows[0]
    assert "640/700   34" in rows[0]
    assert rows[0].rstrip().endswith("python3.11 8123")
    assert " 8124 +1" in rows[1]
    assert rows[2].rstrip().endswith("88▾  free")  # throttled: the next is as free
    assert rows[3].rstrip().endswith("free  ◂ recommended")
    assert [row.rstrip().endswith("free") for row in rows[4:]] == [True] * 4
    sums = row_of(text, "8 GPUs")
    assert " 24 %" in sums
    assert "118/640" in sums
    assert sums.rstrip().endswith("6 free")
    for words in (
        "cuda:3  NVIDIA H100 80GB HBM3",
        "Hopper, compute capability 9.0",
        "no throttling   no other processes",
        "fp16 native   bf16 native",
        "use bf16",
        "profile fast",
    ):
        assert words in text


@pytest.mark.parametrize(
    "size",
    [(60, 16), *(pytest.param(size, marks=pytest.mark.slow) for size in [(80, 24), (100, 30), (200, 60)])],
)
async def test_each_device_has_a_row_in_each_size(eight, size):
    async with cockpit(size) as (app, pilot, _):
        await until(app, pilot, "47.0/80")
        await until(app, pilot, "use bf16")
        await until(app, pilot, "  cpu  ")
        text = frame(app)
    assert all(row_of(text, label) for label in [*map(str, range(8)), "cpu"])
    assert not any("\x1b" in line or "\u202e" in line for line in text.splitlines())


@pytest.mark.slow
async def test_more_devices_than_lines_scroll_to_the_chosen_one(driver):
    driver(*(h100(n) for n in range(24)))
    async with cockpit((80, 24)) as (app, pilot, _):
        await until(app, pilot, "▸   0")
        await until(app, pilot, "use bf16")
        await pilot.press(*["down"] * 23)
        await until(app, pilot, "▸  23")
        await until(app, pilot, "cuda:23  NVIDIA H100")
        assert "busy" in frame(app).splitlines()[1]


@pytest.mark.slow
async def test_what_is_noted_of_the_machine_gives_way_to_the_rows(driver, monkeypatch):
    driver(*(h100(n) for n in range(9)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    async with cockpit((60, 16)) as (app, pilot, _):
        await until(app, pilot, "  cpu  ")
        await until(app, pilot, "use bf16")
        assert [bool(row_of(frame(app), str(n))) for n in range(8)] == [True] * 8
        assert "◂ recommended" in frame(app)
        assert "hides 1 of 9 GPUs" not in frame(app)
        await pilot.resize_terminal(80, 24)
        await until(app, pilot, "hides 1 of 9 GPUs")


@pytest.mark.usefixtures("often_sampled")
async def test_a_device_that_is_lost_says_so_and_the_others_go_on(eight):
    async with cockpit((140, 45)) as (app, pilot, _):
        await until(app, pilot, "47.0/80")
        eight.gpus[0].lost = True
        eight.gpus[3].used = 33 * GIB
        await until(app, pilot, "The GPU is lost")
        await until(app, pilot, "33.0/80")
        lost = row_of(frame(app), "0")
        await pilot.press("up", "up", "up")
        await until(app, pilot, "Restart the machine")
    assert "–/80" in lost
    assert "%" not in lost


async def test_the_card_lists_all_processes_on_its_device(eight):
    async with cockpit((140, 64)) as (app, pilot, _):
        await until(app, pilot, "47.0/80")
        await pilot.press("up", "up")
        await until(app, pilot, "cuda:1  NVIDIA")
        await until(app, pilot, "8124  –  \\x1b[2Jevil")
        assert "8125  –  x" in frame(app)


async def test_a_click_on_a_row_chooses_its_device(eight):
    async with cockpit((80, 24)) as (app, pilot, _):
        await until(app, pilot, "47.0/80")
        await until(app, pilot, "cuda:3  NVIDIA")
        await pilot.click(DeviceTable, offset=(8, 1 + 5))
        await until(app, pilot, "cuda:5  NVIDIA")
        assert "▸   5" in frame(app)


class StillSampler:
    """A sampler with one sample until it is given another; `gone`: why there are no more."""

    sample = DeviceSample(name="", utilisation=0.4)
    gone: str | None = None

    def __init__(self, device, uuid):
        self.running = False

    def start(self):
        self.running = True

    def stop(self):
        self.running = False

    def latest(self):
        return self.sample

    def problem(self):
        return self.gone


def test_the_history_has_each_sample_once_outlives_a_rescan_and_has_a_constant_size(monkeypatch):
    monkeypatch.setattr("mptui.hardware.sampler.DeviceSampler", StillSampler)
    device = card("NVIDIA H200", (9, 0), 140, uuid=UUIDS[0])
    watch = DeviceSamplers()
    watch.follow([device])
    assert [list(watch.latest(device).busy) for _ in range(3)] == [[0.4]] * 3
    watch.follow([device])
    for second in range(2 * HISTORY):
        StillSampler.sample = DeviceSample(name="", utilisation=0.8, time=second)
        assert watch.latest(device).busy[0] in {0.4, 0.8}
    assert len(watch.latest(device).busy) == HISTORY
    StillSampler.gone = "The GPU is lost."
    assert watch.latest(device).problem == "The GPU is lost."
    watch.follow([device])
    assert len(watch.latest(device).busy) == 1  # sampled anew


def rows(*samples: DeviceSample) -> list[DeviceRow]:
    return [DeviceRow(label=str(n), name="NVIDIA H200", sample=each) for n, each in enumerate(samples)]


def test_sums_leave_out_what_is_not_known_and_nothing_unknown_is_zero():
    known = DeviceSample(name="", utilisation=0.5, memory_used=GIB, memory_total=4 * GIB, power_w=100)
    lines = table_lines(rows(known, DeviceSample(name="")), 0, 100)
    assert lines.sums is not None
    for words in (" 50 %", "1.0/4", " 100 "):
        assert words in lines.sums.plain
    assert "0" not in lines.rows[1].plain.replace("H200", "")


def test_one_gpu_has_no_sums():
    assert table_lines(rows(DeviceSample(name="")), 0, 80).sums is None


@pytest.mark.parametrize("width", range(58, 230, 9))
def test_no_row_is_wider_than_its_table_and_no_pid_is_cut(width):
    people = [DeviceProcess(pid=4194304, user="someone-with-a-name", command="python train.py", memory=GIB)]
    sample = DeviceSample(name="", utilisation=1.0, memory_total=80 * GIB, processes=people * 3)
    for line in table_lines(rows(sample, sample), 1, width).rows:
        assert line.cell_length <= width
        assert "4194304 +2" in line.plain


def test_the_load_over_time_is_drawn_from_none_to_all():
    row = DeviceRow(label="0", name="a", sample=DeviceSample(name=""), busy=[0.0, 0.5, 1.0])
    assert "▁▅█" in table_lines([row], 0, 140).rows[0].plain


def test_this_program_is_named_as_such():
    own = [DeviceProcess(pid=os.getpid(), user="me", command="python", memory=None)]
    assert "this mptui" in table_lines(rows(DeviceSample(name="", processes=own)), 0, 120).rows[0].plain


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA", "NVIDIA"),
    ],
)
def test_what_the_table_tells_elsewhere_is_left_out_of_a_name(name, short):
    assert short_name(name) == short
