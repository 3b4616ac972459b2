import csv
import getpass
import os
import pty
import signal
import subprocess
import sys

import psutil
import pynvml
import pytest

from mptui.cli.look.monitor import line_of, table_lines
from mptui.events import DeviceProcess, DeviceSample
from mptui.hardware.host import program_words, user_and_command
from tests.hardware.conftest import driver
from tests.hardware.fake_nvml import GIB, h200
from tests.made.waiting import wait_until
from tests.program import Program

__all__ = ["driver"]

SAMPLE = DeviceSample(
    name="NVIDIA H200",
    device="cuda:0",
    utilisation=0.97,
    memory_utilisation=0.61,
    memory_used=52 * GIB,
    memory_total=140 * GIB,
    power_w=612.0,
    power_limit_w=700.0,
    temperature_c=71,
    sm_clock_mhz=1755,
    memory_clock_mhz=3201,
    throttle=["power limit"],
    processes=[
        DeviceProcess(pid=4117, user="anna", command="python train.py", memory=50 * GIB),
        DeviceProcess(pid=9, user=None, command=None, memory=None),
    ],
)


def test_the_table_has_each_device_and_who_is_on_it():
    assert table_lines([SAMPLE], None) == [
        "device  name         busy  memory busy                 memory         power   temp      clock  "
        "memory clock  throttled by",
        "cuda:0  NVIDIA H200  97 %         61 %  52.0 GiB of 140.0 GiB  612 of 700 W  71 °C  1,755 MHz  "
        "   3,201 MHz  power limit",
        "",
        "on       pid  user    memory  program",
        "cuda:0  4117  anna  50.0 GiB  python train.py",
        "cuda:0     9  –            –  –",
    ]


def test_a_narrow_table_loses_columns_and_no_device():
    rows = table_lines([SAMPLE], 60)

    assert max(map(len, rows)) <= 60
    assert rows[1].startswith("cuda:0  97 %")
    assert any("anna" in row for row in rows)


def test_a_line_has_what_the_device_reports_and_no_more():
    cpu = DeviceSample(name="A CPU", device="cpu", utilisation=0.5, memory_used=GIB, memory_total=2 * GIB)

    assert line_of(cpu).endswith("cpu  busy 50 %  memory 1.0 GiB of 2.0 GiB")
    assert line_of(SAMPLE).endswith(
        "612 of 700 W  71 °C  throttled by power limit  python train.py 4117 of anna: 50.0 GiB  "
        "pid 9 of an unknown user: –"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/usr/bin/python3", "train.py", "--token", "secret"], "python3 train.py"),
        (["python", "-u", "-X", "dev", "/home/a/train.py"], "python train.py"),
        (["python", "-m", "torch.distributed.run", "train.py"], "python -m torch.distributed.run"),
        (["python", "-c", "import secret"], "python"),
        (["/opt/app/server", "--password=secret"], "server"),
        (["python"], "python"),
    ],
)
def test_a_program_is_shown_without_its_arguments(arguments, words):
    assert program_words(arguments) == words


def test_a_process_is_looked_up_only_if_it_is_the_one_that_nvml_means():
    own = psutil.Process()

    assert user_and_command(own.pid, own.cmdline()[0])[0] == getpass.getuser()
    # in a container NVML's PIDs are those of other processes
    assert user_and_command(own.pid, "/usr/bin/somebody-elses") == (None, "somebody-elses")


def test_samples_of_a_gpu_become_rows(driver, monkeypatch, tmp_path):
    from mptui.cli.look import monitor

    gpu = h200(
        used=52 * GIB, utilisation=97, memory_utilisation=61, power_mw=612_000, compute=[(7, 50 * GIB)]
    )
    gpu.reasons = pynvml.nvmlClocksEventReasonSwPowerCap
    driver(gpu)
    monkeypatch.setattr(monitor, "_looks", first_looks(monitor._looks))

    monitor.monitor(monitor.MonitorOptions(csv=tmp_path / "gpu.csv", interval=0.1))

    with (tmp_path / "gpu.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["device"] == "cuda:0")
    assert (row["utilisation_percent"], row["memory_utilisation_percent"]) == ("97.0", "61.0")
    assert (row["power_w"], row["throttle"]) == ("612.0", "power limit")
    assert row["processes"] == f"7 ? {50 * GIB} ?"


def first_looks(looks):
    """The looks up to the first that has a sample of each device."""

    def some(samplers, look_s):
        seen = set()
        for look in looks(samplers, look_s):
            yield look
            seen |= {sample.device for sample in look.fresh}
            if len(seen) == len(samplers):
                return

    return some


def test_another_file_is_not_written_into(tmp_path):
    from mptui.cli.look.monitor import MonitorOptions, monitor
    from mptui.errors import ConfigError

    (tmp_path / "notes.csv").write_text("mine\n")

    with pytest.raises(ConfigError, match="other content"):
        monitor(MonitorOptions(csv=tmp_path / "notes.csv"))
    assert (tmp_path / "notes.csv").read_text() == "mine\n"


def test_ctrl_c_ends_it_and_a_second_one_appends(tmp_path):
    path = tmp_path / "load.csv"
    for rows in (2, 4):
        program = Program("monitor", "--interval", "0.1", "--csv", path)
        wait_until(lambda rows=rows: path.is_file() and path.read_text().count("\n") > rows)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate()

        assert program.returncode == 130, err
        assert "cpu  busy" in out

    with path.open() as file:
        found = list(csv.DictReader(file))
    assert len(found) >= 4
    assert {row["device"] for row in found} == {"cpu"}
    assert all(int(row["memory_total_bytes"]) > 0 for row in found)


@pytest.mark.slow
def test_a_terminal_has_a_table_that_leaves_it_whole():
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "mptui", "monitor", "--interval", "0.1"]
    environ = {**os.environ, "TERM": "xterm-256color", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    os.close(terminal)
    shown = b""
    while shown.count(b"busy") < 2:
        shown += os.read(control, 65536)
    process.send_signal(signal.SIGTERM)
    while True:
        try:
            shown += os.read(control, 65536)
        except OSError:  # the other side is closed
            break

    assert process.wait() == 143
    assert b"\x1b[?25l" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
