"""One sampler per device of a screen, without blocking the screen."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mptui.events import DeviceSample

if TYPE_CHECKING:
    from mptui.hardware.device_sampler import DeviceSampler
    from mptui.hardware.devices import Device


class DeviceSamplers:
    """Runs a sampler for each device."""

    def __init__(self) -> None:
        self._samplers: dict[str, DeviceSampler] = {}

    def follow(self, devices: Sequence["Device"]) -> None:
        """Sample exactly these devices.

        Accelerators other than CUDA devices are not sampled, as only values of the host are available.
        """
        from mptui.hardware.device_sampler import DeviceSampler

        self.stop()
        for device in (device for device in devices if device.kind in {"cuda", "cpu"}):
            sampler = DeviceSampler(device.torch_name, uuid=device.uuid)
            sampler.start()
            self._samplers[device.torch_name] = sampler

    def latest(self, device: "Device") -> tuple[DeviceSample | None, str | None]:
        """Return the latest sample of a device, and why there are no new ones."""
        sampler = self._samplers.get(device.torch_name)
        return (sampler.latest(), sampler.problem()) if sampler else (None, None)

    def stop(self) -> None:
        """Stop all samplers, without waiting for one that hangs in its driver."""
        samplers, self._samplers = list(self._samplers.values()), {}

        def stop_all() -> None:
            for sampler in samplers:
                sampler.stop()

        if samplers:
            threading.Thread(target=stop_all, name="mptui-stop", daemon=True).start()
