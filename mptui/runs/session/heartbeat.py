"""A thread that calls a function once per second, independently of the worker thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from mptui.events import DeviceSample
from mptui.hardware.device_sampler import DeviceSampler

PULSE_S = 1.0


@contextlib.contextmanager
def pulse(sampler: DeviceSampler, beat: Callable[[DeviceSample | None], bool]) -> Iterator[None]:
    """Call `beat` once per second within the context, as long as it returns True.

    Args:
        sampler: Samples the device.
        beat: Receives the latest sample, or None if there is no new one.
    """
    sampler.start()
    ending = threading.Event()

    def work() -> None:
        last, going = DeviceSample(name="", time=0.0), True
        while going and not ending.wait(PULSE_S):
            sample = sampler.latest()
            if sample is None or sample.time == last.time:
                going = beat(None)
                continue
            is_same = sample.processes == last.processes  # a journal needs no list twice
            going = beat(replace(sample, processes=None) if is_same else sample)
            last = sample

    thread = threading.Thread(target=work, name="mptui-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        sampler.stop()
