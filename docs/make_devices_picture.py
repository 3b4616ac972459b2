"""Make `devices.svg`, a picture of the first screen with eight GPUs, on a machine that has none.

    PYTHONPATH=. python docs/make_devices_picture.py [docs/devices.svg]

The driver and its users are the stand-in of the tests; all else is the real program. The loads change for
some seconds, so that there is a history.
"""

import asyncio
import math
import re
import sys
from pathlib import Path

import pytest

from mptui.tui.app import MptuiApp
from mptui.tui.look import MachineScan, scan_machine
from mptui.tui.screens.detection import DetectionScreen
from tests.hardware.fake_nvml import GIB, FakeGpu, FakeNvml

SIZE = (120, 32)
SECONDS = 30
TITLE = "mptui: eight GPUs, a stand-in for a driver"
PEOPLE = {
    8123: ("anna", "python train.py"),
    8124: ("anna", "python train.py"),
    9017: ("ben", "python serve.py"),
}


def gpus() -> list[FakeGpu]:
    """Return eight GPUs, of which three are in use and one of these is throttled."""

    def gpu(number: int, used: int = 0, watts: int = 71, **changes: object) -> FakeGpu:
        uuid = f"GPU-00000000-0000-0000-0000-00000000000{number}"
        found = FakeGpu("NVIDIA H100 80GB HBM3", (9, 0), 80 * GIB, uuid, used * GIB, 1000 * watts)
        found.temperature = 31 + watts // 16
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    return [
        gpu(0, 47, 640, utilisation=93, compute=[(8123, 46 * GIB)]),
        gpu(1, 47, 698, utilisation=97, compute=[(8124, 46 * GIB)], reasons=4),
        gpu(2, 71, 310, utilisation=41, compute=[(9017, 70 * GIB)]),
        *(gpu(number) for number in range(3, 8)),
    ]


async def picture(nvml: FakeNvml) -> str:
    """Show the first screen while the loads change, and return it as SVG."""

    def scan(_with_torch: bool) -> MachineScan:
        return scan_machine(False)  # torch sees no GPU here

    nothing_was_selected = {"XDG_STATE_HOME": "/nonexistent"}
    app = MptuiApp(DetectionScreen(scan=scan, environ=nothing_was_selected))
    async with app.run_test(size=SIZE) as pilot:
        for second in range(SECONDS):
            nvml.gpus[0].utilisation = round(93 + 5 * math.sin(second))
            nvml.gpus[2].utilisation = round(40 + 38 * math.sin(second / 3))
            await pilot.pause(1)
        await pilot.press("up")  # the one of which somebody holds nearly all
        await pilot.pause()
        # without the fonts that it would fetch: a picture asks nothing of the network
        return re.sub(r"@font-face {.*?}\s*", "", app.export_screenshot(title=TITLE), flags=re.DOTALL)


def main() -> None:
    """Write the picture."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/devices.svg")
    with pytest.MonkeyPatch.context() as patch:
        nvml = FakeNvml(gpus())
        nvml.install(patch)
        patch.setattr("mptui.hardware.nvml.user_and_command", lambda pid, _: PEOPLE[pid])
        target.write_text(asyncio.run(picture(nvml)), encoding="utf-8")


if __name__ == "__main__":
    main()
