"""NVIDIA GPUs through NVML, without torch: properties, load and processes; which of them CUDA shows."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import pynvml

from mptui.events import DeviceProcess, DeviceSample
from mptui.hardware.formats import architecture_name
from mptui.hardware.host import user_and_command
from mptui.text import clean

# NVIDIA GPUs as NVML reports them, and which of them CUDA shows to a process
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """A MIG slice of a GPU, which is a separate device. Memory in bytes.

    `uuid` is as the driver writes it: `MIG-<own UUID>`, and before version 470 as `path`, which is `MIG-<UUID
    of the GPU>/<GPU instance>/<compute instance>`. CUDA knows a slice by both.
    """

    uuid: str | None
    name: str
    memory_total: int | None
    memory_free: int | None
    path: str | None = None

    def is_named(self, entry: str) -> bool:
        """Whether an entry of CUDA_VISIBLE_DEVICES names this slice: its path, or a prefix of its UUID."""
        return entry.startswith("MIG-") and (entry == self.path or (self.uuid or "").startswith(entry))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """A GPU as reported by NVML, with NVML's index; fields are None if they are unknown.

    `utilisation` and `memory_utilisation` are fractions of 1; the rest bytes, watts, degrees Celsius, MHz.
    `problem` is a sentence if the GPU does not respond.
    """

    index: int
    name: str
    uuid: str | None = None
    capability: tuple[int, int] | None = None
    architecture: str | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    memory_used: int | None = None
    processes: list[DeviceProcess] | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: list[str] | None = None
    utilisation: float | None = None
    memory_utilisation: float | None = None
    mig: bool | None = None
    slices: list[MigSlice] = field(default_factory=list)
    problem: str | None = None

    @property
    def lacks_slices(self) -> bool:
        """Whether MIG is on and no slice made: then CUDA has no device of it."""
        return bool(self.mig) and not self.slices

    def is_named(self, entry: str) -> bool:
        """Whether an entry of CUDA_VISIBLE_DEVICES names this GPU: its index, or a prefix of its UUID."""
        has_prefix = entry.startswith("GPU-") and (self.uuid or "").startswith(entry)
        return has_prefix or entry == str(self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReport:
    """NVML's report of the machine; `problem` is a sentence if there is none.

    `fails`: the driver is in use, and doesn't answer. A machine without a GPU has another problem.
    """

    driver: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: list[GpuInfo] = field(default_factory=list)
    problem: str | None = None
    fails: bool = False


def visible_gpus(
    gpus: Sequence[GpuInfo], visible_devices: str | None
) -> list[tuple[GpuInfo, MigSlice | None]]:
    """List the GPUs and slices that CUDA sees, in CUDA's order, for a value of CUDA_VISIBLE_DEVICES.

    Entries are indices, prefixes of UUIDs, or paths of slices; like CUDA, stop at the first that names none.
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
        if gpu.is_named(entry):
            return _as_seen(gpu)
        for part in gpu.slices:
            if part.is_named(entry):
                return gpu, part
    return None


def _as_seen(gpu: GpuInfo) -> tuple[GpuInfo, MigSlice | None] | None:
    """Return what CUDA shows of a GPU: with MIG on, its first slice; None if it has no slice or is lost."""
    if gpu.problem is not None or gpu.lacks_slices:
        return None
    return gpu, gpu.slices[0] if gpu.mig else None


# NVIDIA GPUs through NVML, without torch: properties, current load, and processes
# --------------------------------------------------------------------------------
# Any single query may fail: a card without a power sensor, a slice of a card, a driver older than the
# query. Such a field is None, without affecting the others. A query may also never return, so no other
# thread waits for one without a time limit.

PROCESS_INTERVAL_S = 5.0
"""Seconds between two reads of the process list, which holds a lock of the driver for milliseconds."""

_T = TypeVar("_T")
_Handle: TypeAlias = Any  # opaque, and pynvml has no types

_LOST = (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired)

_SENTENCES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "This machine has no NVIDIA driver.",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "The NVIDIA driver is installed but not loaded: load its kernel module, or restart the machine."
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "No permission to use the NVIDIA driver: get access to /dev/nvidia*, or give the container GPUs."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA driver was updated while it was loaded: restart the machine."
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: (
        "The GPU is lost: it no longer responds on its bus. Restart the machine; if this happens again, "
        "check power, cooling and seating of the card."
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


_ABSENT = {pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED}
"""Errors of machines without a GPU; images of machines may have the driver all the same."""


class NvmlUnavailableError(Exception):
    """NVML can't be read; the message is a sentence for users."""


def read_gpus(timeout_s: float = 5.0) -> NvmlReport:
    """Query NVML once for all values; a driver that takes over `timeout_s` is reported in `problem`."""
    reports: list[NvmlReport] = []
    reader = threading.Thread(target=lambda: reports.append(_report()), name="nvml-report", daemon=True)
    reader.start()
    reader.join(timeout_s)
    if reader.is_alive():
        return NvmlReport(
            problem=f"The NVIDIA driver has not responded for {timeout_s:g} s: see the kernel log (dmesg).",
            fails=True,
        )
    return reports[0]


class NvmlSource:
    """Samples of one GPU. Used only by the sampler's thread, since any call may hang.

    Args:
        index: CUDA's index of the device, after CUDA_VISIBLE_DEVICES.
        uuid: NVML's UUID, which takes precedence: CUDA's order and NVML's can differ.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self, index: int, uuid: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._index = index
        self._uuid = uuid
        self._clock = clock
        self._handle: _Handle = None
        self._name = "GPU"
        self._processes: list[DeviceProcess] | None = None
        self._processes_due = 0.0

    def open(self) -> None:
        """Find the GPU.

        Raises:
            NvmlUnavailableError: There is no driver or no such GPU.
        """
        with _readable_errors():
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
        with _readable_errors():
            now = self._clock()
            if now >= self._processes_due:
                self._processes_due = now + PROCESS_INTERVAL_S
                self._processes = _processes(self._handle)
            live = _live(self._handle)
            return DeviceSample(
                name=self._name,
                memory_own=_own_memory(self._processes),
                processes=self._processes,
                **{**live, "throttle": live["throttle"] or []},
            )

    def close(self) -> None:
        """Release NVML. Only after `open`: NVML counts its users."""
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
        with _readable_errors():
            pynvml.nvmlInit()
            try:
                return _query_driver()
            finally:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()
    except NvmlUnavailableError as error:
        reason = error.__cause__
        absent = isinstance(reason, pynvml.NVMLError) and reason.value in _ABSENT
        return NvmlReport(problem=str(error), fails=not absent)


def _query_driver() -> NvmlReport:
    cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    gpus = _gpus()
    return NvmlReport(
        driver=_ask(pynvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        gpus=gpus,
        problem=None if gpus else "The NVIDIA driver is loaded, but sees no GPU.",
    )


def _gpus() -> list[GpuInfo]:
    return [_gpu(index) for index in range(_ask(pynvml.nvmlDeviceGetCount) or 0)]


def _gpu(index: int) -> GpuInfo:
    try:
        with _readable_errors():
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
    """Return the current load, under the field names shared by `GpuInfo` and `DeviceSample`."""
    total, _, used = _memory(handle)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return {
        "utilisation": None if rates is None else rates.gpu / 100,
        "memory_utilisation": None if rates is None else rates.memory / 100,
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
    """Return total, free and used bytes. Version 2 excludes the driver's own; old drivers lack it."""
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


def _processes(handle: _Handle) -> list[DeviceProcess] | None:
    """Return the processes that hold memory, largest first; each once, also if it both computes and draws."""
    lists = [
        _ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle),
        _ask(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, handle),
    ]
    if all(processes is None for processes in lists):
        return None
    memory = {process.pid: process.usedGpuMemory for processes in lists for process in processes or []}
    found = [_process(pid, used) for pid, used in memory.items()]
    return sorted(found, key=lambda process: -(process.memory or 0))


def _process(pid: int, memory: int | None) -> DeviceProcess:
    try:
        name = _ask(pynvml.nvmlSystemGetProcessName, pid)
    except UnicodeDecodeError:
        name = None
    user, command = user_and_command(pid, name)
    return DeviceProcess(pid=pid, user=user, command=command, memory=memory)


def _own_memory(processes: list[DeviceProcess] | None) -> int | None:
    """Return this process's memory; None also if its PID differs inside a container."""
    return next((p.memory for p in processes or [] if p.pid == os.getpid()), None)


def _slices(handle: _Handle) -> list[MigSlice]:
    parts = []
    for index in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if part is not None:
            total, free, _ = _memory(part)
            parts.append(
                MigSlice(
                    uuid=_ask(pynvml.nvmlDeviceGetUUID, part),
                    name=_name(part) or f"MIG {index}",
                    memory_total=total,
                    memory_free=free,
                    path=_path(handle, part),
                )
            )
    return parts


def _path(gpu: _Handle, part: _Handle) -> str | None:
    uuid = _ask(pynvml.nvmlDeviceGetUUID, gpu)
    instances = [
        _ask(query, part)
        for query in (pynvml.nvmlDeviceGetGpuInstanceId, pynvml.nvmlDeviceGetComputeInstanceId)
    ]
    return None if None in (uuid, *instances) else f"MIG-{uuid}/{instances[0]}/{instances[1]}"


def _name(handle: _Handle) -> str | None:
    name = _ask(pynvml.nvmlDeviceGetName, handle)
    return clean(name, 80) if name else None


def _ask(query: Callable[..., _T], *arguments: object) -> _T | None:
    """Query one field; None if it is unavailable. The loss of the GPU is raised."""
    try:
        return query(*arguments)
    except _LOST:
        raise
    except pynvml.NVMLError:
        return None


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Turn NVML's errors into `NvmlUnavailableError` with a sentence."""
    try:
        yield
    except pynvml.NVMLError as error:
        sentence = _SENTENCES.get(
            error.value, f"The NVIDIA driver fails ({clean(str(error))}): see nvidia-smi."
        )
        raise NvmlUnavailableError(sentence) from error


# GPUs that NVML reports and CUDA does not show: what keeps each from being a device
# ----------------------------------------------------------------------------------

VISIBLE = "CUDA_VISIBLE_DEVICES"
_HIDE_ALL = {"", "-1", "NoDevFiles", "none"}
"""Values with which people, and SLURM, hide all GPUs."""


def hides_all(visible_devices: str | None) -> bool:
    """Whether a value of CUDA_VISIBLE_DEVICES hides all GPUs on purpose."""
    return visible_devices is not None and visible_devices.strip() in _HIDE_ALL


def hidden_gpus(
    report: NvmlReport, seen: Sequence[tuple[GpuInfo, MigSlice | None]], visible_devices: str | None
) -> str | None:
    """Return how many GPUs a value of CUDA_VISIBLE_DEVICES hides, as a sentence; None if it hides none."""
    hidden = len(report.gpus) - len({gpu.index for gpu, _ in seen})
    if visible_devices is None or hidden == 0:
        return None
    return f"{VISIBLE}={visible_devices} hides {hidden} of {len(report.gpus)} GPUs."


def unseen_gpus(
    report: NvmlReport, seen: Sequence[tuple[GpuInfo, MigSlice | None]], visible_devices: str | None
) -> list[str]:
    """Return why GPUs are no devices though nobody hides them: a sentence each, the remedy after a colon."""
    faults = [f"{gpu.name}: {gpu.problem}" for gpu in report.gpus if gpu.problem]
    faults += [
        f"{gpu.name} (GPU {gpu.index}) has MIG on and no slice: make one with nvidia-smi mig -cgi 0 -C, "
        "or turn MIG off."
        for gpu in report.gpus
        if gpu.lacks_slices
    ]
    should_show_some = visible_devices is not None and not hides_all(visible_devices)
    are_all_hidden = report.gpus and not seen
    if should_show_some and are_all_hidden:
        here = ", ".join(str(gpu.index) for gpu in report.gpus)
        faults.append(
            f"{VISIBLE}={visible_devices} names no GPU of this machine, which has {here}: change or unset it."
        )
    return faults
