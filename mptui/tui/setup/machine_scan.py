"""What the screen of devices looks at: this machine, and what suits each of its devices."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mptui.hardware.advice import Recommendation
    from mptui.hardware.devices import Device, Machine


@dataclass(frozen=True, slots=True)
class MachineScan:
    """A machine, and for each of its devices what to begin with."""

    machine: "Machine"
    advice: "list[Recommendation]"
    time: float
    """When: seconds since the epoch."""

    @property
    def devices(self) -> "list[Device]":
        """The devices of the machine, the CPU last."""
        return self.machine.devices


def look(with_torch: bool) -> MachineScan:
    """Look at this machine; seconds with torch, and as long as the driver takes without.

    What it takes is imported here, behind the first frame.
    """
    from mptui.hardware.advice import recommend
    from mptui.hardware.devices import find_machine

    machine = find_machine(with_torch)
    return MachineScan(
        machine, [recommend(device, machine.host.cpus_usable) for device in machine.devices], time.time()
    )
