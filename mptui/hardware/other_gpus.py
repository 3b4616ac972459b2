"""AMD GPUs through amdsmi, Intel GPUs through torch: current load and processes."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mptui.events import DeviceProcess, DeviceSample
from mptui.hardware.host import user_and_command
from mptui.hardware.nvml import NvmlUnavailableError
from mptui.io.records import as_number
from mptui.text import clean

# AMD GPUs through amdsmi (`pip install 'mptui[amd]'`, or the package of ROCm): current load and processes
# --------------------------------------------------------------------------------------------------------
# Written by AMD's documentation of the library (AMD SMI 7.0), and tried on no AMD GPU yet. Its units:
# percent, MB of memory, W, degrees Celsius, MHz. A query that a card lacks raises `AmdSmiException` or
# gives "N/A": that field is None.

_DRIVER = Path("/dev/kfd")
_MB = 1 << 20


def amd_is_there() -> bool:
    """Whether this machine has AMD's driver for computing, and amdsmi."""
    return _DRIVER.exists() and find_spec("amdsmi") is not None


class AmdSmiSource:
    """Samples of one GPU. Used only by the sampler's thread, since any call may hang.

    Args:
        index: torch's index of the device, after ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES.
        environ: The environment.
    """

    def __init__(self, index: int, environ: Mapping[str, str] = os.environ) -> None:
        self._index = index
        self._environ = environ
        self._smi: Any = None
        self._handle: Any = None
        self._name = "AMD GPU"

    def open(self) -> None:
        """Find the GPU.

        Raises:
            NvmlUnavailableError: The library can't be used, or there is no such GPU.
        """
        try:
            import amdsmi

            amdsmi.amdsmi_init()
            handles = amdsmi.amdsmi_get_processor_handles()
        except Exception as error:  # without libamd_smi.so, importing it raises KeyError
            why = clean(" ".join(str(error).split()) or type(error).__name__, 100)
            raise NvmlUnavailableError(f"No statistics of AMD GPUs: amdsmi can't be used ({why}).") from error
        self._smi = amdsmi
        place = physical_index(self._index, self._environ)
        if place is None or place >= len(handles):
            self.close()
            raise NvmlUnavailableError(f"No statistics of AMD GPUs: amdsmi has no GPU {self._index}.")
        self._handle = handles[place]
        name = self._ask(lambda: amdsmi.amdsmi_get_gpu_asic_info(self._handle)["market_name"])
        self._name = clean(str(name), 60) if name else self._name

    def read(self) -> DeviceSample:
        """Take a sample."""
        smi, handle = self._smi, self._handle
        activity = self._ask(lambda: smi.amdsmi_get_gpu_activity(handle)) or {}
        memory = self._ask(lambda: smi.amdsmi_get_gpu_vram_usage(handle)) or {}
        processes = self._processes()
        return DeviceSample(
            name=self._name,
            utilisation=_fraction(activity.get("gfx_activity")),
            memory_utilisation=_fraction(activity.get("umc_activity")),
            memory_used=_bytes(memory.get("vram_used")),
            memory_total=_bytes(memory.get("vram_total")),
            memory_own=next((each.memory for each in processes or () if each.pid == os.getpid()), None),
            power_w=self._power(),
            temperature_c=self._temperature(),
            sm_clock_mhz=self._clock("GFX"),
            memory_clock_mhz=self._clock("MEM"),
            processes=processes,
        )

    def close(self) -> None:
        """Release the library."""
        self._ask(self._smi.amdsmi_shut_down)

    def _ask(self, query: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it is asked for
        try:
            return query()
        except self._smi.AmdSmiException:
            return None

    def _power(self) -> float | None:
        info = self._ask(lambda: self._smi.amdsmi_get_power_info(self._handle)) or {}
        values = (as_number(info.get(key)) for key in ("current_socket_power", "average_socket_power"))
        return next((value for value in values if value), None)

    def _temperature(self) -> float | None:
        smi = self._smi
        for sensor in (smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureType.EDGE):
            now = smi.AmdSmiTemperatureMetric.CURRENT
            found = self._ask(partial(smi.amdsmi_get_temp_metric, self._handle, sensor, now))
            if (value := as_number(found)) is not None:
                return value
        return None

    def _clock(self, kind: str) -> int | None:
        which = getattr(self._smi.AmdSmiClkType, kind)
        info = self._ask(lambda: self._smi.amdsmi_get_clock_info(self._handle, which)) or {}
        value = as_number(info.get("clk"))
        return None if value is None else int(value)

    def _processes(self) -> list[DeviceProcess] | None:
        found = self._ask(lambda: self._smi.amdsmi_get_gpu_process_list(self._handle))
        if found is None:
            return None
        processes = []
        for each in found:
            name = None if each["name"] == "N/A" else str(each["name"])
            user, command = user_and_command(each["pid"], name)
            memory = as_number(each["memory_usage"]["vram_mem"])
            held = None if memory is None else int(memory)
            processes.append(DeviceProcess(pid=each["pid"], user=user, command=command, memory=held))
        return sorted(processes, key=lambda process: -(process.memory or 0))


def physical_index(index: int, environ: Mapping[str, str]) -> int | None:
    """Return the place of torch's device among all GPUs; None if the variables name it otherwise.

    HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) counts the GPUs that ROCR_VISIBLE_DEVICES leaves.
    """
    hip = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    place: int | None = index
    for listed in (hip, environ.get("ROCR_VISIBLE_DEVICES")):
        if listed is not None and place is not None:
            words = listed.split(",")
            word = words[place].strip() if place < len(words) else ""
            place = int(word) if word.isdecimal() else None
    return place


def _fraction(percent: object) -> float | None:
    value = as_number(percent)
    return None if value is None else value / 100


def _bytes(megabytes: object) -> int | None:
    value = as_number(megabytes)
    return None if value is None else int(value) * _MB


# Intel GPUs through torch, which asks Level Zero by pyzes (`pip install pyzes`): current load
# --------------------------------------------------------------------------------------------
# Written by torch's documentation (`torch.xpu.utilization` and its neighbours), and tried on no Intel GPU
# yet. Their units: percent, bytes, W, degrees Celsius, MHz. A query that a GPU lacks, or that needs more
# rights, raises `RuntimeError`: that field is None. torch does not tell the processes.

_FAILS = (RuntimeError, ImportError, AttributeError, ValueError, ZeroDivisionError)


def intel_is_there() -> bool:
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
            self._name = clean(found.name, 80)
            self._total = found.total_memory
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
