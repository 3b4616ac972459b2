"""Scans this machine for the device screen: devices and recommendations."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mptui.hardware.advice import Recommendation
    from mptui.hardware.devices import Device, Machine


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
