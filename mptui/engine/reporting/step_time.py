"""Where the time of a step goes: its clock, the bottleneck and the remedy."""

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from mptui.events import Advice

# Finds the bottleneck of a run from the time breakdown of its steps, and the remedy for it
# -----------------------------------------------------------------------------------------

BOUND_BY = {"data": 0.10, "saving": 0.10, "copy": 0.20, "wait": 0.20, "optimizer": 0.30}
"""Smallest shares of the step time at which data wait, saving, copies, other ranks, or the optimizer are the
bottleneck; a remedy gains half of the optimizer's at most, and is named where nothing holds up the device."""

BOUND_BY_VALIDATION, VALIDATION_S = 0.30, 1.0
"""Smallest share of an epoch, and seconds, from which validation is worth a word."""

LAUNCH_S = 200e-6
"""Seconds of forward and backward per layer below which launching operations dominates."""

STAY = 0.7
"""Part of a limit down to which a bottleneck that was found stays one, so that noise doesn't flip it."""

BUSY = 0.8
"""Share of the time in which the device computes, above which augmentation by mixup delays it little."""

ALIGNED = 0.5
"""Share of weights in layers aligned for Tensor Cores below which advice is given."""

SAVING_GOAL = 0.02
"""Share of the time that saving takes after its advice."""

MOST_WORKERS, MORE_AT_ONCE = 32, 4
"""Workers that advice goes up to, and their factor at once: each takes 60 MB, more with own code."""

SURE = 5
"""Measured intervals from which advice is given."""

_KEPT = 9
_MOSTLY = 0.5
"""Share of the reading time from which computing is what takes it; of a validation, from which reading is."""

_MARGIN = 1.25
"""Workers beyond those that would just be enough: they are not evenly fast."""


@dataclass(frozen=True, slots=True)
class AdviceContext:
    """Inputs of the advice.

    Attributes:
        layers: Leaf modules of the network.
        workers: Current number of loader workers.
        cpus: CPUs available to this process.
        cached: Whether decoded images are cached.
        compiled: Whether the network is compiled.
        batch_size: Samples per batch.
        batches: Batches of an epoch.
        accumulate: Batches of an optimizer step.
        computing: Share of the workers' reading time in which they compute or wait for a CPU, and not for a
            disk or the network; None: unknown.
        every_steps: Optimizer steps between checkpoints; None: none by steps.
        every_minutes: Minutes between checkpoints; None: none by time.
        tensor_cores: Whether the network computes in 16 bits on a GPU.
        aligned: Share of the weights in layers whose channels are multiples of 8, as Tensor Cores need.
        could_mix: Whether mixup would suit this run, which has neither it nor CutMix.
        split: Seconds of a step by part.
        saving: Share of the time that saving takes.
    """

    layers: int
    workers: int
    cpus: int
    cached: bool
    compiled: bool
    batch_size: int
    batches: int = 1 << 30
    accumulate: int = 1
    computing: float | None = None
    every_steps: int | None = None
    every_minutes: float | None = None
    tensor_cores: bool = False
    aligned: float = 1.0
    could_mix: bool = False
    split: Mapping[str, float] | None = None
    saving: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return sum((self.split or {}).values())

    def share(self, part: str) -> float:
        """Return the share of a part in the time of a step."""
        return (self.split or {})[part] / self.seconds

    @property
    def busy(self) -> float:
        """Share of a step in which the device computes."""
        return sum(map(self.share, ("forward", "backward", "optimizer")))


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would change a bottleneck.

    Attributes:
        message: What was measured, and what to do.
        key: The setting that does it, as `table.key`; "": none that can change during a run.
        value: Its value.
        gain: How many times as fast the run is with it, as expected; None: speed is not its aim, or unknown.
    """

    message: str
    key: str = ""
    value: Any = None
    gain: float | None = None

    def advice(self, step: int, code: str) -> Advice:
        """Build the event that offers it."""
        expected = "" if self.gain is None else f": about {self.gain:.1f} times as fast"
        setting = f"{self.key}={self.value}" if self.key else None
        return Advice(step=step, code=code, message=self.message + expected, setting=setting)


class Verdict:
    """Tracks the time breakdown of steps, and advises once the bottleneck is certain or has changed.

    Attributes:
        saving: Share of the time that saving takes.
        speed: Since the last change of settings, without the first interval.
    """

    def __init__(self) -> None:
        self._splits: deque[Mapping[str, float]] = deque(maxlen=_KEPT)
        self._steps: deque[int] = deque(maxlen=_KEPT)
        self._starved: deque[bool] = deque(maxlen=_KEPT)
        self.saving = SavingShare()
        self.speed = Throughput()
        self._bound = self._advised = ""

    def restart(self) -> None:
        """Discard all measurements after a change of settings."""
        self._splits.clear()
        self._steps.clear()
        self._starved.clear()
        self.saving.restart()
        self.speed = Throughput()
        self._bound = self._advised = ""

    def record(
        self, seconds: Mapping[str, float], starved: bool | None, steps: int = 1, samples: int = 0
    ) -> None:
        """Record the mean seconds of each part of a step over `steps` steps of `samples` in all."""
        whole = steps * sum(seconds.values())
        if self._splits:
            self.speed.add(samples, whole)
        self._splits.append(seconds)
        self._steps.append(steps)
        self.saving.record(whole, steps * seconds["saving"])
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
        """Return data, copy, saving, wait, optimizer, launch or compute; empty before a step was measured.

        Of several it is the one that takes most. One that was found stays until its share is well below its
        limit, or another's is well above it.
        """
        split = self.usual()
        total = sum(split.values())
        if not total:
            return ""
        shares = {part: split[part] / total for part in ("data", "copy", "wait", "optimizer")}
        shares["saving"] = self.saving.share  # it comes in bursts, which a median would not see
        found = {part: self._weight(part, shares[part]) for part in BOUND_BY if self._is(part, shares[part])}
        is_optimizer = found.pop("optimizer", None) is not None
        if found:
            self._bound = max(found, key=found.__getitem__)
        elif self._is_starved is True:
            self._bound = "launch"
        elif is_optimizer:
            self._bound = "optimizer"
        else:
            self._bound = "launch" if self._launches(split, layers) else "compute"
        return self._bound

    def _is(self, part: str, share: float) -> bool:
        return share >= BOUND_BY[part] * (STAY if part == self._bound else 1.0)

    def _weight(self, part: str, share: float) -> float:
        return share / (STAY if part == self._bound else 1.0)

    @property
    def _is_starved(self) -> bool | None:
        """Whether the device waits for the host; None where that can't be measured."""
        if not self._starved:
            return None
        limit = 0.5 * (STAY if self._bound == "launch" else 1.0)
        return sum(self._starved) > limit * len(self._starved)

    def _launches(self, split: Mapping[str, float], layers: int) -> bool:
        if self._is_starved is not None:
            return False
        issuing = (split["forward"] + split["backward"]) / max(1, layers)
        return issuing < LAUNCH_S / (STAY if self._bound == "launch" else 1.0)

    def remedy(self, now: AdviceContext) -> tuple[str, Remedy] | None:
        """Return the bottleneck and its remedy when it has changed; None while it is uncertain."""
        if len(self._splits) < SURE:
            return None
        bound = self.bound_by(now.layers)
        if bound == self._advised:
            return None
        self._advised = bound
        found = _REMEDIES[bound](replace(now, split=self.usual(), saving=self.saving.share))
        return None if found is None else (bound, found)


def more_workers(now: AdviceContext, seconds: float, waited: float) -> tuple[int, float]:
    """Return the workers with which data would not be waited for, and how many times as fast that is.

    As many as the CPUs can take are the most: one that waits for a disk takes hardly any of them.

    Args:
        now: The loader, and the machine.
        seconds: Of a step, or of another span of reading.
        waited: Seconds of it in which data was waited for.
    """
    reading = seconds * now.workers if now.workers else waited
    working = max(seconds - waited, 1e-9)
    computing = 1.0 if now.computing is None else now.computing
    room = math.floor(now.cpus / max(computing, now.cpus / MOST_WORKERS))
    wanted = max(now.workers + 1, 2, math.ceil(_MARGIN * min(reading / working, MOST_WORKERS)))
    workers = min(max(room, 1), wanted, MORE_AT_ONCE * max(1, now.workers))
    return workers, seconds / max(working, reading / workers)


def waiting_words(now: AdviceContext) -> str:
    """Describe what the readers of data wait for."""
    if now.computing is None:
        return ""
    if now.computing < _MOSTLY:
        return f"; reading waits for files {1 - now.computing:.0%} of its time, and CPUs are idle"
    return f"; reading computes {now.computing:.0%} of its time"


def validation_remedy(now: AdviceContext, trained_s: float, seconds: float, waited_s: float) -> Remedy | None:
    """Return what makes validations faster; None: they take little.

    Args:
        now: The loader of the validation set, and the machine.
        trained_s: Seconds of the training steps of an epoch.
        seconds: Seconds of its validation.
        waited_s: Seconds of it in which data was waited for.
    """
    share = seconds / (seconds + trained_s)
    if seconds < VALIDATION_S or share < BOUND_BY_VALIDATION:
        return None
    words = f"validation takes {share:.0%} of each epoch ({seconds:.1f} of {seconds + trained_s:.1f} s)"
    if waited_s >= _MOSTLY * seconds:
        words += f" and waits for data {waited_s / seconds:.0%} of it{waiting_words(now)}"
        workers, gain = more_workers(now, seconds, waited_s)
        if workers > now.workers:
            return Remedy(f"{words}; {workers} workers would help validations", "data.workers", workers, gain)
    return Remedy(f"{words}; with a smaller validation set, or longer epochs, a run is", gain=1 / (1 - share))


def _data(now: AdviceContext) -> Remedy:
    words = f"steps wait for data {now.share('data'):.0%} of the time"
    if now.cached:
        return Remedy(f"{words} although images are cached: other processes may load the host")
    words += waiting_words(now)
    workers, gain = more_workers(now, now.seconds, now.seconds * now.share("data"))
    if workers > now.workers:
        return Remedy(f"{words}; {workers} workers would help", "data.workers", workers, gain)
    if now.computing is None or now.computing >= _MOSTLY:
        words += f", which saturates {now.cpus} CPUs"
    cached = "resumed with --set data.cache=ram, the run is, from its second epoch on"
    return Remedy(f"{words}; {cached}", gain=1 / (1 - now.share("data")))


def _copy(now: AdviceContext) -> Remedy:
    return Remedy(
        f"steps wait for batches to be copied and augmented {now.share('copy'):.0%} of the time: compare "
        "without augmentation",
        "data.augment",
        "none",
        1 / (1 - now.share("copy")),
    )


def _saving(now: AdviceContext) -> Remedy:
    """Name the setting in force: the one by which saves come sooner."""
    words = f"saving takes {now.saving:.0%} of the time: save less often, or to a faster disk"
    rarer = math.ceil(now.saving / SAVING_GOAL)
    gain = 1 / (1 - now.saving + now.saving / rarer)
    by_steps = math.inf if now.every_steps is None else now.every_steps * now.seconds
    by_time = math.inf if now.every_minutes is None else now.every_minutes * 60
    if by_steps == by_time == math.inf:
        return Remedy(words)
    if by_steps < by_time:
        return Remedy(words, "checkpoint.every_steps", (now.every_steps or 1) * rarer, gain)
    return Remedy(words, "checkpoint.every_minutes", f"{(now.every_minutes or 1) * rarer:g}", gain)


def _optimizer(now: AdviceContext) -> Remedy:
    share = now.share("optimizer")
    words = f"the optimizer takes {share:.0%} of each step ({1000 * share * now.seconds:.0f} ms)"
    if now.batches < 2 * now.accumulate:
        return Remedy(f"{words}: an epoch is too short for larger steps")
    doubled = f"{words}: with twice as many samples a step it is called half as often"
    return Remedy(doubled, "training.accumulate", 2 * now.accumulate, 1 / (1 - share / 2))


def _launch(now: AdviceContext) -> Remedy:
    what = "the device waits for the host, which launches many small operations"
    if now.tensor_cores:
        what = f"{what}, too small to gain from Tensor Cores"
    compiling = "" if now.compiled else " or compiling"
    doubled = 2 * now.batch_size
    return Remedy(f"{what}: a larger batch{compiling} would help", "training.batch_size", doubled, 2.0)


def _wait(_now: AdviceContext) -> None:
    """Return no advice: the rows of the ranks tell which of them is slow."""


def _compute(now: AdviceContext) -> Remedy | None:
    if now.tensor_cores and now.aligned < ALIGNED:
        return Remedy(
            f"{1 - now.aligned:.0%} of the weights are in layers whose channels aren't a multiple of 8, "
            "with little gain from Tensor Cores; use a width that is a multiple of 8"
        )
    if now.could_mix and now.busy > BUSY:
        return Remedy(
            f"the device computes in {now.busy:.0%} of the time: mixup costs little now, and a long run may "
            "gain 1-2 % of accuracy by it",
            "data.mixup_alpha",
            0.2,
        )
    return None  # compute-bound is the goal


_REMEDIES = {
    "data": _data,
    "copy": _copy,
    "saving": _saving,
    "wait": _wait,
    "optimizer": _optimizer,
    "launch": _launch,
    "compute": _compute,
}


# Asynchronous reads of device values and times, without synchronization
# ----------------------------------------------------------------------
# Copies to pinned host memory and CUDA events are issued on the device's stream, and queried later. On a
# CPU both are complete at once.


class HostCopy:
    """Asynchronous copy of tensors to the host.

    Args:
        tensors: All on one device.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        cuda = bool(tensors) and tensors[0].is_cuda
        self._host = [_to_host(tensor, pinned=cuda) for tensor in tensors]
        self._ready: torch.cuda.Event | None = None
        if cuda:
            self._ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._ready.record()

    @property
    def arrived(self) -> bool:
        """Whether the copy is complete."""
        return self._ready is None or bool(self._ready.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Wait until the copy is complete."""
        if self._ready is not None:
            self._ready.synchronize()

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._host)


def read_now(*tensors: torch.Tensor) -> list[float]:
    """Return the values of tensors of one element each. Waits for the device, once."""
    copy = HostCopy(tensors)
    copy.wait()
    return [tensor.item() for tensor in copy]


class Moment:
    """Timestamp in a device's work: a CUDA event, or on other devices the host time of its creation."""

    def __init__(self, device: torch.device) -> None:
        self._time = time.perf_counter()
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()

    @property
    def passed(self) -> bool | None:
        """Whether the device has reached it; None without a CUDA event."""
        return None if self._event is None else bool(self._event.query())  # type: ignore[no-untyped-call]

    def seconds_since(self, earlier: "Moment") -> float:
        """Return the seconds since `earlier`; the device must have reached both."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return float(earlier._event.elapsed_time(self._event)) / 1e3


def _to_host(tensor: torch.Tensor, *, pinned: bool) -> torch.Tensor:
    if not pinned:
        return tensor.to("cpu", copy=True)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


# Time breakdown of a step: one step per reporting interval is measured, part by part
# -----------------------------------------------------------------------------------
# Throughput and the share of saving are those of whole intervals. Other steps cost one comparison per part.
# On CUDA the parts lie between events that are read at a later step, without synchronization.

PARTS = ("copy", "forward", "backward", "wait", "optimizer", "other")
"""copy: transfer of a batch to the device and its preparation there; wait: for the gradients of other
processes; other: metrics, seeds, records."""

_SAVES = 3


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Seconds of one step by part, and whether the device waits for the host.

    `starved`: the backward pass had finished when the whole step was issued; None without CUDA events.
    """

    seconds: dict[str, float]
    starved: bool | None = None


@dataclass(slots=True)
class _Mark:
    """The end of a part."""

    part: str
    moment: Moment


class StepClock:
    """Measures a step when it is armed; `begin`, the marks and `end` are called at every step.

    Args:
        device: Device that computes the step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._armed = True
        self._measuring = False
        self._marks: list[_Mark] = []
        self._starved: bool | None = None
        self._under_way = False
        self._in_sums = False

    def arm(self) -> None:
        """Measure the next step, unless a measurement is still unread."""
        self._armed = not self._under_way

    def begin(self) -> None:
        """Begin a step; a measurement that never ended is discarded."""
        if self._armed or self._measuring:
            self._armed = False
            self._measuring = True
            self._marks = []
            self._in_sums = False
            self.mark("")

    def mark(self, part: str) -> None:
        """Attribute the work since the last mark to `part`."""
        if self._measuring:
            self._marks.append(_Mark("wait" if self._in_sums else part, Moment(self._device)))
            self._in_sums = False

    def sums_begin(self) -> None:
        """Attribute the work since the last mark to `backward`, and what comes before the next to `wait`."""
        self.mark("backward")
        self._in_sums = self._measuring

    def end(self) -> None:
        """End the step; work after the last mark counts as `other`."""
        if not self._measuring:
            return
        self.mark("other")
        self._measuring = False
        self._under_way = True
        computed = next((m.moment for m in reversed(self._marks) if m.part == "backward"), None)
        # a device that has finished the backward pass by now waits for the host
        self._starved = None if computed is None else computed.passed

    def read(self) -> StepSplit | None:
        """Return the last measurement, once; None if there is none or the device has not finished it."""
        if not self._under_way:
            return None
        if self._marks[-1].moment.passed is False:
            return None
        self._under_way = False
        seconds = dict.fromkeys(PARTS, 0.0)
        for before, mark in zip(self._marks, self._marks[1:], strict=False):
            seconds[mark.part] += mark.moment.seconds_since(before.moment)
        return StepSplit(seconds, self._starved)


@dataclass(slots=True)
class Throughput:
    """Samples, and the seconds of training that they took, with all that held up its steps."""

    samples: int = 0
    seconds: float = 0.0

    def add(self, samples: int, seconds: float) -> None:
        """Count an interval."""
        self.samples += samples
        self.seconds += seconds

    @property
    def rate(self) -> float | None:
        """Samples per second; None before the first interval."""
        return self.samples / self.seconds if self.samples else None


class SavingShare:
    """Measures the share of saving from one save to the next: a few seconds around a save don't tell it."""

    def __init__(self) -> None:
        self._periods: deque[tuple[float, float]] = deque(maxlen=_SAVES)
        self._since: float | None = 0.0

    def restart(self) -> None:
        """Discard all periods; the one under way, whose length other settings may have cut, isn't counted."""
        self._periods.clear()
        self._since = None

    def record(self, seconds: float, saving: float) -> None:
        """Record an interval of `seconds`, of which `saving` were spent saving."""
        if self._since is not None:
            self._since += seconds
        if saving > 0:
            if self._since is not None:
                self._periods.append((saving, self._since))
            self._since = 0.0

    @property
    def share(self) -> float:
        """The share of the time that saving takes; 0 before a save."""
        return sum(s for s, _ in self._periods) / (sum(whole for _, whole in self._periods) or 1.0)

    @property
    def known(self) -> bool:
        """Whether a period has ended."""
        return bool(self._periods)
