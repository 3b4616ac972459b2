"""What a machine has, looked at in the background: its devices, their load, recommended settings."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.events import DeviceSample

if TYPE_CHECKING:
    from mptui.hardware.advice import Recommendation
    from mptui.hardware.devices import Device, Machine
    from mptui.hardware.sampler import DeviceSampler


# One sampler per device of a screen, without blocking the screen
# ---------------------------------------------------------------

HISTORY = 240
"""Samples that are kept of each device, one a second."""

SETTLED = 10
"""Samples of which the mean tells how busy a device is: a peak of a second is no load."""

_NO_STATISTICS = {
    "rocm": "No live statistics: AMD GPUs need amdsmi (pip install 'mptui[amd]').",
    "xpu": "No live statistics: Intel GPUs need a recent torch, and pyzes (pip install pyzes).",
    "mps": "No live statistics: torch has none of Apple GPUs, the memory is that of the CPU.",
}


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The latest sample of a device; all unknown but the total memory if there is none.

    `problem` says why there are no new samples, `past` is the samples so far, newest last.
    """

    sample: DeviceSample
    problem: str | None = None
    past: Sequence[DeviceSample] = ()

    @property
    def busy(self) -> list[float]:
        """Its utilisation so far (0 to 1), newest last."""
        return [sample.utilisation for sample in self.past if sample.utilisation is not None]

    @property
    def settled(self) -> DeviceSample:
        """The sample with the mean of the latest utilisations."""
        newest = self.busy[-SETTLED:]
        return replace(self.sample, utilisation=sum(newest) / len(newest)) if newest else self.sample


class DeviceSamplers:
    """Runs a sampler for each device."""

    def __init__(self) -> None:
        self._samplers: dict[str, DeviceSampler] = {}
        self._past: dict[str, deque[DeviceSample]] = {}

    def follow(self, devices: Sequence["Device"]) -> None:
        """Sample exactly these devices; those that are sampled already keep their history."""
        from mptui.hardware.sampler import DeviceSampler, is_sampled

        wanted = {_key(device): device for device in devices if is_sampled(device.kind)}
        kept = {
            key: sampler
            for key, sampler in self._samplers.items()
            if key in wanted and sampler.problem() is None
        }
        _stop([sampler for key, sampler in self._samplers.items() if key not in kept])
        self._samplers = kept
        for key, device in wanted.items():
            if key not in kept:
                self._past[key] = deque(maxlen=HISTORY)
                self._samplers[key] = DeviceSampler(device.torch_name, uuid=device.uuid)
                self._samplers[key].start()

    def latest(self, device: "Device") -> DeviceReading:
        """Return the latest sample of a device, without waiting for its driver."""
        key = _key(device)
        empty = DeviceSample(name=device.name, device=device.torch_name, memory_total=device.memory_total)
        sampler = self._samplers.get(key)
        if sampler is None:
            return DeviceReading(empty, _NO_STATISTICS.get(device.kind))
        sample, past = sampler.latest() or empty, self._past[key]
        is_new = not past or sample.time != past[-1].time
        if is_new and sample.utilisation is not None:
            past.append(sample)
        if sample.memory_total is None:
            sample = replace(sample, memory_total=device.memory_total)
        return DeviceReading(sample, sampler.problem(), past)

    def stop(self) -> None:
        """Stop all samplers, without waiting for one that hangs in its driver."""
        _stop(list(self._samplers.values()))
        self._samplers = {}


def _key(device: "Device") -> str:
    return f"{device.torch_name} {device.uuid}"


def _stop(samplers: "Sequence[DeviceSampler]") -> None:
    def stop_all() -> None:
        for sampler in samplers:
            sampler.stop()

    if samplers:
        threading.Thread(target=stop_all, name="mptui-stop", daemon=True).start()


# Scans this machine for the device screen: devices and recommendations
# ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MachineScan:
    """A machine, with a recommendation for each of its devices."""

    machine: "Machine"
    advice: "list[Recommendation]"
    time: float
    """Time of the scan, in seconds since the epoch."""

    @property
    def devices(self) -> "list[Device]":
        """The devices of the machine, the CPU last."""
        return self.machine.devices

    def advice_for(self, devices: "Sequence[Device]") -> "Recommendation":
        """Return the recommendation for a run on these devices: that for the tightest."""
        from mptui.hardware.devices import tightest

        return self.advice[self.devices.index(tightest(devices))]


def devices_of_system() -> int:
    """Return the number of devices by the files of NVIDIA's driver, the CPU with them, without asking it."""
    return 1 + sum(1 for _ in Path("/dev").glob("nvidia[0-9]*"))


def scan_machine(with_torch: bool) -> MachineScan:
    """Scan this machine; takes seconds with torch, and the time of the driver without.

    The modules are imported here, after the first frame.
    """
    from mptui.hardware.advice import recommend
    from mptui.hardware.devices import find_machine

    machine = find_machine(with_torch)
    return MachineScan(
        machine, [recommend(device, machine.host.cpus_usable) for device in machine.devices], time.time()
    )


# What the start of a selection would train; `mptui.tui.outlook` finds it out
# ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a start would train; texts are safe to show.

    Attributes:
        network: The name of the network.
        data: What it is trained on.
        epochs: For how long: `30 epochs`.
        time_there: How long that takes: `about 4 min on this CPU`; "": not known.
        fault: Why it can't start, in lines; "": it can.
    """

    network: str = ""
    data: str = ""
    epochs: str = ""
    time_there: str = ""
    fault: str = ""
