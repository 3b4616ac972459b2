"""How many images a second a network computes."""

import statistics
import time
from collections.abc import Callable

import torch

_LEAST_PASSES, _MOST_PASSES, _SECONDS = 5, 50, 1.0


def forward_seconds(forward: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a forward pass over about a second, after one that is not counted.

    Args:
        forward: Computes a pass.
        device: Where it computes; each pass is waited for.
    """
    module = torch.get_device_module(device)
    forward()
    module.synchronize()
    times: list[float] = []
    began = time.perf_counter()
    for number in range(_MOST_PASSES):
        if number >= _LEAST_PASSES and time.perf_counter() - began >= _SECONDS:
            break
        start = time.perf_counter()
        forward()
        module.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
