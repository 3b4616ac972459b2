import os
import subprocess
import sys
from typing import Any

import pynvml
import pytest

from mptui.hardware.nvml import read_gpus, visible_gpus
from tests.hardware.fake_nvml import GIB, NOBODY, FakeGpu, FakeSlice, h200, t4


def test_a_gpu_is_told_whole(driver):
    nvml = driver(h200(used=2 * GIB, utilisation=97, memory_utilisation=61, compute=[(NOBODY, 2 * GIB)]))
    nvml.process_names[NOBODY] = "/usr/bin/python"

    report = read_gpus()

    assert (report.driver, report.cuda, report.problem) == ("580.95.05", (13, 1), None)
    gpu: Any = report.gpus[0]
    assert (gpu.name, gpu.capability, gpu.architecture) == ("NVIDIA H200", (9, 0), "Hopper")
    assert (gpu.memory_total, gpu.memory_free, gpu.memory_used) == (140 * GIB, 138 * GIB, 2 * GIB)
    assert (gpu.power_w, gpu.power_limit_w, gpu.temperature_c) == (77.0, 700.0, 34)
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.utilisation) == (1980, 3201, 0.97)
    assert gpu.memory_utilisation == 0.61
    assert [(p.pid, p.command, p.memory) for p in gpu.processes] == [(NOBODY, "python", 2 * GIB)]
    assert gpu.throttle == []
    assert gpu.mig is False
    assert nvml.users == 0


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetMemoryInfo", "memory_total"),
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetCudaComputeCapability", "capability"),
        ("nvmlDeviceGetMigMode", "mig"),
    ],
)
@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN]
)
def test_a_field_that_is_not_supported_is_none_and_the_rest_is_told(driver, function, field, code):
    driver(h200(errors={function: code}))

    (gpu,) = read_gpus().gpus

    assert getattr(gpu, field) is None
    assert gpu.name == "NVIDIA H200"
    assert gpu.problem is None
    assert gpu.memory_clock_mhz == (None if function == "nvmlDeviceGetClockInfo" else 3201)


def test_an_old_driver_answers_under_the_older_names(driver):
    reasons = pynvml.nvmlClocksThrottleReasonSwPowerCap
    nvml = driver(
        t4(
            reasons=reasons,
            errors={"nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND},
        )
    )

    assert read_gpus().gpus[0].throttle == ["power limit"]
    assert nvml.calls["nvmlDeviceGetCurrentClocksThrottleReasons"] == 1


def test_an_idle_gpu_is_not_throttled_and_a_hot_one_says_so(driver):
    idle = pynvml.nvmlClocksEventReasonGpuIdle
    hot = pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap
    driver(h200(reasons=idle), t4(reasons=hot))

    assert [gpu.throttle for gpu in read_gpus().gpus] == [[], ["power limit", "heat"]]


def test_a_process_that_computes_and_draws_is_told_once_and_the_largest_first(driver):
    driver(t4(compute=[(10, 1 * GIB), (11, 6 * GIB)], graphics=[(10, 1 * GIB), (12, None)]))

    processes: Any = read_gpus().gpus[0].processes

    assert [(p.pid, p.memory) for p in processes] == [(11, 6 * GIB), (10, 1 * GIB), (12, None)]


def test_a_process_name_can_not_fool_the_terminal(driver):
    nvml = driver(t4(compute=[(10, GIB)]))
    nvml.process_names[10] = "/home/someone/\x1b[2Jpython"

    processes: Any = read_gpus().gpus[0].processes

    assert processes[0].command == "\\x1b[2Jpython"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "No permission to use"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart the machine"),
    ],
)
def test_without_a_driver_there_is_a_sentence(driver, code, words):
    nvml = driver()
    nvml.errors["nvmlInit"] = code

    report = read_gpus()

    assert report.gpus == []
    assert words in str(report.problem)
    assert "nvmlShutdown" not in nvml.calls


def test_a_driver_without_gpus_is_told(driver):
    driver()

    assert "sees no GPU" in str(read_gpus().problem)


def test_a_lost_gpu_has_a_sentence_and_the_other_is_told(driver):
    driver(h200(lost=True), t4())

    lost, other = read_gpus().gpus

    assert "is lost" in str(lost.problem)
    assert (other.name, other.problem) == ("Tesla T4", None)


def test_a_driver_that_never_answers_is_given_up(driver):
    nvml = driver(h200())
    nvml.hang_in = "nvmlDeviceGetPowerUsage"

    report = read_gpus(timeout_s=0.05)

    assert "has not responded" in str(report.problem)


def test_the_slices_of_a_gpu_with_mig_are_told(driver):
    parts = [FakeSlice("MIG-a1", "NVIDIA H200 MIG 1g.18gb", 18 * GIB), FakeSlice("MIG-b2", "half", 70 * GIB)]
    driver(
        h200(
            mig=True, slices=parts, errors={"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED}
        )
    )

    (gpu,) = read_gpus().gpus

    assert gpu.mig is True
    assert [(part.uuid, part.memory_total) for part in gpu.slices] == [
        ("MIG-a1", 18 * GIB),
        ("MIG-b2", 70 * GIB),
    ]


def cards() -> list[FakeGpu]:
    return [h200(uuid="GPU-aaaa-1"), t4(uuid="GPU-bbbb-2"), t4(uuid="GPU-cccc-3")]


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-bb", [1]),
        ("GPU-cccc-3, 0", [2, 0]),
        ("", []),
        ("-1", []),
        ("1,nonsense,0", [1]),
        ("7", []),
    ],
)
def test_cuda_visible_devices_chooses_and_orders(driver, setting, indices):
    driver(*cards())

    seen = visible_gpus(read_gpus().gpus, setting)

    assert [gpu.index for gpu, _ in seen] == indices


def test_cuda_shows_one_slice_of_a_gpu_with_mig_or_the_one_named(driver):
    parts = [FakeSlice("MIG-a1", "first", GIB), FakeSlice("MIG-b2", "second", GIB)]
    driver(h200(mig=True, slices=parts), h200(mig=True, uuid="GPU-empty"))
    gpus = read_gpus().gpus

    assert [part and part.name for _, part in visible_gpus(gpus, None)] == ["first"]
    assert [part and part.name for _, part in visible_gpus(gpus, "MIG-b2")] == ["second"]


@pytest.mark.parametrize("is_old", [True, False])
def test_a_slice_has_the_names_of_old_and_new_drivers(driver, is_old):
    paths = [f"MIG-GPU-aaaa-1/{instance}/0" for instance in (1, 10, 11)]
    uuids = paths if is_old else ["MIG-1111-aaaa", "MIG-1112-aaaa", "MIG-1113-aaaa"]
    parts = [
        FakeSlice(uuid, str(instance), GIB, instances=(instance, 0))
        for uuid, instance in zip(uuids, (1, 10, 11), strict=True)
    ]
    driver(h200(mig=True, slices=parts, uuid="GPU-aaaa-1"))
    gpus = read_gpus().gpus

    for index, names in enumerate(zip(paths, uuids, strict=True)):
        for name in names:
            assert visible_gpus(gpus, name) == [(gpus[0], gpus[0].slices[index])]
    assert [part and part.name for _, part in visible_gpus(gpus, f"{paths[2]}, {paths[0]}")] == ["11", "1"]
    assert visible_gpus(gpus, "MIG-GPU-aaaa-1/2/0") == []
    assert visible_gpus(gpus, "MIG-GPU-bbbb-2/1/0") == []


def test_nvml_is_read_without_torch():
    code = "import sys, mptui.hardware.sampler, mptui.hardware.describe; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], env=os.environ.copy(), check=False).returncode == 0


def test_a_driver_that_loses_its_gpu_while_it_is_asked_has_a_sentence(driver):
    nvml = driver(h200())
    nvml.errors["nvmlDeviceGetCount"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert "lost" in str(read_gpus().problem)
    assert nvml.users == 0
