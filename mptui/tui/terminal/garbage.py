"""Limits the time of searches for garbage, in which no key is answered and no step is made."""

import gc
import time
from collections.abc import Mapping

LONG_SEARCH_S = 0.03
"""CPU seconds of a search through some 40,000 objects: those of modules, of which torch brings 300,000."""


def spare_searches() -> None:
    """Leave what a long search for garbage has found to be none out of the later ones.

    It is what modules consist of, and beside it little that is garbage later. A search takes 0.1 s for the
    objects of a screen's modules, and 0.4 s with those of torch.
    """
    gc.callbacks.append(_SparedSearch())


class _SparedSearch:
    """Measures each search; Python calls this at its beginning and at its end, in the thread of it."""

    def __init__(self) -> None:
        self._began = 0.0

    def __call__(self, phase: str, _info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > LONG_SEARCH_S:
            gc.freeze()
