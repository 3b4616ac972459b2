import os
import threading
from dataclasses import replace
from typing import Any

import psutil
import pynvml
import pytest

from mptui.hardware.sampler import STALE_AFTER_S, CpuSource, DeviceSampler
from tests.hardware.fake_nvml import GIB, FakeSlice, h200, t4
from tests.hardware.machines import HOST

PATIENCE_S = 60


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def sampled():
    """Start a sampler, and return it once its thread has taken `samples` samples or has ended."""
    samplers = []

    def start(nvml, device="cuda:0", samples=1, **options):
        enough = threading.Event()

        def count(name, calls):
            if name == "nvmlDeviceGetTemperature" and calls == samples + 1:
                enough.set()

        nvml.on_call = count
        sampler = DeviceSampler(device, interval_s=0.001, **options)
        samplers.append(sampler)
        sampler.start()
        assert enough.wait(PATIENCE_S)
        return sampler

    yield start
    for sampler in samplers:
        sampler.stop()


def test_a_sample_says_what_the_gpu_does(driver, sampled):
    gpu = h200(
        used=52 * GIB,
        utilisation=97,
        power_mw=612_000,
        reasons=pynvml.nvmlClocksEventReasonSwPowerCap,
        compute=[(os.getpid(), 50 * GIB), (1, 2 * GIB)],
    )

    sample = sampled(driver(gpu)).latest()

    assert (sample.name, sample.utilisation) == ("NVIDIA H200", 0.97)
    assert (sample.memory_used, sample.memory_total, sample.memory_own) == (52 * GIB, 140 * GIB, 50 * GIB)
    assert (sample.power_w, sample.power_limit_w, sample.sm_clock_mhz) == (612.0, 700.0, 1980)
    assert sample.throttle == ["power limit"]


def test_a_gpu_without_a_power_sensor_is_sampled_all_the_same(driver, sampled):
    gpu = t4(errors={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NOT_SUPPORTED})

    sample = sampled(driver(gpu)).latest()

    assert sample.power_w is None
    assert sample.temperature_c == 34


def test_the_process_list_is_read_every_five_seconds_only(driver, sampled):
    clock = Clock()
    nvml = driver(h200())

    sampled(nvml, samples=20, clock=clock, uuid=nvml.gpus[0].uuid)

    assert nvml.calls["nvmlDeviceGetComputeRunningProcesses_v3"] == 1


def test_cuda_visible_devices_moves_the_index(driver, sampled, monkeypatch):
    nvml = driver(h200(uuid="GPU-a"), t4(uuid="GPU-b"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")

    assert sampled(nvml, "cuda:0").latest().name == "Tesla T4"


def test_a_uuid_wins_over_the_index(driver, sampled):
    nvml = driver(h200(uuid="GPU-a"), t4(uuid="GPU-b"))

    assert sampled(nvml, "cuda:0", uuid="GPU-b").latest().name == "Tesla T4"


def test_a_slice_tells_its_own_memory(driver):
    nvml = driver(h200(mig=True, slices=[FakeSlice("MIG-a1", "a slice", 18 * GIB, used=GIB)]))
    taken = threading.Event()
    nvml.on_call = lambda name, calls: (
        taken.set() if name == "nvmlDeviceGetPowerUsage" and calls == 3 else None
    )
    sampler = DeviceSampler("cuda:0", interval_s=0.001)
    sampler.start()
    assert taken.wait(PATIENCE_S)
    sampler.stop()

    sample: Any = sampler.latest()

    assert (sample.name, sample.memory_total, sample.memory_used) == ("a slice", 18 * GIB, GIB)
    assert sample.utilisation is None
    assert sampler.problem() is None


def test_a_hanging_query_holds_nobody_up(driver, sampled):
    clock = Clock()
    nvml = driver(h200(utilisation=97))
    sampler = sampled(nvml, clock=clock)
    nvml.hang_in = "nvmlDeviceGetUtilizationRates"
    assert nvml.hanging.wait(PATIENCE_S)

    assert sampler.latest().utilisation == 0.97
    assert sampler.problem() is None

    clock.now += STALE_AFTER_S + 2
    assert sampler.latest().utilisation is None
    assert sampler.latest().name == "NVIDIA H200"
    assert "7 s" in str(sampler.problem())


def test_a_gpu_lost_in_the_middle_is_told_and_the_thread_ends(driver, sampled):
    nvml = driver(h200(utilisation=97))
    sampler = sampled(nvml)
    closed = threading.Event()
    nvml.on_call = lambda name, calls: closed.set() if name == "nvmlShutdown" else None

    nvml.gpus[0].lost = True
    assert closed.wait(PATIENCE_S)
    sampler.stop()

    assert "is lost" in str(sampler.problem())
    assert sampler.latest().utilisation is None
    assert nvml.users == 0


def test_without_a_driver_there_is_a_sentence_and_no_sample(driver):
    nvml = driver()
    nvml.errors["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    sampler = DeviceSampler("cuda:0")
    sampler.start()
    sampler.stop()

    assert sampler.latest() is None
    assert "not loaded" in str(sampler.problem())


def test_a_gpu_that_is_not_there_is_told_and_nvml_given_back(driver):
    nvml = driver(h200())
    sampler = DeviceSampler("cuda:3")
    sampler.start()
    sampler.stop()

    assert "no GPU for cuda:3" in str(sampler.problem())
    assert nvml.users == 0


def test_stopping_gives_nvml_back(driver, sampled):
    nvml = driver(h200())
    sampler = sampled(nvml)

    sampler.stop()

    assert nvml.users == 0


def test_a_cpu_is_sampled_too(monkeypatch):
    twice = threading.Event()
    measure = psutil.Process.cpu_percent
    calls = []

    def counted(process):
        calls.append(process)
        if len(calls) == 3:
            twice.set()
        return measure(process)

    monkeypatch.setattr(psutil.Process, "cpu_percent", counted)
    sampler = DeviceSampler("cpu", interval_s=0.001)
    sampler.start()
    assert twice.wait(PATIENCE_S)
    sampler.stop()

    sample: Any = sampler.latest()

    assert 0.0 <= sample.utilisation <= 1.0
    assert 0 < sample.memory_own < sample.memory_total
    assert 0 < sample.memory_used < sample.memory_total
    assert sample.power_w is None


def test_a_cpu_is_as_busy_as_the_machine_and_not_as_this_process(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [90.0, 60.0])
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _: 25.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    source = CpuSource()
    monkeypatch.setattr(source, "_host", replace(HOST, cpus_usable=2))

    sample = source.read()

    assert (sample.utilisation, sample.utilisation_own) == (0.75, 0.125)


def test_cpus_that_this_process_may_not_use_do_not_count(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [0.0, 80.0, 0.0, 0.0])
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _: 30.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    source = CpuSource()
    monkeypatch.setattr(source, "_host", replace(HOST, cpus_usable=1))

    sample = source.read()

    assert (sample.utilisation, sample.utilisation_own) == (0.8, 0.3)


def test_a_whole_allowance_of_a_control_group_is_all_of_the_cpu(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_percent", lambda percpu: [10.0] * 8)
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _: 100.0)
    source = CpuSource()
    monkeypatch.setattr(source, "_host", replace(HOST, cpus_usable=1))

    assert source.read().utilisation == 1.0
