"""Samples device load once a second in a background thread."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import psutil

from mptui.events import DeviceSample
from mptui.hardware import other_gpus
from mptui.hardware.host import host_memory, read_host
from mptui.hardware.nvml import NvmlSource, NvmlUnavailableError
from mptui.hardware.other_gpus import AmdSmiSource, XpuSource
from mptui.hardware.torch_view import Kind

STALE_AFTER_S = 5.0
"""Seconds after which a sample is no longer shown as current."""

_STOP_WAIT_S = 1.0
_FIRST_S = 0.1
"""Seconds that the first sample of a CPU is measured over."""


class DeviceSource(Protocol):
    """Source of samples, used only by the sampler's thread."""

    def open(self) -> None:
        """Prepare to sample; raises NvmlUnavailableError if there is no device to sample."""

    def read(self) -> DeviceSample:
        """Take a sample; raises NvmlUnavailableError if sampling has become impossible."""

    def close(self) -> None:
        """Release the resources of `open`."""


class CpuSource:
    """Samples of the host: utilisation of CPUs and memory, and this process's share of both.

    Counts the CPUs that this process may run on. If a control group limits the process to fewer CPUs, using
    all of this limit counts as 100 %.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._host = read_host()

    def open(self) -> None:
        """Start counting CPU time."""
        self._process.cpu_percent()
        psutil.cpu_percent(percpu=True)
        time.sleep(_FIRST_S)

    def read(self) -> DeviceSample:
        """Measure since the last call."""
        own = min(1.0, self._process.cpu_percent() / 100 / self._host.cpus_usable)
        total, free = host_memory()
        return DeviceSample(
            name=self._host.name,
            utilisation=max(own, _cpu_utilisation(psutil.cpu_percent(percpu=True))),
            utilisation_own=own,
            memory_used=total - free,
            memory_total=total,
            memory_own=self._process.memory_info().rss,
        )

    def close(self) -> None:
        """Do nothing: there are no resources to release."""


def _cpu_utilisation(percents: Sequence[float]) -> float:
    """Return the mean utilisation (0 to 1) of the CPUs that this process may run on.

    Args:
        percents: Utilisation of each CPU in percent, by CPU number.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    ours: Sequence[float] = [percents[cpu] for cpu in affinity(0) if cpu < len(percents)] if affinity else []
    counted = ours or percents
    return sum(counted) / len(counted) / 100 if counted else 0.0


def is_sampled(kind: Kind) -> bool:
    """Whether there are statistics of devices of this kind; of the others only the host can be sampled."""
    if kind == "rocm":
        return other_gpus.amd_is_there()
    return other_gpus.intel_is_there() if kind == "xpu" else kind in {"cuda", "cpu"}


def _source(kind: str, index: int, uuid: str | None, clock: Callable[[], float]) -> DeviceSource:
    if kind == "xpu" and other_gpus.intel_is_there():
        return XpuSource(index)
    if kind != "cuda":
        return CpuSource()
    return AmdSmiSource(index) if other_gpus.amd_is_there() else NvmlSource(index, uuid, clock)


class DeviceSampler:
    """Keeps the latest sample of a device, from a background thread.

    A driver query can hang forever: `latest` and `problem` always return at once, and `stop` abandons a hung
    thread (a daemon).

    Args:
        device: torch's name. `cuda:N` is read through NVML, or amdsmi with an AMD GPU, `xpu:N`
            through torch where it can; for any other device, the host is sampled.
        uuid: NVML's UUID of the GPU (`Device.uuid`) if known, as NVML's order can differ from CUDA's.
        interval_s: Seconds between two samples.
        clock: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        device: str,
        *,
        uuid: str | None = None,
        interval_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        kind, _, index = device.partition(":")
        self._source = _source(kind, int(index or 0), uuid, clock)
        self._device = device
        self._interval_s = interval_s
        self._clock = clock
        self._sample: DeviceSample | None = None
        self._answered_at = clock()
        self._failure: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-sampler", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._answered_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, waiting at most one second."""
        self._stopping.set()
        self._thread.join(_STOP_WAIT_S)

    def latest(self) -> DeviceSample | None:
        """Return the latest sample without waiting; if it is too old, only its name and time."""
        sample = self._sample
        if sample is None or self.problem() is None:
            return sample
        return DeviceSample(name=sample.name, device=sample.device, time=sample.time)

    def problem(self) -> str | None:
        """Return a sentence that says why there are no new samples; None while there are."""
        if self._failure is not None:
            return self._failure
        silence = self._clock() - self._answered_at
        if silence > max(STALE_AFTER_S, 3 * self._interval_s):
            return f"No device statistics for {silence:.0f} s: the driver does not respond."
        return None

    def _run(self) -> None:
        try:
            self._source.open()
        except NvmlUnavailableError as error:
            self._failure = str(error)
            return
        try:
            while not self._stopping.is_set():
                self._sample = replace(self._source.read(), device=self._device)
                self._answered_at = self._clock()
                self._stopping.wait(self._interval_s)
        except NvmlUnavailableError as error:
            self._failure = str(error)
        finally:
            self._source.close()
