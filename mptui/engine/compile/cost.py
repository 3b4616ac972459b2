"""What compiling costs and gains: as measured here, and estimated until then."""

from typing import Any

import torch

from mptui.config.base_tables import CompileMode
from mptui.engine.autotune.result_cache import CachedResult
from mptui.engine.compile.start_seconds import estimated_start_s
from mptui.engine.ranks.group import ALONE, Ranks

AGAIN = 0.15
"""Maximum cost of a start with cached code, as a share of a cold start (benchmarks/compiling.py)."""

# Gain before any is measured: of a ResNet-50 on two CPU cores and, for a GPU, the low end of the published
# range of Inductor on AMP training. Only the order of magnitude matters.
_GAIN = {"cpu": 0.12, "gpu": 0.25}


class CompileCost:
    """Cost and gain of compiling one network; what is measured is cached for later runs.

    Args:
        mode: The configured mode.
        device: Device of the network.
        own: Cache of the figures of this network; None: not cached.
        any_network: Cache of the cost of the last network that was compiled anew on this device in this
            mode: the best estimate for one that was never compiled here.
        ranks: The processes that decide together, by the caches of the first.
    """

    def __init__(
        self,
        mode: CompileMode,
        device: torch.device,
        own: CachedResult | None = None,
        any_network: CachedResult | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._own, self._any_network = own, any_network
        self._guess_s = estimated_start_s(device.type, mode)
        self._guessed_gain = _GAIN["cpu" if device.type == "cpu" else "gpu"]
        self._known, self._elsewhere = ranks.broadcast((_loaded(own), _loaded(any_network)))

    @property
    def start_s(self) -> float:
        """Expected seconds of the first compiled step."""
        return self._start[0]

    @property
    def known_from(self) -> str:
        """What `start_s` is known from, in words."""
        return self._start[1]

    @property
    def _start(self) -> tuple[float, str]:
        if (again := _seconds(self._known, "again_s")) is not None:
            return again, "the last time"
        if (first := _seconds(self._known, "first_s")) is not None:
            return AGAIN * first, "by the first time"
        if (other := _seconds(self._elsewhere, "first_s")) is not None:
            return other, "as the last network"
        return self._guess_s, "by estimate"

    @property
    def gain(self) -> float:
        """Share of a step's time that compiled code saves."""
        gain = _seconds(self._known, "gain")
        return self._guessed_gain if gain is None else gain

    def note_start(self, seconds: float) -> None:
        """Cache the seconds of a first compiled step."""
        if "first_s" in self._known:
            self._keep(again_s=seconds)
            return
        self._keep(first_s=seconds)
        if self._any_network is not None:
            self._any_network.save({"first_s": seconds})

    def note_gain(self, gain: float) -> None:
        """Cache the share of a step's time that compiled code saved."""
        self._keep(gain=gain)

    def _keep(self, **figures: float) -> None:
        self._known.update(figures)
        if self._own is not None:
            self._own.save(self._known)


def _loaded(cached: CachedResult | None) -> dict[str, Any]:
    return {} if cached is None else cached.load()


def _seconds(known: dict[str, Any], name: str) -> float | None:
    """Return a cached figure; None if it is missing or invalid."""
    value = known.get(name)
    return float(value) if isinstance(value, (int, float)) and value >= 0 else None
