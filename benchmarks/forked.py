"""Processes of the benchmarks as forks of one that has imported torch, and the card's load while they run.

The import takes seconds, more than many a measurement. The one that is forked from has not touched the GPU:
each fork has a context of its own, as a fresh interpreter has.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mptui.events import DeviceSample
from mptui.hardware.sampler import DeviceSampler
from mptui.processes.start import RUN_MODULES, ForkServer

MODULES = (*RUN_MODULES, "benchmarks.sides", "benchmarks.timed_run")
_COUNT_GPUS_BY_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Else a question after the GPUs at import would keep CUDA from the forks."""
_POLL_S = 0.25
_BUSY = 0.5
"""Least utilisation at which a sample tells the clocks of the work, not those of the start."""


class Forks:
    """Runs command lines `python -m MODULE ARGUMENTS` in forks; a context manager.

    Args:
        device: Torch's name of the device whose load is sampled.
        modules: What the forks have imported.
    """

    def __init__(self, device: str, modules: Sequence[str] = MODULES) -> None:
        self._server = ForkServer(modules, {**os.environ, **_COUNT_GPUS_BY_NVML})
        self._sampler = DeviceSampler(device)
        self.load: dict[str, Any] = {}
        """The device's load in the last process, at work."""

    def __enter__(self) -> "Forks":
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.stop()
        self._server.close()

    def run(
        self, words: Sequence[str], environ: Mapping[str, str], limit_s: float | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command line to its end.

        Args:
            words: `python -m MODULE ARGUMENTS`; MODULE has a `main`.
            environ: Its whole environment.
            limit_s: Seconds after which it is killed; None: no limit.

        Raises:
            TimeoutError: It took more than `limit_s` seconds, and was killed.
        """
        module, *arguments = words[2:]
        self.load = {}
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = self._server.start(
                f"{module}:main",
                *arguments,
                streams=(None, out.fileno(), err.fileno()),
                environ={**environ, **_COUNT_GPUS_BY_NVML},
            )
            samples: list[DeviceSample] = []
            until = None if limit_s is None else time.monotonic() + limit_s
            while (code := child.poll()) is None:
                if until is not None and time.monotonic() > until:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)  # compilers and loaders too
                    child.wait()
                    raise TimeoutError(f"not done after {limit_s:.0f} s")
                if (sample := self._sampler.latest()) is not None and sample not in samples[-1:]:
                    samples.append(sample)
                time.sleep(_POLL_S)
            self.load = load_of(samples)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(words, code, out.read(), err.read())


def load_of(samples: Sequence[DeviceSample]) -> dict[str, Any]:
    """Returns clocks in MHz, watts and degrees Celsius of a GPU at work, and what slowed it down."""
    busy = [each for each in samples if each.sm_clock_mhz and (each.utilisation or 0) >= _BUSY]
    if not busy:
        return {}
    found = {
        name: statistics.median(values)
        for name in ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c")
        if (values := [value for each in busy if (value := getattr(each, name)) is not None])
    }
    return {**found, "throttle": sorted({reason for each in busy for reason in each.throttle})}
