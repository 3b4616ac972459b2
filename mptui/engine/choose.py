"""One mechanism decides by alternated steps: precision, layout, fused, compile."""

import copy
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

import numpy as np
import torch

from mptui.config.schema import RunConfig
from mptui.data.batch import Batch
from mptui.engine.compile import CachedResult, Stopwatch
from mptui.engine.micro_batches import forget_peak, is_memory_full, release
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import FrozenLayers, build_optimizer, frozen_at_last, supports_fused
from mptui.engine.precision import Precision, apply_fp32_layers, build_precision
from mptui.models.layers import apply_activation_checkpointing
from mptui.models.zoo import input_shape
from mptui.tasks.base import Task

# Chooses device-dependent settings by measurement: precision, memory layout, the optimizer's kernels
# ---------------------------------------------------------------------------------------------------
# Each candidate takes a few real steps, alternated, on a copy of the model and on synthetic batches of the
# same shape: weights, buffers and random state of the run are unchanged. The result is cached by device,
# software and shape. A candidate must be clearly faster to replace a more exact or better established one.

ROUNDS = (3, 7)
"""Timed steps per candidate after a warm-up step: the minimum, and the maximum if candidates are close."""

SHARE = 0.05
"""Maximum share of a run's steps, or of its time, that measuring may take; later runs reuse the result."""
OUT_OF_TIME = f"not measured, as that takes over {SHARE:.0%} of training.time here"
"""Reason of a choice for which there was no time."""

_HOPELESS = 1.5
"""A candidate whose fastest step takes this many times the best median is timed no further."""

Timer = Callable[[], float]
"""Takes a step and returns its seconds."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Alternatives for one setting.

    Attributes:
        words: Description in messages, by name; the most exact or best established first.
        margins: Factor, by name, by which a candidate must be faster than those before it.
        first: Name of the default, if nothing was measured.
    """

    words: Mapping[str, str]
    margins: Mapping[str, float]
    first: str


class MeasuringTime:
    """The time that the measurements of a run may take together: once it is short, there are no more.

    Args:
        most_s: The time.
        clock: Returns the time in seconds.
    """

    def __init__(self, most_s: float = inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + most_s
        self.is_short = False

    def suffices_for(self, seconds: float = 0.0) -> bool:
        """Whether so many more seconds can be measured; once they can't, no others can."""
        self.is_short |= self._clock() + seconds > self._end
        return not self.is_short

    def now(self) -> float:
        """Return the time."""
        return self._clock()


_MARGINS = {"fp32": 1.0, "bf16": 1.05, "fp16": 1.10}


def precisions(names: Sequence[str], first: str) -> Candidates:
    """Return the candidate number formats; those with fewer digits or a loss scale need a margin."""
    return Candidates({name: name for name in _MARGINS if name in names}, _MARGINS, first)


def layouts(first: str) -> Candidates:
    """Return the candidate memory layouts: "true" and "false" of `speed.channels_last`."""
    return Candidates({"true": "channels last", "false": "channels first"}, {"false": 1.03}, first)


def updates() -> Candidates:
    """Return a fused kernel and torch's foreach kernels: "true" and "false" of `speed.fused`.

    The latter sync once per step, which timing an update alone does not show: hence the margin.
    """
    return Candidates({"true": "a fused update", "false": "a foreach update"}, {"false": 1.15}, "true")


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen candidate, and its comparison with the next best; `reason` is empty without a measurement.

    `seconds` are the measured median step times, by name.
    """

    name: str
    reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)


def choose(
    candidates: Candidates,
    cached: CachedResult,
    timers: Callable[[str], Timer],
    *,
    steps: int,
    limit: MeasuringTime,
    check_stop: Callable[[], None],
) -> Selection:
    """Choose by the cached result, or by a measurement if the run is long enough for one.

    Args:
        candidates: The alternatives.
        cached: The cache's entry for this measurement.
        timers: Creates the timer of a candidate.
        steps: Micro-batches of the run.
        limit: The time for this measurement and the others of the run.
        check_stop: Called before each step; may raise Stopped.

    Raises:
        Stopped: From `check_stop`.
    """
    if len(candidates.words) < 2:
        return Selection(candidates.first)
    seconds, full = _known(candidates, cached.load()), frozenset[str]()
    if not seconds and steps * SHARE >= len(candidates.words) * (ROUNDS[1] + 1):
        seconds, full = _timed(candidates, timers, limit, check_stop)
        if limit.is_short and not seconds:
            return Selection(candidates.first, OUT_OF_TIME)
        if not full:  # memory that others hold now may be free in the next run
            cached.save({"seconds": seconds})
    if candidates.first in full:  # those that are left are not better: they were tried at another moment
        return Selection(candidates.first, "not measured here, as the memory was full")
    return replace(_decided(candidates, seconds, full), seconds=seconds)


def _known(candidates: Candidates, cached: Mapping[str, Any]) -> dict[str, float]:
    """Return the cached seconds per step by name; empty if there are none, or of other candidates."""
    seconds = cached.get("seconds")
    if not isinstance(seconds, dict) or not set(seconds) <= set(candidates.words):
        return {}
    return {name: float(s) for name, s in seconds.items() if isinstance(s, (int, float)) and s > 0}


def _timed(
    candidates: Candidates,
    timers: Callable[[str], Timer],
    limit: MeasuringTime,
    check_stop: Callable[[], None],
) -> tuple[dict[str, float], frozenset[str]]:
    """Measure the median seconds per step, by name, of the candidates that work.

    Returns:
        The seconds, none if there was no time for `ROUNDS[0]` steps of each, and the names of those that ran
        out of memory.
    """
    # no `Contest` of lab.measure: these are steps in this process, and of one that fails no figure counts
    ready: dict[str, Timer] = {}
    full: set[str] = set()
    figures: dict[str, list[float]] = {}
    for number in range(ROUNDS[1] + 1):
        names = [name for name in candidates.words if number == 0 or name in ready]
        began = limit.now()
        for name in names if number % 2 else reversed(names):
            check_stop()
            if not limit.suffices_for():
                break
            try:
                timer = ready[name] if name in ready else timers(name)
                seconds = timer()
            except Exception as error:  # noqa: BLE001 - one that fails, e.g. without a kernel, is dropped
                full |= {name} if is_memory_full(error) else set()
                ready.pop(name, None)
                figures.pop(name, None)
                continue
            ready[name] = timer
            if number:
                figures.setdefault(name, []).append(seconds)
        best = min((median(times) for times in figures.values()), default=0.0)
        for name, times in figures.items():
            if len(times) > 1 and min(times) > _HOPELESS * best:
                ready.pop(name, None)
        if number >= ROUNDS[0] and _told_apart([figures[name] for name in ready]):
            break
        if not limit.suffices_for(max(1, ROUNDS[0] - number) * (limit.now() - began)):
            break
    if any(len(figures.get(name, ())) < ROUNDS[0] for name in ready):
        return {}, frozenset(full)
    return {name: median(times) for name, times in figures.items()}, frozenset(full)


def _told_apart(times: Sequence[Sequence[float]]) -> bool:
    """Whether one candidate's slowest step is faster than all other steps."""
    inorder = sorted(times, key=median)
    return len(inorder) < 2 or max(inorder[0]) < min(min(other) for other in inorder[1:])


def _decided(candidates: Candidates, seconds: Mapping[str, float], full: Collection[str]) -> Selection:
    """Select the fastest candidate by the margins, and compare it with the next best."""
    timed = [name for name in candidates.words if name in seconds]
    if not timed:
        return Selection(candidates.first)
    taken = timed[0]
    for name in timed[1:]:
        if seconds[name] * candidates.margins.get(name, 1.0) < seconds[taken]:
            taken = name
    others = [name for name in seconds if name != taken]
    if not others:
        return Selection(taken, f"the only one that {'fits' if full else 'works'} here")
    other = min(others, key=lambda name: seconds[name])
    ratio = seconds[other] / seconds[taken]
    figures = f"({step_words(seconds[taken])} per step against {step_words(seconds[other])})"
    if ratio < 1:
        return Selection(taken, f"{candidates.words[other]} gains only {1 / ratio:.2f}x here {figures}")
    return Selection(taken, f"{ratio:.2f}x {candidates.words[other]} here {figures}")


def step_words(seconds: float) -> str:
    """Format a step time: `1.20 s`, `35.1 ms`."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


# Times real training steps on a copy of a model and on synthetic batches; the run is unchanged
# ---------------------------------------------------------------------------------------------

UPDATES = 5
"""Updates per timing: a single one is too short to measure."""

_STEPS = 1000
_FORMATS = {True: torch.channels_last, False: torch.contiguous_format}


class StepTimer:
    """Takes steps as the trainer does: forward under autocast, scaled backward, unscale, clip, update.

    The learning rate is 0, so that all candidates compute with the same weights. The random state is restored
    after each step.

    Args:
        model: The model, which is copied.
        task: Provides the loss.
        config: The run's configuration.
        device: Device of training.
    """

    def __init__(self, model: torch.nn.Module, task: Task, config: RunConfig, device: torch.device) -> None:
        self._model = model
        self._task = task
        self._config = config
        self._device = device
        self._networks: dict[bool, torch.nn.Module] = {}
        self._optimizers: dict[tuple[bool, bool], tuple[torch.optim.Optimizer, torch.Tensor]] = {}

    def step(self, precision: str, *, channels_last: bool) -> Callable[[], float]:
        """Return a timer of one step over a micro-batch, in seconds."""
        network, batch = self._network(channels_last), self._batch(channels_last)
        computing = build_precision(precision, self._device, self._config.precision.grad_scaler)
        fused = supports_fused(self._config.training.optimizer, self._device)
        updater = self._updater(computing, channels_last=channels_last, fused=fused)

        def take() -> float:
            with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
                watch = Stopwatch(self._device)
                with computing.forward_context():
                    loss = self._task.loss(network(*batch.inputs), batch, batch.valid, batch.size)
                computing.backward(loss)
                updater.step(loss.detach())
                return watch.seconds()

        return take

    def update(self, *, channels_last: bool, fused: bool) -> Callable[[], float]:
        """Return a timer of one update of the weights with fixed gradients, in seconds."""
        computing = build_precision("fp32", self._device, self._config.precision.grad_scaler)
        updater = self._updater(computing, channels_last=channels_last, fused=fused)
        loss = torch.zeros((), device=self._device)

        def take() -> float:
            updater.keep_grads(True)
            watch = Stopwatch(self._device)
            for _ in range(UPDATES):
                updater.step(loss)
            return watch.seconds() / UPDATES

        return take

    def close(self) -> None:
        """Free the memory of the copies."""
        if self._networks:
            self._networks.clear()
            self._optimizers.clear()
            release(self._device)
            forget_peak(self._device)

    def _network(self, channels_last: bool) -> torch.nn.Module:
        if channels_last not in self._networks:
            network = copy.deepcopy(self._model).to(self._device)
            apply_fp32_layers(network, self._config.precision.fp32_layers, self._device)
            FrozenLayers(network, frozen_at_last(self._config.training))
            if self._config.memory.activation_checkpointing:
                apply_activation_checkpointing(network)
            self._networks[channels_last] = network.to(memory_format=_FORMATS[channels_last])
        return self._networks[channels_last]

    def _updater(self, computing: Precision, *, channels_last: bool, fused: bool) -> Updater:
        network, key = self._network(channels_last), (channels_last, fused)
        if key not in self._optimizers:
            lr = torch.zeros((), device=self._device)
            self._optimizers[key] = build_optimizer(network, self._config.training, lr, fused=fused), lr
        optimizer, lr = self._optimizers[key]
        updater = Updater(
            network,
            optimizer,
            computing,
            lr=lr,
            rates=lambda applied: np.zeros(_STEPS, np.float32),
            clip_grad_norm=self._config.training.clip_grad_norm,
            average=None,
        )
        updater.close()  # several updaters share one network: none may keep the gradients of another's step
        return updater

    def _batch(self, channels_last: bool) -> Batch:
        side, rows = int(self._config.data.image_size or 0), self._config.training.batch_size
        limit = self._config.memory.micro_batch
        rows = min(rows, limit) if isinstance(limit, int) else rows
        dummy = torch.Generator().manual_seed(0)
        shape = input_shape(self._config.model, self._config.data.channels, side)
        images = torch.randn(rows, *shape, generator=dummy).to(self._device)
        return self._task.dummy_batch(images.contiguous(memory_format=_FORMATS[channels_last]))
