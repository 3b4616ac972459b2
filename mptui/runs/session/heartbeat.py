"""A thread that calls a function once per second, independently of the worker thread."""

import contextlib
import threading
from collections.abc import Callable, Iterator

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
        last, going = 0.0, True
        while going and not ending.wait(PULSE_S):
            sample = sampler.latest()
            fresh = sample if sample is not None and sample.time != last else None
            last = fresh.time if fresh is not None else last
            going = beat(fresh)

    thread = threading.Thread(target=work, name="mptui-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        sampler.stop()
