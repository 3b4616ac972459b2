"""The devices of this machine, from NVML without importing torch, and from torch on request."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mptui.errors import ConfigError
from mptui.events import DeviceSample
from mptui.hardware.formats import (
    Capability,
    Costs,
    Formats,
    cpu_costs,
    cpu_formats,
    cuda_costs,
    cuda_formats,
    has_code_for,
)
from mptui.hardware.host import Host, read_host
from mptui.hardware.nvml import (
    VISIBLE,
    GpuInfo,
    MigSlice,
    NvmlReport,
    hidden_gpus,
    hides_all,
    read_gpus,
    unseen_gpus,
    visible_gpus,
)
from mptui.hardware.torch_view import Kind, TorchDevice, TorchView, read_torch, why_no_code, why_unlisted

CONTEXT_BYTES = {"cuda": 640 << 20, "cpu": 100 << 20}
"""A CUDA context with its libraries; on a CPU compiled kernels and memory that the allocator retains."""

USABLE = 0.9
"""Share of a device's memory that runs are planned into: an estimate errs, and allocators leave gaps."""

_GIB = 1024**3
_ON_THE_CPU = "or train on the CPU all the same: --device cpu (hardware.device); see: mptui detect"
_ABOUT_EQUAL = 0.9
"""Devices with at least this fraction of the best one's capacity count as equal: samples are inexact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device to train on.

    `native` is the support for each format, `costs` known slowdowns. `index` is torch's, `uuid` NVML's.
    `built_for`: whether this torch has code for the device; `usable`: whether it can train. Without torch,
    `built_for` is None and `usable` an assumption. Memory in bytes.
    """

    kind: Kind
    index: int
    name: str
    architecture: str | None
    capability: Capability | None = None
    uuid: str | None = None
    memory_total: int | None
    memory_free: int | None = None
    native: Formats
    costs: Costs = field(default_factory=dict)
    built_for: bool | None = None
    usable: bool = True
    notes: list[str] = field(default_factory=list)
    gpu: GpuInfo | None = None

    @property
    def torch_name(self) -> str:
        """The device in torch's names: `cuda:0` (ROCm too), `xpu:0`, `mps`, `cpu`."""
        if self.kind in {"cpu", "mps"}:
            return self.kind
        return f"{'cuda' if self.kind == 'rocm' else self.kind}:{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All devices, the CPU last, and remarks about the machine as a whole (`notes`).

    `faults` are those of `notes` that say why a GPU is no device, though nobody has hidden it. `hidden` is
    the note of GPUs that CUDA_VISIBLE_DEVICES hides.
    """

    host: Host
    driver: str | None
    cuda: tuple[int, int] | None
    torch: TorchView | None
    devices: list[Device]
    notes: list[str]
    faults: list[str] = field(default_factory=list)
    hidden: str | None = None


def find_machine(with_torch: bool) -> Machine:
    """Find the devices of this machine; `with_torch` imports torch (seconds) to check them."""
    report = read_gpus()
    host = read_host()
    torch = read_torch() if with_torch else None
    return describe_machine(report, host, torch, os.environ)


def describe_machine(
    report: NvmlReport, host: Host, torch: TorchView | None, environment: Mapping[str, str]
) -> Machine:
    """Combine the three views of a machine, without querying hardware."""
    seen = visible_gpus(report.gpus, environment.get(VISIBLE))
    accelerators = [_merged(device, report, seen, torch) for device in torch.devices] if torch else []
    if not any(device.kind == "cuda" for device in accelerators):
        accelerators += [_from_nvml(index, each, report, torch) for index, each in enumerate(seen)]
    faults = unseen_gpus(report, seen, environment.get(VISIBLE))
    fault = None if accelerators or not report.fails else report.problem
    if fault:
        faults.insert(0, fault)
    hidden = hidden_gpus(report, seen, environment.get(VISIBLE))
    return Machine(
        host=host,
        driver=report.driver,
        cuda=report.cuda,
        torch=torch,
        devices=[*accelerators, _cpu(host)],
        notes=[*faults, *_notes(report, torch, environment, hidden, elsewhere=bool(accelerators))],
        faults=[] if hides_all(environment.get(VISIBLE)) else faults,
        hidden=hidden,
    )


def check_torch(machine: Machine) -> None:
    """Check that torch could be imported, if that was tried.

    Raises:
        ConfigError: It can't be imported.
    """
    torch = machine.torch
    problem = torch.problem if torch is not None and torch.version is None else None
    if problem is not None:
        raise ConfigError(problem, hint="see python -c 'import torch'; mptui doctor examines the machine")


def select_device(asked: str, machine: Machine) -> Device:
    """Choose the device for `hardware.device`; auto: the default device.

    Raises:
        ConfigError: The device doesn't exist, or torch can't use it; or auto would be the CPU of a machine
            whose GPUs can't be used.
    """
    if asked == "auto":
        default, reason = default_device(machine.devices), why_no_default(machine)
        if default is None or reason is not None:
            raise _refusal(str(reason))
        return default
    wanted = f"{asked}:0" if asked in {"cuda", "xpu"} else asked
    for device in machine.devices:
        if device.torch_name == wanted:
            if not device.usable:
                raise _refusal(f"--device {asked}: {device.notes[0]}")
            return device
    known = ", ".join(device.torch_name for device in machine.devices)
    raise ConfigError(
        f"--device {asked}: this machine has {known}.",
        hint=machine.faults[0] if machine.faults else "choose one of these, or use --device auto",
    )


def _refusal(sentence: str) -> ConfigError:
    """Return the error for a device that can't be used: the remedy is after the last colon of `sentence`."""
    fact, _, remedy = sentence.rstrip(".").rpartition(": ")
    return ConfigError(fact, hint=f"{remedy}; {_ON_THE_CPU}")


def why_no_default(machine: Machine) -> str | None:
    """Return why no device is the default one: the machine has GPUs, and none can be used; None if one is.

    A run that takes days on the CPU beside an idle GPU is a person's own choice.
    """
    first = machine.devices[0]
    if default_device(machine.devices) is None:
        return f"{first.torch_name} ({first.name}) can't be used: {first.notes[0]}"
    return machine.faults[0] if first.kind == "cpu" and machine.faults else None


def why_alone(device: Device) -> str | None:
    """Return why a run on several devices can't have this one; None if it can."""
    if not device.usable:
        return device.notes[0]
    if device.kind == "cpu":
        return "the CPU is one device; two processes on it: mptui run --device cpu --nproc-per-node 2"
    if device.kind not in {"cuda", "rocm"}:
        return "several devices of this kind: mptui run --nproc-per-node gpu"
    return None


def tightest(devices: Sequence[Device]) -> Device:
    """Return the device with the least free memory, which limits a run on all of them."""
    return min(devices, key=lambda device: device.memory_free if device.memory_free is not None else math.inf)


def as_sampled(device: Device, sample: DeviceSample, problem: str | None) -> Device:
    """Return a GPU with its load of a later sample; one without new samples, for a `problem`, can't train."""
    if device.gpu is None:
        return device
    if problem is not None:
        return replace(device, usable=False)
    if sample.memory_total is None or sample.memory_used is None:
        return device
    free = sample.memory_total - sample.memory_used
    gpu = replace(device.gpu, utilisation=sample.utilisation, throttle=sample.throttle)
    return replace(device, memory_free=free, gpu=gpu)


def default_device(devices: Sequence[Device]) -> Device | None:
    """Return the usable accelerator with the most free capacity; without accelerators the CPU; else None.

    Capacity is idle compute times free memory, so that a large GPU with a small load precedes a small idle
    one. Of about equal ones, the newest is chosen; of these, one that is not throttled; of these, the
    first, which is CUDA's fastest.
    """
    freest = _freest(devices)
    if not freest:
        return devices[0] if devices[0].kind == "cpu" else None
    return max(freest, key=lambda device: (device.capability or (0, 0), not _throttle(device)))


def default_reason(devices: Sequence[Device]) -> str | None:
    """Return a sentence that says why the default device is not the first usable one; None if it is."""
    usable = [device for device in devices if device.usable and device.kind != "cpu"]
    default = default_device(devices)
    if default not in usable[1:]:
        return None
    if usable[0] in _freest(devices):
        if default.capability == usable[0].capability:
            words = f"{usable[0].torch_name} is as free, but throttled ({', '.join(_throttle(usable[0]))})"
            return f"{default.torch_name} is the default: {words}."
        return f"{default.torch_name} is the newest of the GPUs with the most free capacity, and the default."
    return (
        f"{default.torch_name} has the most free capacity of {len(usable)} GPUs and is the default: "
        f"{usable[0].torch_name} {_load_words(usable[0])}."
    )


def _freest(devices: Sequence[Device]) -> list[Device]:
    """Return the usable accelerators with about the most free capacity."""
    usable = [device for device in devices if device.usable and device.kind != "cpu"]
    enough = _ABOUT_EQUAL * max(map(_free_capacity, usable), default=0.0)
    return [device for device in usable if _free_capacity(device) >= enough]


def _free_capacity(device: Device) -> float:
    """Return the idle fraction of compute times free memory, in bytes; unknown values count as free."""
    free = device.memory_total if device.memory_free is None else device.memory_free
    busy = device.gpu.utilisation if device.gpu else None
    return (free or 0) * (1 - (busy or 0.0))


def _throttle(device: Device) -> Sequence[str]:
    """Return why its clocks are throttled; empty: they are not, or it is not known."""
    return (device.gpu.throttle or ()) if device.gpu is not None else ()


def _load_words(device: Device) -> str:
    parts = []
    if device.gpu is not None and device.gpu.utilisation is not None:
        parts.append(f"is {device.gpu.utilisation:.0%} busy")
    if device.memory_total is not None and device.memory_free is not None:
        parts.append(f"has {device.memory_free / _GIB:.1f} of {device.memory_total / _GIB:.1f} GiB free")
    return " and ".join(parts)


def _cpu(host: Host) -> Device:
    return Device(
        kind="cpu",
        index=0,
        name=host.name,
        architecture=None,
        memory_total=host.memory_total,
        memory_free=host.memory_free,
        native=cpu_formats(host.features),
        costs=cpu_costs(host.features),
    )


def _merged(
    device: TorchDevice,
    report: NvmlReport,
    seen: Sequence[tuple[GpuInfo, MigSlice | None]],
    torch: TorchView,
) -> Device:
    """Combine torch's view of a device with NVML's."""
    gpu, part = _same_chip(device, report.gpus, seen)
    no_code = why_no_code(device.architecture, device.capability, torch, report.cuda)
    notes = [] if device.built_for else [no_code]
    source = part or gpu
    return Device(
        kind=device.kind,
        index=device.index,
        name=device.name,
        architecture=device.architecture,
        capability=device.capability,
        uuid=source.uuid if source else None,
        memory_total=device.memory_total,
        memory_free=source.memory_free if source else None,
        native=device.native,
        costs=cuda_costs(device.capability) if device.capability else {},
        built_for=device.built_for,
        usable=device.built_for,
        notes=[*notes, *_mig_notes(gpu, part)],
        gpu=gpu,
    )


def _same_chip(
    device: TorchDevice, gpus: Sequence[GpuInfo], seen: Sequence[tuple[GpuInfo, MigSlice | None]]
) -> tuple[GpuInfo | None, MigSlice | None]:
    """Match by UUID, since CUDA and NVML may number the GPUs differently.

    CUDA may tell the UUID of a GPU for a slice of it: then the slice is the one that its variable names.
    """
    if device.uuid is None:
        return None, None
    for gpu in gpus:
        for part in gpu.slices:
            if (part.uuid or "").endswith(device.uuid):
                return gpu, part
        if (gpu.uuid or "").endswith(device.uuid):
            return next((each for each in [*seen[device.index :], *seen] if each[0] == gpu), (gpu, None))
    return None, None


def _from_nvml(
    index: int, seen: tuple[GpuInfo, MigSlice | None], report: NvmlReport, torch: TorchView | None
) -> Device:
    """Return a GPU that only NVML reports, which can't be used if torch was queried."""
    gpu, part = seen
    source = part or gpu
    capability = gpu.capability
    unusable = why_unlisted(report, torch, capability) if torch else None
    return Device(
        kind="cuda",
        index=index,
        name=source.name,
        architecture=gpu.architecture,
        capability=capability,
        uuid=source.uuid,
        memory_total=source.memory_total,
        memory_free=source.memory_free,
        native=cuda_formats(capability, gpu.name) if capability else {},
        costs=cuda_costs(capability) if capability else {},
        built_for=has_code_for(capability, torch.architectures) if torch and capability else None,
        usable=unusable is None,
        notes=[*([unusable] if unusable else []), *_mig_notes(gpu, part)],
        gpu=gpu,
    )


def _mig_notes(gpu: GpuInfo | None, part: MigSlice | None) -> list[str]:
    if gpu is None or part is None:
        return []
    slices = "its only slice" if len(gpu.slices) == 1 else f"one of its {len(gpu.slices)} slices"
    return [f"MIG is on: a run trains on {slices}; CUDA_VISIBLE_DEVICES={part.uuid} names this one."]


def _notes(
    report: NvmlReport,
    torch: TorchView | None,
    environment: Mapping[str, str],
    hidden: str | None,
    *,
    elsewhere: bool,
) -> list[str]:
    """Return other remarks about the machine; a missing NVML is not one if the GPUs are `elsewhere`."""
    missing = None if report.fails or elsewhere else report.problem
    notes = [note for note in (missing, hidden) if note]
    are_alike = len({gpu.name for gpu in report.gpus}) < 2
    is_fastest_first = not are_alike and "CUDA_DEVICE_ORDER" not in environment
    if is_fastest_first and not torch:
        notes.append(
            "CUDA numbers the fastest GPU first; CUDA_DEVICE_ORDER=PCI_BUS_ID keeps to the order shown here."
        )
    if torch and torch.problem:
        notes.append(torch.problem)
    return notes
