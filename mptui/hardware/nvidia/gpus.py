"""NVIDIA GPUs as NVML reports them, and which of them CUDA shows to a process."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mptui.events import DeviceProcess


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
        if entry == str(gpu.index) or (entry.startswith("GPU-") and (gpu.uuid or "").startswith(entry)):
            return _as_seen(gpu)
        for part in gpu.slices:
            if part.is_named(entry):
                return gpu, part
    return None


def _as_seen(gpu: GpuInfo) -> tuple[GpuInfo, MigSlice | None] | None:
    """Return what CUDA shows of a GPU: with MIG on, its first slice; None if it has no slice or is lost."""
    if gpu.problem is not None or (gpu.mig and not gpu.slices):
        return None
    return gpu, gpu.slices[0] if gpu.mig else None
