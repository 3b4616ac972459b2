"""One sampler per device of a screen, which never waits for them."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mptui.events import DeviceSample

if TYPE_CHECKING:
    from mptui.hardware.device_sampler import DeviceSampler
    from mptui.hardware.devices import Device


class DeviceSamplers:
    """Keeps a sampler for each device that it follows."""

    def __init__(self) -> None:
        self._samplers: dict[str, DeviceSampler] = {}

    def follow(self, devices: Sequence["Device"]) -> None:
        """Sample exactly these devices.

        Of another maker's accelerator nothing is told: what the host does is no figure of its card.
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
