"""Intel GPUs through torch, which asks Level Zero by pyzes (`pip install pyzes`): current load.

Written by torch's documentation (`torch.xpu.utilization` and its neighbours), and tried on no Intel GPU yet.
Their units: percent, bytes, W, degrees Celsius, MHz. A query that a GPU lacks, or that needs more rights,
raises `RuntimeError`: that field is None. torch does not tell the processes.
"""

import sys
from importlib.util import find_spec
from typing import Any

from mptui.events import DeviceSample
from mptui.text import clean

_FAILS = (RuntimeError, ImportError, AttributeError, ValueError, ZeroDivisionError)


def is_there() -> bool:
    """Whether torch is imported and has statistics of Intel GPUs, and pyzes is installed."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch.xpu, "utilization") and find_spec("pyzes") is not None


class XpuSource:
    """Samples of one GPU. Used only by the sampler's thread: two of the queries take 0.1 s each.

    Args:
        index: torch's index of the device.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._name = "Intel GPU"
        self._total: int | None = None

    def open(self) -> None:
        """Read what doesn't change."""
        import torch

        try:
            found = torch.xpu.get_device_properties(self._index)
            self._name, self._total = clean(found.name, 80), found.total_memory
        except _FAILS:
            return

    def read(self) -> DeviceSample:
        """Take a sample."""
        busy, clock, used = self._ask("utilization"), self._ask("clock_rate"), self._ask("device_memory_used")
        return DeviceSample(
            name=self._name,
            utilisation=None if busy is None else busy / 100,
            memory_used=None if used is None else int(used),
            memory_total=self._total,
            power_w=self._ask("power_draw"),
            temperature_c=self._ask("temperature"),
            sm_clock_mhz=None if clock is None else int(clock),
        )

    def close(self) -> None:
        """Do nothing: torch keeps its handles."""

    def _ask(self, query: str) -> float | None:
        import torch

        ask: Any = getattr(torch.xpu, query, None)
        try:
            return None if ask is None else float(ask(self._index))
        except _FAILS:
            return None
