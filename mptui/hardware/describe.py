"""Devices in words and CSV."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from mptui.events import DeviceProcess, DeviceSample
from mptui.hardware.advice import GIB, Recommendation, batch_words
from mptui.hardware.devices import Device, Machine
from mptui.hardware.formats import Support
from mptui.hardware.host import Host
from mptui.hardware.nvml import GpuInfo, read_gpus

# Describes a device in a few lines, and who holds its memory
# -----------------------------------------------------------

_FORMAT_NAMES = {"fp16": "fp16", "bf16": "bf16", "tf32": "TF32"}  # fp8 is explained in a note
_SUPPORT_WORDS: dict[Support, str] = {
    "native": "native",
    "memory-only": "saves memory only",
    "unreliable": "gives NaN",
    "slow": "possible, slow",
    "emulated": "emulated, slow",
    "no": "no",
}
_GAP = "   "
_MUCH = 0.05
"""Share of a device's memory from which others who hold it are named."""


def device_title(device: Device) -> str:
    """Return the title of a device: `cuda:0  NVIDIA H200`."""
    return f"{device.torch_name}  {device.name}"


def short_names(devices: Sequence[Device]) -> str:
    """Return the names of devices of one kind: `cuda:0, 2, 5`."""
    first, *others = devices
    return ", ".join([first.torch_name, *(str(device.index) for device in others)])


@dataclass(frozen=True, slots=True)
class Description:
    """Description of a device, line by line; unknown parts are omitted."""

    identity: str
    activity: str
    formats: tuple[str, ...]
    use: str
    start: str
    notes: tuple[str, ...]


def describe(device: Device, recommendation: Recommendation, machine: Machine) -> Description:
    """Describe a device: identity, current load, formats, recommended precision and settings."""
    identity = [_identity(device), memory_words(device)]
    if device.kind == "cuda" and machine.driver:
        cuda = f" CUDA {machine.cuda[0]}.{machine.cuda[1]}" if machine.cuda else ""
        identity.append(f"driver {machine.driver.partition('.')[0]}{cuda}")
    if device.kind == "cpu":
        identity = [_cores(machine.host), *identity]
    return Description(
        identity=_joined(identity),
        activity=_joined(_activity(device.gpu)) if device.gpu else "",
        formats=tuple(_formats(device)),
        use=f"use {recommendation.precision}: {recommendation.reason}",
        start=_joined(start_with(recommendation)),
        notes=tuple(recommendation.notes),
    )


def device_lines(device: Device, recommendation: Recommendation, machine: Machine) -> list[str]:
    """Describe a device in a few lines."""
    text = describe(device, recommendation, machine)
    lines = [text.identity, text.activity, _joined(text.formats), text.use, text.start, *text.notes]
    return [line for line in lines if line]


def start_with(recommendation: Recommendation) -> list[str]:
    """Return the recommended profile, its batch for a classifier, and the workers."""
    size, profile = recommendation.batch_size, f"profile {recommendation.profile}"
    suited = _suited(*recommendation.batch_range) if recommendation.batch_range else ""
    words = "" if size is None else batch_words(size, recommendation.accumulate)
    batch = f"batch {words} (a ResNet{suited})" if words else ""
    return [part for part in (profile, batch, f"workers {recommendation.workers}") if part]


def _suited(least: int, most: int) -> str:
    return f"; {most} suits it" if least == most else f"; {least} to {most} suit it"


def torch_line(machine: Machine) -> str | None:
    """Return torch's version and build; None if torch was not queried."""
    torch = machine.torch
    if torch is None or torch.version is None:
        return None
    if torch.hip:
        built = f", built for ROCm {torch.hip}"
    elif torch.cuda:
        built = f", built for CUDA {torch.cuda}"
    else:
        built = ", built for the CPU"
    known = list(dict.fromkeys([*torch.architectures[:1], *torch.architectures[-1:]]))
    return f"torch {torch.version}{built}" + (f", {' to '.join(known)}" if known else "")


def _joined(parts: Iterable[str]) -> str:
    return _GAP.join(part for part in parts if part)


def _identity(device: Device) -> str:
    capability = (
        f"compute capability {device.capability[0]}.{device.capability[1]}" if device.capability else ""
    )
    return ", ".join(part for part in (device.architecture, capability) if part)


def _cores(host: Host) -> str:
    usable = (
        "" if host.cpus_usable == host.cores_logical else f", {host.cpus_usable} of them for this process"
    )
    return f"{host.cores_logical} CPUs{usable}"


def memory_words(device: Device, digits: int = 0) -> str:
    """Describe the memory of a device with `digits` decimals; empty if it is not known."""
    if device.memory_total is None:
        return ""
    free = "" if device.memory_free is None else f", {device.memory_free / GIB:.{digits}f} free"
    return f"{device.memory_total / GIB:.{digits}f} GiB{free}"


def _activity(gpu: GpuInfo) -> list[str]:
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"
    if power and gpu.power_limit_w is not None:
        power = f"{gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W"
    return [
        "" if gpu.utilisation is None else f"busy {gpu.utilisation:.0%}",
        "" if gpu.temperature_c is None else f"{gpu.temperature_c:.0f} °C",
        power,
        _throttle(gpu),
        others_on(gpu.processes),
    ]


def _throttle(gpu: GpuInfo) -> str:
    if gpu.throttle is None:
        return ""
    return f"throttled: {', '.join(gpu.throttle)}" if gpu.throttle else "no throttling"


def others_on(processes: Sequence[DeviceProcess] | None) -> str:
    """Name the largest of the processes on a GPU; "" if they are not known."""
    if processes is None:
        return ""
    if not processes:
        return "no other processes"
    first, *rest = processes
    by = f"pid {first.pid}" if first.user is None else f"{first.user}, pid {first.pid}"
    name = f"{first.command} ({by})" if first.command else f"pid {first.pid}"
    memory = "" if first.memory is None else f" has {first.memory / GIB:.1f} GiB"
    return f"{name}{memory}" + (f", and {len(rest)} more" if rest else "")


def _formats(device: Device) -> list[str]:
    names = [name for name in _FORMAT_NAMES if name in device.native]
    if device.kind != "cuda":
        names = [name for name in names if device.native[name] != "no"]
    return [f"{_FORMAT_NAMES[name]} {_SUPPORT_WORDS[device.native[name]]}" for name in names]


def held_by_others() -> str:
    """Return who else holds memory of the current CUDA device, in words.

    Empty if nobody holds much, or if it can't be told: a container shows other PIDs than the driver.
    """
    import torch

    if torch.version.cuda is None or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    try:
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    except RuntimeError:  # it does not answer any more
        return ""
    gpu = next((gpu for gpu in read_gpus().gpus if (gpu.uuid or "").endswith(uuid)), None)
    if gpu is None or gpu.processes is None:
        return ""
    others = [process for process in gpu.processes if process.pid != os.getpid()]
    held = sum(process.memory or 0 for process in others)
    if len(others) == len(gpu.processes) or held < _MUCH * (gpu.memory_total or 0):
        return ""
    return f"{others_on(others)} on this GPU"


def hint_of_others() -> str:
    """Return the part of a hint for memory that others hold, as `held_by_others`."""
    others = held_by_others()
    return others and f"{others}: end it, or choose another GPU with --device cuda:N; or "


# Device statistics as rows of a CSV file: of `mptui monitor --csv`, and of `device.csv` in a run
# -----------------------------------------------------------------------------------------------
# One table is the truth for the columns. Unknown values are empty.

COLUMNS: Mapping[str, Callable[[DeviceSample], object]] = {
    "time": lambda sample: _iso(sample.time),
    "device": lambda sample: sample.device,
    "name": lambda sample: sample.name,
    "utilisation_percent": lambda sample: _percent(sample.utilisation),
    "utilisation_own_percent": lambda sample: _percent(sample.utilisation_own),
    "memory_utilisation_percent": lambda sample: _percent(sample.memory_utilisation),
    "memory_used_bytes": lambda sample: sample.memory_used,
    "memory_own_bytes": lambda sample: sample.memory_own,
    "memory_total_bytes": lambda sample: sample.memory_total,
    "power_w": lambda sample: sample.power_w,
    "power_limit_w": lambda sample: sample.power_limit_w,
    "temperature_c": lambda sample: sample.temperature_c,
    "sm_clock_mhz": lambda sample: sample.sm_clock_mhz,
    "memory_clock_mhz": lambda sample: sample.memory_clock_mhz,
    "throttle": lambda sample: "; ".join(sample.throttle),
    "processes": lambda sample: "; ".join(process_words(each) for each in sample.processes or ()),
}
"""Heading, with the unit -> value of a sample."""


def csv_header() -> str:
    """Return the headings as a line of CSV."""
    return _line(list(COLUMNS))


def csv_row(sample: DeviceSample) -> str:
    """Return a sample as a line of CSV."""
    return _line([value(sample) for value in COLUMNS.values()])


def process_words(process: DeviceProcess) -> str:
    """Return `PID USER BYTES COMMAND`; `?` for what is unknown."""
    known = (process.pid, process.user, process.memory, process.command)
    return " ".join("?" if value is None else str(value) for value in known)


def _line(values: Sequence[object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else round(100 * fraction, 1)
