"""The program on a machine with four GPUs, as its driver tells."""

import pytest

from mptui.processes.start import MAIN, function_of
from mptui.tui.screens import detection
from tests.hardware.fake_nvml import FakeNvml, h200
from tests.tui.cockpits import quick_scan

GPUS = 4


def main():
    """Run the program; torch, which sees no GPU, is not asked."""
    uuids = (f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(GPUS))
    FakeNvml([h200(uuid=uuid) for uuid in uuids]).install(pytest.MonkeyPatch())
    defaults = detection.DetectionScreen.__init__.__kwdefaults__
    assert defaults is not None
    defaults["scan"] = quick_scan
    function_of(MAIN)()
