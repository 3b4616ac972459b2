"""Each check of the machine, with its faults simulated: files, variables, limits, a broken torch."""

import os
import resource
import shutil
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pynvml
import pytest

from mptui.hardware.devices import Machine, describe_machine
from mptui.hardware.host import read_host
from mptui.hardware.nvml import NvmlReport, read_gpus
from mptui.hardware.torch_view import TorchDevice, TorchView
from mptui.lab.doctor import machine as doctor_machine
from mptui.lab.doctor.findings import Finding, exit_code
from mptui.lab.doctor.machine import Probed, probe_torch
from tests.hardware.conftest import driver
from tests.hardware.fake_nvml import GIB, FakeNvml, h200, t4
from tests.hardware.machines import HOST
from tests.program import DEADLINE_S, Program, run_to_end

__all__ = ["driver"]
slow = partial(pytest.param, marks=pytest.mark.slow)
NOWHERE = Path("/nowhere")


def put(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def states(findings):
    return [finding.state for finding in findings]


# -- the driver, torch and the devices


def card_on_the_bus(root):
    return put(
        root, {"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030200\n"}
    )


def without_driver(monkeypatch, error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND):
    nvml = FakeNvml([])
    nvml.errors["nvmlInit"] = error
    nvml.install(monkeypatch)


def test_no_driver_is_in_order_without_a_card_and_an_error_with_one(tmp_path, monkeypatch):
    without_driver(monkeypatch)
    assert states(doctor_machine.check_driver(read_gpus(), tmp_path)) == ["ok"]
    (found,) = doctor_machine.check_driver(read_gpus(), card_on_the_bus(tmp_path))
    assert (found.state, bool(found.do)) == ("error", True)


def test_a_driver_that_is_not_loaded_says_what_to_do(tmp_path, monkeypatch):
    without_driver(monkeypatch, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    (found,) = doctor_machine.check_driver(read_gpus(), card_on_the_bus(tmp_path))
    assert found.state == "error"
    assert "not loaded" in found.what
    assert "load its kernel module" in found.do


def test_a_lost_gpu_and_one_that_the_driver_does_not_see(tmp_path, driver):
    driver(h200(lost=True))
    found = doctor_machine.check_driver(read_gpus(), tmp_path)
    assert states(found) == ["ok", "error"]
    assert "is lost" in found[1].what
    assert states(doctor_machine.check_devices(seen(None), read_gpus(), None)) == ["ok"]  # reported once
    driver(h200())
    second = {
        f"sys/bus/pci/devices/1/{name}": text for name, text in (("vendor", "0x10de"), ("class", "0x030000"))
    }
    assert states(doctor_machine.check_driver(read_gpus(), put(card_on_the_bus(tmp_path), second))) == [
        "ok",
        "advice",
    ]


def seen(view):
    """This machine with the GPUs of the fake driver and such a torch."""
    return describe_machine(read_gpus(), HOST, view, {})


VIEW = TorchView(version="2.12.0", cuda="13.0", architectures=["sm_90"])


def card(built_for=True):
    return TorchDevice(
        kind="cuda", index=0, name="A GPU", architecture="Hopper", capability=(9, 0), memory_total=80 * GIB,
        native={"bf16": "native"}, built_for=built_for,
    )  # fmt: skip


def view(**changes):
    return TorchView(**{"version": "2.12.0", "cuda": "13.0", "architectures": ["sm_90"], **changes})


@pytest.mark.parametrize(
    ("torch", "state", "word"),
    [
        (view(), "ok", "2.12.0"),
        (view(version=None, problem="torch can't be imported: no libcudart"), "error", "libcudart"),
        (view(version="2.9.1+cu130"), "error", "older than 2.10"),
        (view(version="3.0.0a0+git"), "ok", "3.0.0"),
    ],
)
def test_the_build_of_torch(torch, state, word, driver):
    driver()
    (found,) = doctor_machine.check_torch(seen(torch), Probed(torch))
    assert (found.state, word in found.what) == (state, True)


@pytest.mark.parametrize(
    ("torch", "word"),
    [
        (view(cuda=None, architectures=[]), "without CUDA"),
        (view(cuda="14.0"), "too old"),
        (view(devices=[card(built_for=False)]), "no code for"),
    ],
)
def test_a_gpu_that_torch_cant_use_is_an_error_with_the_remedy(torch, word, driver):
    driver(h200())
    found = doctor_machine.check_devices(seen(torch), read_gpus(), None)
    assert states(found)[0] == "error"
    assert word in found[0].what + found[0].do
    assert found[0].do


def test_a_device_that_fails_at_real_work_is_an_error(driver):
    driver()
    machine = seen(view(devices=[card()]))
    failing = Probed(machine.torch, {"cuda:0": "RuntimeError: cuDNN error"})
    assert states(doctor_machine.check_devices(machine, read_gpus(), failing)) == ["error", "ok"]
    assert states(doctor_machine.check_devices(machine, read_gpus(), Probed(machine.torch))) == ["ok", "ok"]


def test_a_sound_gpu_is_told_with_what_to_begin_with(driver):
    driver(t4())
    found = doctor_machine.check_devices(seen(None), read_gpus(), None)
    assert "; profile older-gpu, batch 32 (a ResNet; 32 to 64 suit it), workers " in found[0].what


@pytest.mark.parametrize(
    ("gpu", "word"),
    [
        (h200(compute=[(7, 70 * GIB)], used=70 * GIB), "pid 7"),
        (h200(reasons=pynvml.nvmlClocksEventReasonHwThermalSlowdown), "clocks"),
        (h200(temperature=93), "93"),
        (h200(reasons=pynvml.nvmlClocksEventReasonSwPowerCap), None),
    ],
)
def test_what_holds_a_gpu_back_is_advice(gpu, word, driver):
    driver(gpu)
    found = [f for f in doctor_machine.check_devices(seen(None), read_gpus(), None) if f.state == "advice"]
    assert [word in f.what for f in found] == ([True] if word else [])


# -- torch in a separate process


class ForkedProbe(Program):
    """The test of torch in a fork of the program, whose output is bytes as that of a fresh interpreter."""

    def communicate(self, timeout=DEADLINE_S):
        try:
            return [text.encode() for text in super().communicate(timeout)]
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("probe", timeout) from error


def fork_probes(monkeypatch, folder, package):
    """Let `probe_torch` start forks, in which `package` is that of `folder`."""
    call = f"{__name__}:probe_of_another"
    monkeypatch.setattr(
        doctor_machine,
        "start",
        lambda _call, env, **_pipes: nullcontext(ForkedProbe(folder, package, environ=env, call=call)),
    )


def probe_of_another():
    """Test torch, in a fork."""
    folder, package = sys.argv[1:]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    doctor_machine.main()


@pytest.mark.program
@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
        slow("raise RuntimeError('half installed')", "half installed"),
        ("import os; os.kill(os.getpid(), 4)", "SIGILL"),
        slow("import os; os._exit(3)", "can't be used"),
        ("import time; time.sleep(600)", "has not responded"),
    ],
    ids=["import", "error", "crash", "exit", "hang"],
)
def test_a_torch_that_is_broken_is_a_finding(request, tmp_path, monkeypatch, code, word):
    put(tmp_path, {"torch/__init__.py": code})
    if request.node.callspec.id == "import":
        monkeypatch.syspath_prepend(tmp_path)
    else:
        fork_probes(monkeypatch, tmp_path, "torch")
    probed = probe_torch(os.environ, timeout_s=0.3 if "sleep" in code else 300)
    assert probed.view.version is None
    assert word in str(probed.view.problem)
    machine = describe_machine(read_gpus(), HOST, probed.view, {})
    assert states(doctor_machine.check_torch(machine, probed)) == ["error"]
    assert machine.devices[-1].usable


@pytest.mark.program
def test_a_torchvision_of_another_torch_is_a_finding(tmp_path, monkeypatch):
    code = "raise RuntimeError('operator torchvision::nms does not exist')"
    put(tmp_path, {"torchvision/__init__.py": code})
    fork_probes(monkeypatch, tmp_path, "torchvision")
    probed = probe_torch(os.environ)
    assert "cpu" not in probed.failures
    assert not probed.works
    found = doctor_machine.check_torch(describe_machine(read_gpus(), HOST, probed.view, {}), probed)
    assert states(found) == ["ok", "error"]
    assert "torchvision::nms" in found[1].what


# -- the host


def test_a_memory_limit_is_told_and_little_memory_is_advice(tmp_path):
    limit = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": f"{GIB}\n"}
    (found,) = doctor_machine.check_memory(read_host(put(tmp_path, limit)))
    assert found.state == "advice"
    assert "1.0 GiB" in found.what
    assert "control group's limit" in found.what
    assert states(doctor_machine.check_memory(HOST)) == ["ok"]


def test_one_processor_of_many_is_advice():
    from dataclasses import replace

    assert states(doctor_machine.check_processors(replace(HOST, cpus_usable=1))) == ["advice"]
    assert states(doctor_machine.check_processors(HOST)) == ["ok"]


def test_shared_memory_missing_small_or_full(tmp_path, monkeypatch):
    assert states(doctor_machine.check_shm(tmp_path)) == ["advice"]
    for size, state in (
        ((64 << 20, 0, 64 << 20), "advice"),
        ((GIB * 8, 0, 1 << 20), "advice"),
        ((GIB * 8, 0, GIB), "ok"),
    ):
        usage = type("Usage", (), dict(zip(("total", "used", "free"), size, strict=True)))
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        assert states(doctor_machine.check_shm(tmp_path)) == [state]


def under_limits(files, root):
    """Return the findings of `check_limits` in a process with these limits."""
    ended = run_to_end(files, root, call=f"{__name__}:tell_limits")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip().split("|")


def tell_limits():
    """Print the findings of `check_limits`, in a fork with the limits that come first in `argv`."""
    files, root = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    found = doctor_machine.check_limits(Path(root))
    print(*(f"{finding.name} {finding.state} {finding.do}" for finding in found), sep="|")


@pytest.mark.program
def test_limits_of_the_shell(tmp_path):
    files, locked = under_limits(200, tmp_path)
    assert files.startswith("nofile advice ulimit -n")
    assert locked.startswith("memlock ok")
    files, locked = under_limits(1024, put(tmp_path, {"sys/class/infiniband/mlx5_0": ""}))
    assert files.startswith("nofile ok")
    assert locked.startswith("memlock advice ulimit -l")


def test_a_place_that_cant_be_written_and_one_that_is_full_have_their_own_code(tmp_path, monkeypatch):
    put(tmp_path, {"file": ""})
    assert states(doctor_machine.check_disk(tmp_path / "not" / "yet")) in (["ok"], ["advice"])
    for place in (tmp_path / "file" / "runs", Path("/proc/runs")):
        found = doctor_machine.check_disk(place)
        assert states(found) == ["error"]
        assert exit_code(found) == 7
    for free, state in ((1 << 20, "error"), (5 * GIB, "advice"), (50 * GIB, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: type("U", (), {"free": free}))
        assert states(doctor_machine.check_disk(tmp_path)) == [state]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_variables_that_slow_every_run():
    slow = {"CUDA_LAUNCH_BLOCKING": "1", "OMP_NUM_THREADS": "4096"}
    assert next(f.do for f in doctor_machine.check_variables(slow)) == "unset CUDA_LAUNCH_BLOCKING"
    assert len(list(doctor_machine.check_variables(slow))) == 2
    assert not list(doctor_machine.check_variables({"CUDA_LAUNCH_BLOCKING": "0", "OMP_NUM_THREADS": "1"}))


# -- the login


@pytest.mark.parametrize(
    ("environ", "state", "word"),
    [
        ({"LANG": "C.UTF-8"}, "ok", "C.UTF-8"),
        ({"LANG": "C"}, "advice", "ASCII"),
        ({}, "advice", "ASCII"),
        ({"LANG": "C.UTF-8", "LC_ALL": "C"}, "advice", "LC_ALL=C"),
        ({"LC_CTYPE": "xx_YY.UTF-8"}, "advice", "no such locale"),
    ],
)
def test_the_locale(environ, state, word):
    (found,) = doctor_machine.check_locale(environ)
    assert (found.state, word in found.what) == (state, True)


@pytest.mark.parametrize(
    ("environ", "size", "states_"),
    [
        ({}, None, ["ok"]),
        ({"TERM": "dumb"}, (80, 24), ["advice"]),
        ({}, (80, 24), ["advice"]),
        ({"TERM": "xterm-256color"}, (80, 24), ["ok"]),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, (80, 24), ["ok"]),
        ({"TERM": "linux"}, (80, 24), ["advice"]),
        ({"TERM": "xterm-256color"}, (79, 24), ["ok", "advice"]),
    ],
)
def test_the_terminal(environ, size, states_):
    found = doctor_machine.check_terminal(environ, size and os.terminal_size(size))
    assert states(found) == states_


def logout(root, path=""):
    (found,) = doctor_machine.check_logout(root, {"PATH": str(path)})
    return found


def test_whether_a_run_outlives_the_login_without_systemd(tmp_path):
    put(tmp_path, {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"})
    assert logout(tmp_path).state == "ok"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, False),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, True),
        ({"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=no\n"}, False),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nKillUserProcesses=no\n",
                "usr/lib/systemd/logind.conf.d/50-site.conf": "[Login]\nKillUserProcesses = on\n",
            },
            True,
        ),
        (
            {
                "usr/lib/systemd/logind.conf.d/50-site.conf": "[Login]\nKillUserProcesses=yes\n",
                "etc/systemd/logind.conf.d/50-site.conf": "[Login]\nKillUserProcesses=no\n",
            },
            False,
        ),
        ({"etc/systemd/logind.conf": "KillUserProcesses=yes\0\n[Login\n"}, False),
    ],
)
def test_whether_systemd_kills_is_read_from_its_files(tmp_path, files, kills):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    found = logout(put(tmp_path, files))
    assert found.state == ("advice" if kills else "ok")
    assert ("systemd-run --user --scope" in found.do) is kills


def test_what_logind_answers_wins_over_its_files_and_a_scope_of_ones_own_is_safe(tmp_path):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    put(tmp_path, {"bin/busctl": "#!/bin/sh\necho 'b true'\n"})
    (tmp_path / "bin/busctl").chmod(0o755)
    assert logout(tmp_path, tmp_path / "bin").state == "advice"
    put(
        tmp_path,
        {"proc/self/cgroup": "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope\n"},
    )
    assert logout(tmp_path, tmp_path / "bin").state == "ok"
    put(tmp_path, {"proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n"})
    assert logout(tmp_path, tmp_path / "bin").state == "advice"
    put(tmp_path, {"bin/busctl": "#!/bin/sh\nexit 1\n"})
    assert logout(tmp_path, tmp_path / "bin").state == "ok"


# -- all together


def test_the_exit_code_is_that_of_what_is_to_be_mended_first():
    def of(*found):
        return exit_code(Finding(area, name, state, "", "") for area, name, state in found)

    assert of(("machine", "torch", "ok"), ("data", "data", "advice")) == 0
    assert of(("data", "data", "error")) == 3
    assert of(("data", "data", "error"), ("configuration", "values", "error")) == 2
    assert of(("machine", "disk", "error")) == 7


def test_a_machine_of_the_cpu_alone_is_in_order():
    machine = Machine(host=HOST, driver=None, cuda=None, torch=None, devices=[], notes=[])
    assert not doctor_machine.check_devices(machine, NvmlReport(), None)
