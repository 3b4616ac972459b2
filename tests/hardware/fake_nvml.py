"""A fake NVIDIA driver: pynvml with its own structures and errors, but no driver.

Only the functions that call the driver's library are replaced, with the real arguments, units and results, so
the code under test runs completely.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

GIB = 1024**3
NOBODY = 1 << 23
"""A PID that no process has: beyond the largest of Linux."""


@dataclass
class FakeSlice:
    uuid: str
    name: str
    total: int
    used: int = 0
    instances: tuple[int, int] = (0, 0)
    """Of the GPU and of its computing, by which older drivers name a slice."""


@dataclass
class FakeGpu:
    """A GPU: `errors` maps a function's name to the NVML error code it fails with, `lost` all functions."""

    name: str
    capability: tuple[int, int]
    total: int
    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    used: int = 0
    power_mw: int = 77_000
    limit_mw: int = 700_000
    temperature: int = 34
    sm_clock: int = 1980
    memory_clock: int = 3201
    reasons: int = 0
    utilisation: int = 0
    memory_utilisation: int = 0
    compute: list[tuple[int, int | None]] = field(default_factory=list)
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    mig: bool = False
    slices: list[FakeSlice] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    lost: bool = False


def h200(**changes: Any) -> FakeGpu:
    return FakeGpu("NVIDIA H200", (9, 0), 140 * GIB, **changes)


def t4(**changes: Any) -> FakeGpu:
    return FakeGpu("Tesla T4", (7, 5), 15 * GIB, **changes)


class FakeNvml:
    """The driver with its GPUs; `calls` counts by name, `hang_in` blocks one function until `release`."""

    def __init__(self, gpus: list[FakeGpu]) -> None:
        self.gpus = gpus
        self.process_names: dict[int, str] = {}
        self.errors: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.users = 0
        self.hang_in: str | None = None
        self.hanging = threading.Event()
        self.release = threading.Event()
        self.on_call: Callable[[str, int], None] = lambda name, count: None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in dir(self):
            if name.startswith("nvml"):
                assert hasattr(pynvml, name), f"pynvml has no {name}"
                monkeypatch.setattr(pynvml, name, self._wired(name))

    def _wired(self, name: str) -> Callable[..., Any]:
        answer = getattr(self, name)

        def call(*arguments: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            self.on_call(name, self.calls[name])
            if name == self.hang_in:
                self.hanging.set()
                self.release.wait()
            if name in self.errors:
                raise pynvml.NVMLError(self.errors[name])
            if name not in {"nvmlInit", "nvmlShutdown"} and self.users == 0:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            if arguments and isinstance(arguments[0], FakeGpu):
                self._may_fail(name, arguments[0])
            if arguments and isinstance(arguments[0], FakeSlice) and name not in _KNOWN_OF_A_SLICE:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return answer(*arguments)

        return call

    def _may_fail(self, name: str, gpu: FakeGpu) -> None:
        if gpu.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if name in gpu.errors:
            raise pynvml.NVMLError(gpu.errors[name])

    def nvmlInit(self) -> None:
        self.users += 1

    def nvmlShutdown(self) -> None:
        if self.users == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13010

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        if pid not in self.process_names:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.process_names[pid]

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        gpu = self.gpus[index]
        self._may_fail("nvmlDeviceGetHandleByIndex", gpu)
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu | FakeSlice:
        for gpu in self.gpus:
            handles: list[FakeGpu | FakeSlice] = [gpu, *gpu.slices]
            for handle in handles:
                if handle.uuid == uuid:
                    return handle
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetName(self, handle: FakeGpu | FakeSlice) -> str:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: FakeGpu | FakeSlice) -> str:
        return handle.uuid

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu | FakeSlice, version: int | None = None) -> Any:
        memory = pynvml.c_nvmlMemory_v2_t() if version else pynvml.c_nvmlMemory_t()
        memory.total, memory.used, memory.free = handle.total, handle.used, handle.total - handle.used
        return memory

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:
        rates = pynvml.c_nvmlUtilization_t()
        rates.gpu, rates.memory = handle.utilisation, handle.memory_utilisation
        return rates

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        return handle.power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeGpu) -> int:
        return handle.limit_mw

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return handle.temperature

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, kind: int) -> int:
        return {pynvml.NVML_CLOCK_SM: handle.sm_clock, pynvml.NVML_CLOCK_MEM: handle.memory_clock}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:
        return handle.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeGpu) -> int:
        return handle.reasons

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: FakeGpu) -> list[Any]:
        return _processes(handle.compute)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: FakeGpu) -> list[Any]:
        return _processes(handle.graphics)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:
        if handle.capability not in {(8, 0), (9, 0), (10, 0)}:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(handle.mig), int(handle.mig)]

    def nvmlDeviceGetGpuInstanceId(self, handle: FakeSlice) -> int:
        return handle.instances[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: FakeSlice) -> int:
        return handle.instances[1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: FakeGpu, index: int) -> FakeSlice:
        if index >= len(handle.slices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle.slices[index]


_KNOWN_OF_A_SLICE = {
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetComputeInstanceId",
}


def _processes(found: list[tuple[int, int | None]]) -> list[Any]:
    return [pynvml.nvmlFriendlyObject({"pid": pid, "usedGpuMemory": used}) for pid, used in found]
