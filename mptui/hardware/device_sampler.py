"""What the device does, once a second, from a thread that nobody waits for."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psutil

from mptui.events import DeviceSample
from mptui.hardware.host import host_memory, read_host
from mptui.hardware.nvml import NvmlSource, NvmlUnavailableError

STALE_AFTER_S = 5.0
"""A sample older than this is not shown as the present."""

_STOP_WAIT_S = 1.0


class DeviceSource(Protocol):
    """Where samples come from. All calls are made from the sampler's thread."""

    def open(self) -> None:
        """Get ready; raises NvmlUnavailableError where there is nothing to sample."""

    def read(self) -> DeviceSample:
        """Take a sample; raises NvmlUnavailableError when there will be no more."""

    def close(self) -> None:
        """Give back what `open` took."""


class CpuSource:
    """Samples of the host: how busy its CPUs and its memory are, and this process's share of both.

    The CPUs are those that this process may run on. Where a control group allows it fewer than that, using
    the whole allowance counts as 100 %, however idle the rest of the machine is.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._host = read_host()

    def open(self) -> None:
        """Start to count CPU time."""
        self._process.cpu_percent()
        psutil.cpu_percent(percpu=True)

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
        """Nothing was taken."""


def _cpu_utilisation(percents: Sequence[float]) -> float:
    """Mean utilisation (0 to 1) of the CPUs that this process may run on, of `percents` by CPU number."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    ours: Sequence[float] = [percents[cpu] for cpu in affinity(0) if cpu < len(percents)] if affinity else []
    counted = ours or percents
    return sum(counted) / len(counted) / 100 if counted else 0.0


class DeviceSampler:
    """The latest sample of a device, kept by one thread.

    A query of a driver can hang for good: `latest` and `problem` return at once whatever the thread does, and
    `stop` leaves a hung one behind (it is a daemon).

    Args:
        device: torch's name: `cuda:N` is read by NVML; for any other device the host is what can be told.
        uuid: NVML's name of the GPU (`Device.uuid`), where it is known: its order can differ from CUDA's.
        interval_s: Seconds between two samples.
        clock: Seconds, monotonic.
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
        self._source: DeviceSource = (
            NvmlSource(int(index or 0), uuid, clock) if kind == "cuda" else CpuSource()
        )
        self._interval_s = interval_s
        self._clock = clock
        self._sample: DeviceSample | None = None
        self._answered_at = clock()
        self._failure: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._answered_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; wait for it no longer than a second."""
        self._stopping.set()
        self._thread.join(_STOP_WAIT_S)

    def latest(self) -> DeviceSample | None:
        """Return the latest sample at once; of one that is too old only its name and time are left."""
        sample = self._sample
        if sample is None or self.problem() is None:
            return sample
        return DeviceSample(name=sample.name, time=sample.time)

    def problem(self) -> str | None:
        """Say in a sentence why there are no new samples; None while there are."""
        if self._failure is not None:
            return self._failure
        silence = self._clock() - self._answered_at
        if silence > max(STALE_AFTER_S, 3 * self._interval_s):
            return f"The device has told nothing for {silence:.0f} s: its driver does not answer."
        return None

    def _run(self) -> None:
        try:
            self._source.open()
        except NvmlUnavailableError as error:
            self._failure = str(error)
            return
        try:
            while not self._stopping.is_set():
                self._sample = self._source.read()
                self._answered_at = self._clock()
                self._stopping.wait(self._interval_s)
        except NvmlUnavailableError as error:
            self._failure = str(error)
        finally:
            self._source.close()
