"""The pulse of a run: a thread that looks at it once a second, whatever the worker is busy with."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from mptui.events import DeviceSample
from mptui.hardware.device_sampler import DeviceSampler

PULSE_S = 1.0


@contextlib.contextmanager
def pulse(sampler: DeviceSampler, beat: Callable[[DeviceSample | None], bool]) -> Iterator[None]:
    """Call `beat` once a second while the context lasts, and as long as it returns True.

    Args:
        sampler: Samples the device meanwhile.
        beat: Takes the latest sample, or None where there is none since the call before.
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
