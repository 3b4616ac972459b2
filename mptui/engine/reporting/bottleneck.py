"""Finds the bottleneck of a run from the time breakdown of its steps, and advises on it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from mptui.events import Advice

BOUND_BY_DATA, BOUND_BY_COPY, BOUND_BY_SAVING, BOUND_BY_WAIT = 0.10, 0.20, 0.10, 0.20
"""Smallest shares of the step time at which data wait, copies, saving or other ranks are the bottleneck."""

LAUNCH_S = 200e-6
"""Seconds of forward and backward per layer below which launching operations dominates."""

BUSY = 0.8
"""Share of the time in which the device computes, above which augmentation by mixup delays it little."""

ALIGNED = 0.5
"""Share of weights in layers aligned for Tensor Cores below which advice is given."""

_KEPT = 9
_SURE = 5


@dataclass(frozen=True, slots=True)
class AdviceContext:
    """Inputs of the advice.

    Attributes:
        layers: Leaf modules of the network.
        workers: Current number of loader workers.
        cpus: CPUs available to this process.
        cached: Whether decoded images are cached.
        compiled: Whether the network is compiled.
        batch_size: Samples per micro-batch.
        tensor_cores: Whether the network computes in 16 bits on a GPU.
        aligned: Share of the weights in layers whose channels are multiples of 8, as Tensor Cores need.
        could_mix: Whether mixup would suit this run, which has neither it nor CutMix.
        busy: Share of a step in which the device computes.
    """

    layers: int
    workers: int
    cpus: int
    cached: bool
    compiled: bool
    batch_size: int
    tensor_cores: bool = False
    aligned: float = 1.0
    could_mix: bool = False
    busy: float = 0.0


class Verdict:
    """Tracks the time breakdown of steps, and advises once the bottleneck is certain or has changed."""

    def __init__(self) -> None:
        self._splits: deque[Mapping[str, float]] = deque(maxlen=_KEPT)
        self._steps: deque[int] = deque(maxlen=_KEPT)
        self._starved: deque[bool] = deque(maxlen=_KEPT)
        self._advised = ""

    def restart(self) -> None:
        """Discard all measurements after a change of settings."""
        self._splits.clear()
        self._steps.clear()
        self._starved.clear()
        self._advised = ""

    def record(self, seconds: Mapping[str, float], starved: bool | None, steps: int = 1) -> None:
        """Record the mean seconds of each part of a step over `steps` steps."""
        self._splits.append(seconds)
        self._steps.append(steps)
        if starved is not None:
            self._starved.append(starved)

    def split(self) -> dict[str, float]:
        """Return the mean seconds of each part over recent steps; they sum to the mean step time."""
        if not self._splits:
            return {}
        steps, recorded = sum(self._steps), list(zip(self._splits, self._steps, strict=True))
        return {
            part: sum(split[part] * count for split, count in recorded) / steps for part in self._splits[-1]
        }

    def usual(self) -> dict[str, float]:
        """Return the median seconds of each part over recent steps; rare events don't affect it."""
        if not self._splits:
            return {}
        return {part: median(split[part] for split in self._splits) for part in self._splits[-1]}

    def bound_by(self, layers: int) -> str:
        """Return data, copy, saving, wait, launch or compute; empty before a step was measured."""
        split = self.usual()
        total = sum(split.values())
        if not total:
            return ""
        # saving comes in bursts, which a median would not see
        saving = sum(s["saving"] for s in self._splits) / sum(sum(s.values()) for s in self._splits)
        if split["data"] >= BOUND_BY_DATA * total:
            return "data"
        if saving >= BOUND_BY_SAVING:
            return "saving"
        if split["copy"] >= BOUND_BY_COPY * total:
            return "copy"
        if split["wait"] >= BOUND_BY_WAIT * total:
            return "wait"
        issuing = (split["forward"] + split["backward"]) / max(1, layers)
        starved = sum(self._starved) * 2 > len(self._starved) if self._starved else issuing < LAUNCH_S
        return "launch" if starved else "compute"

    def _busy(self) -> float:
        split = self.usual()
        return sum(split[part] for part in ("forward", "backward", "optimizer")) / sum(split.values())

    def advice(self, now: AdviceContext, step: int) -> Advice | None:
        """Return advice when the bottleneck has changed; None while it is uncertain."""
        if len(self._splits) < _SURE:
            return None
        bound = self.bound_by(now.layers)
        if bound == self._advised:
            return None
        self._advised = bound
        advice = _ADVICE[bound](replace(now, busy=self._busy()))
        if advice is None:
            return None
        message, setting = advice
        return Advice(step=step, code=f"{bound}_bound", message=message, setting=setting)


def _data(now: AdviceContext) -> tuple[str, str | None]:
    more = min(now.cpus, max(2 * now.workers, 2))
    if more > now.workers:
        return f"steps wait for data: {more} workers would help", f"data.workers={more}"
    if not now.cached:
        return "CPUs saturated by decoding: cache the images", "data.cache=ram"
    return "steps wait for data although images are cached: other processes may load the host", None


def _copy(_now: AdviceContext) -> tuple[str, str | None]:
    return "steps wait for batches to be copied and augmented: compare without augmentation", (
        "data.augment=none"
    )


def _saving(_now: AdviceContext) -> tuple[str, str | None]:
    return "saving delays steps: save less often, or to a faster disk", "checkpoint.every_minutes=30"


def _launch(now: AdviceContext) -> tuple[str, str | None]:
    what = "the device waits for the host, which launches many small operations"
    if now.tensor_cores:
        what = f"{what}, too small to gain from Tensor Cores"
    compiling = "" if now.compiled else " or compiling"
    return f"{what}: a larger batch{compiling} would help", f"training.batch_size={2 * now.batch_size}"


def _wait(_now: AdviceContext) -> None:
    """Return no advice: the rows of the ranks tell which of them is slow."""


def _compute(now: AdviceContext) -> tuple[str, str | None] | None:
    if now.tensor_cores and now.aligned < ALIGNED:
        return (
            f"{1 - now.aligned:.0%} of the weights are in layers whose channels aren't a multiple of 8, "
            "with little gain from Tensor Cores; use a width that is a multiple of 8",
            None,
        )
    if now.could_mix and now.busy > BUSY:
        return (
            f"the device computes in {now.busy:.0%} of the time: mixup costs little now, and a long run may "
            "gain 1-2 % of accuracy by it",
            "data.mixup_alpha=0.2",
        )
    return None  # compute-bound is the goal


_ADVICE = {
    "data": _data,
    "copy": _copy,
    "saving": _saving,
    "wait": _wait,
    "launch": _launch,
    "compute": _compute,
}
