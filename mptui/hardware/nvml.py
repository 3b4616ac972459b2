"""NVIDIA GPUs through NVML, without torch: what they are, what they do now, and who is on them.

Any single query may fail: a card without a power sensor, a slice of a card, a driver older than the query.
Such a field is None and the rest is told all the same. A query may also never come back, so nothing here
runs in a thread that a person or a training step waits for without a limit.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar

import pynvml

from mptui.events import DeviceSample
from mptui.hardware.formats import architecture_name
from mptui.text import clean

PROCESS_INTERVAL_S = 5.0
"""A process list costs milliseconds under a lock of the driver: it is read no more often than this."""

_T = TypeVar("_T")
_Handle: TypeAlias = Any  # opaque, and pynvml has no types

_LOST = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)

_SENTENCES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "There is no NVIDIA driver on this machine.",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "The NVIDIA driver is installed but not loaded: load its kernel module, or restart the machine."
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "The NVIDIA driver refuses this user: ask for access to /dev/nvidia*, or give the container GPUs."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA driver was updated while it was loaded: restart the machine."
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "The GPU is lost: it no longer answers on its bus. Restart the machine; if it comes again, "
        "look at power, heat and seating of the card."
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: "The GPU needs a reset (nvidia-smi --gpu-reset) or a restart.",
}

_THROTTLE_REASONS = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power limit",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hardware slowdown",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "heat",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "heat, hardware limit",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "external power brake",
    pynvml.nvmlClocksEventReasonSyncBoost: "clocks tied to another GPU",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "clocks set by hand",
}


class NvmlUnavailableError(Exception):
    """NVML can't be read; the text is a sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds memory of a GPU (bytes)."""

    pid: int
    name: str | None
    memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """A part of a GPU that is a device of its own (MIG). Memory in bytes."""

    uuid: str | None
    name: str
    memory_total: int | None
    memory_free: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """A GPU as NVML sees it, under NVML's index; None for what it does not tell.

    `utilisation` is a fraction of 1; the rest bytes, watts, degrees Celsius, MHz. `problem` is a sentence
    where the GPU does not answer.
    """

    index: int
    name: str
    uuid: str | None = None
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    memory_used: int | None = None
    processes: list[GpuProcess] | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: list[str] | None = None
    utilisation: float | None = None
    mig: bool | None = None
    slices: list[MigSlice] = field(default_factory=list)
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """What NVML says of the machine; `problem` is a sentence where it says nothing."""

    driver: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: list[GpuInfo] = field(default_factory=list)
    problem: str | None = None


def read_gpus(timeout_s: float = 5.0) -> NvmlReport:
    """Ask NVML for everything once; a driver silent for `timeout_s` is a problem of the report."""
    reports: list[NvmlReport] = []
    reader = threading.Thread(target=lambda: reports.append(_report()), name="nvml-report", daemon=True)
    reader.start()
    reader.join(timeout_s)
    if reader.is_alive():
        return NvmlReport(
            problem=f"The NVIDIA driver has not answered for {timeout_s:g} s: see the kernel's log (dmesg)."
        )
    return reports[0]


def visible_gpus(
    gpus: Sequence[GpuInfo], visible_devices: str | None
) -> list[tuple[GpuInfo, MigSlice | None]]:
    """List the GPUs and slices that CUDA sees, in CUDA's order, for a value of CUDA_VISIBLE_DEVICES.

    Entries are indices, or UUIDs that may be cut short; like CUDA, stop at the first that names nothing.
    """
    if visible_devices is None:
        return [seen for gpu in gpus if (seen := _as_seen(gpu)) is not None]
    seen_gpus = []
    for entry in visible_devices.split(","):
        seen = _named(gpus, entry.strip())
        if seen is None:
            break
        seen_gpus.append(seen)
    return seen_gpus


def _named(gpus: Sequence[GpuInfo], entry: str) -> tuple[GpuInfo, MigSlice | None] | None:
    for gpu in gpus:
        if entry == str(gpu.index) or (entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)):
            return _as_seen(gpu)
        for part in gpu.slices:
            if entry.startswith("MIG-") and (part.uuid or "").startswith(entry):
                return gpu, part
    return None


def _as_seen(gpu: GpuInfo) -> tuple[GpuInfo, MigSlice | None] | None:
    """CUDA shows the first slice of a GPU with MIG on, and nothing of one without slices or of a lost one."""
    if gpu.problem is not None or (gpu.mig and not gpu.slices):
        return None
    return gpu, gpu.slices[0] if gpu.mig else None


class NvmlSource:
    """Samples of one GPU. Used from the sampler's thread only, since each call may take for ever.

    Args:
        index: CUDA's index of the device, after CUDA_VISIBLE_DEVICES.
        uuid: NVML's name of it, which wins: CUDA's order and NVML's can differ.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, index: int, uuid: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._index = index
        self._uuid = uuid
        self._clock = clock
        self._handle: _Handle = None
        self._name = "GPU"
        self._memory_own: int | None = None
        self._processes_due = 0.0

    def open(self) -> None:
        """Find the GPU.

        Raises:
            NvmlUnavailableError: There is no driver, or no such GPU.
        """
        with _told():
            pynvml.nvmlInit()
            try:
                self._handle = self._find()
                self._name = _name(self._handle) or self._name
            except Exception:
                self.close()
                raise

    def read(self) -> DeviceSample:
        """Take a sample.

        Raises:
            NvmlUnavailableError: The GPU is lost.
        """
        with _told():
            now = self._clock()
            if now >= self._processes_due:
                self._processes_due = now + PROCESS_INTERVAL_S
                self._memory_own = _own_memory(_processes(self._handle))
            live = _live(self._handle)
            return DeviceSample(
                name=self._name,
                memory_own=self._memory_own,
                **{**live, "throttle": live["throttle"] or []},
            )

    def close(self) -> None:
        """Give NVML back. Only after `open`: NVML counts its users."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _find(self) -> _Handle:
        uuid = self._uuid
        if uuid is None:
            seen = visible_gpus(_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
            if self._index >= len(seen):
                raise NvmlUnavailableError(f"The NVIDIA driver shows no GPU for cuda:{self._index}.")
            gpu, part = seen[self._index]
            uuid = part.uuid if part else gpu.uuid
            if uuid is None:
                return pynvml.nvmlDeviceGetHandleByIndex(gpu.index)
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _report() -> NvmlReport:
    try:
        with _told():
            pynvml.nvmlInit()
            try:
                return _told_by_driver()
            finally:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()
    except NvmlUnavailableError as error:
        return NvmlReport(problem=str(error))


def _told_by_driver() -> NvmlReport:
    cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    gpus = _gpus()
    return NvmlReport(
        driver=_ask(pynvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        gpus=gpus,
        problem=None if gpus else "The NVIDIA driver is here, and sees no GPU.",
    )


def _gpus() -> list[GpuInfo]:
    return [_gpu(index) for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0)]


def _gpu(index: int) -> GpuInfo:
    try:
        with _told():
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            capability = _ask(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
            mig = _ask(pynvml.nvmlDeviceGetMigMode, handle)
            mig_on = None if mig is None else mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
            return GpuInfo(
                index=index,
                name=_name(handle) or f"GPU {index}",
                uuid=_ask(pynvml.nvmlDeviceGetUUID, handle),
                capability=capability,
                architecture=architecture_name(capability) if capability else None,
                memory_free=_memory(handle)[1],
                processes=_processes(handle),
                mig=mig_on,
                slices=_slices(handle) if mig_on else [],
                **_live(handle),
            )
    except NvmlUnavailableError as error:
        return GpuInfo(index=index, name=f"GPU {index}", problem=str(error))


def _live(handle: _Handle) -> dict[str, Any]:
    """What changes from second to second, under the names that `GpuInfo` and `DeviceSample` share."""
    total, _, used = _memory(handle)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return {
        "utilisation": None if rates is None else rates.gpu / 100,
        "memory_total": total,
        "memory_used": used,
        "power_w": None if power is None else power / 1000,
        "power_limit_w": None if limit is None else limit / 1000,
        "temperature_c": _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        "throttle": _throttle(handle),
    }


def _memory(handle: _Handle) -> tuple[int | None, int | None, int | None]:
    """Total, free and used bytes. Version 2 leaves the driver's own out of `used`; old drivers lack it."""
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    memory = memory or _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (memory.total, memory.free, memory.used) if memory else (None, None, None)


def _throttle(handle: _Handle) -> list[str] | None:
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # drivers before 535 know it by its older name
        reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if reasons is None:
        return None
    return [words for bit, words in _THROTTLE_REASONS.items() if reasons & bit]


def _processes(handle: _Handle) -> list[GpuProcess] | None:
    """Who holds memory, the largest first; a process that computes and draws is told once."""
    lists = [
        _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
        _ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle),
    ]
    if all(processes is None for processes in lists):
        return None
    memory = {process.pid: process.usedGpuMemory for processes in lists for process in processes or []}
    found = [GpuProcess(pid=pid, name=_process_name(pid), memory=used) for pid, used in memory.items()]
    return sorted(found, key=lambda process: -(process.memory or 0))


def _process_name(pid: int) -> str | None:
    try:
        name = _ask(pynvml.nvmlSystemGetProcessName, pid)
    except UnicodeDecodeError:
        return None
    return clean(PurePath(name).name, 40) if name else None


def _own_memory(processes: list[GpuProcess] | None) -> int | None:
    """This process's memory; None too where its number is another inside a container."""
    return next((p.memory for p in processes or [] if p.pid == os.getpid()), None)


def _slices(handle: _Handle) -> list[MigSlice]:
    parts = []
    for index in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if part is not None:
            total, free, _ = _memory(part)
            uuid = _ask(pynvml.nvmlDeviceGetUUID, part)
            parts.append(
                MigSlice(uuid=uuid, name=_name(part) or f"MIG {index}", memory_total=total, memory_free=free)
            )
    return parts


def _name(handle: _Handle) -> str | None:
    name = _ask(pynvml.nvmlDeviceGetName, handle)
    return clean(name, 80) if name else None


def _ask(query: Callable[..., _T], *arguments: object) -> _T | None:
    """Ask for one field: None if this device, driver or user can't have it; a lost GPU is more than that."""
    try:
        return query(*arguments)
    except _LOST:
        raise
    except pynvml.NVMLError:
        return None


@contextmanager
def _told() -> Iterator[None]:
    """Turn an error of NVML into a sentence."""
    try:
        yield
    except pynvml.NVMLError as error:
        sentence = _SENTENCES.get(error.value, f"NVML says: {clean(str(error))}.")
        raise NvmlUnavailableError(sentence) from error
