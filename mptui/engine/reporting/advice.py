"""Advice on speed and convergence, emitted during the run, and whether it has helped."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from typing_extensions import override

from mptui.config.keys import value_of
from mptui.data.loader import Loader
from mptui.engine.context import TrainContext
from mptui.engine.evaluate import ValidationResult
from mptui.engine.hooks import Hook
from mptui.engine.job import Job
from mptui.engine.reporting.reporter import StepRow
from mptui.engine.reporting.step_time import AdviceContext, Remedy, validation_remedy
from mptui.events import Advice, MemorySample
from mptui.hardware.host import usable_cpus
from mptui.registry.tasks import metric_word
from mptui.tasks.classification import Classification
from mptui.torch_private import ConvNd

# Advice on speed and convergence, emitted during the run, and whether it has helped
# ----------------------------------------------------------------------------------

NO_BETTER = 8
"""Epochs without improvement of the validation metric after which advice is given."""

LONG = 50
"""Epochs from which mixup gains accuracy; its paper trains for 200 (Zhang et al. 2018)."""

MEASURED_S = 20.0
"""Seconds of steps, at most, after which it is told whether advice has helped; before it were as many."""

NOISE = 0.05
"""Change of the speed that tells nothing."""

_TENSOR_CORE = 8


@dataclass(frozen=True, slots=True)
class _Offer:
    """A remedy that was offered; `of_validation`: validations are to be faster, not steps."""

    remedy: Remedy
    of_validation: bool = False


@dataclass(frozen=True, slots=True)
class _Taken:
    """An offer that was taken.

    Attributes:
        offer: The offer.
        old: The value before.
        rate: Samples per second before it; of validation, passes per second.
        seconds: Seconds of steps from which the rate after it is known.
    """

    offer: _Offer
    old: Any
    rate: float
    seconds: float = 0.0

    def outcome(self, step: int, rate: float) -> Advice:
        """Build the event that says whether it has helped; if it hasn't, it offers the old value."""
        remedy, gain = self.offer.remedy, rate / self.rate
        helped = gain >= 1 + NOISE
        words = "has helped" if helped else "has not helped" if gain > 1 - NOISE else "has made it worse"
        what = "validations" if self.offer.of_validation else "steps"
        message = (
            f"{remedy.key}={remedy.value} {words}: {what} are {gain:.2f} times as fast as before, "
            f"about {remedy.gain:.1f} times was expected"
        )
        setting = None if helped else f"{remedy.key}={self.old}"
        return Advice(step=step, code="outcome", message=message, setting=setting)


class SpeedAdvice(Hook):
    """Advises on the bottleneck of the steps, on validations, and on a metric that no longer improves.

    The same advice is given once. Where it was taken, the hook says whether that has helped.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._cpus = usable_cpus()
        self._aligned = aligned_share(context.model)
        self._advised_at: int | None = None
        self._config = context.job.config
        self._offers: dict[tuple[str, str, str], _Offer] = {}
        self._taken: _Taken | None = None
        self._validation: ValidationResult | None = None
        self._validations = 0
        context.reporter.layers = computing_layers(context.model)
        context.reporter.reading = lambda: context.job.train_loader.unthrottled_rate

    def report_due(self) -> None:
        """Say whether advice that was taken has helped, and advise when the bottleneck has changed."""
        context, verdict, taken = self._context, self._context.reporter.verdict, self._taken
        if taken is not None and not taken.offer.of_validation:
            saves = taken.offer.remedy.key.startswith("checkpoint.")
            rate = verdict.speed.rate
            is_early = verdict.speed.seconds < taken.seconds or (saves and not verdict.saving.known)
            if rate is None or is_early:
                return
            self._tell_outcome(taken, rate)
        if (found := verdict.remedy(self._advice_context(context.job.train_loader))) is not None:
            bound, remedy = found
            self._offer(f"{bound}_bound", remedy)

    def validated(self, measured: ValidationResult, epoch: int, best: bool) -> None:
        """Keep the duration of the validation."""
        self._validation = measured

    def epoch_ends(self) -> None:
        """Advise on validations, and on a metric that no longer improves."""
        self._judge_validation()
        self._judge_metric()

    def settings_changed(self) -> None:
        """Restart the measurement; if advice was taken, it is to be seen what that changes."""
        verdict, before, config = self._context.reporter.verdict, self._config, self._context.job.config
        self._config = config
        self._taken = None
        self._validations = 0
        for offer in self._offers.values():
            key, value = offer.remedy.key, str(offer.remedy.value)
            is_taken = offer.remedy.gain is not None and key and str(value_of(config, key)) == value
            if not is_taken:
                continue
            old, speed = value_of(before, key), verdict.speed
            if str(old) == value:
                continue
            if offer.of_validation and self._validation is not None:
                self._taken = _Taken(offer, old, 1 / self._validation.seconds)
            elif not offer.of_validation and speed.rate is not None:
                self._taken = _Taken(offer, old, speed.rate, min(speed.seconds, MEASURED_S))
        verdict.restart()

    def _tell_outcome(self, taken: _Taken, rate: float) -> None:
        self._taken = None
        self._context.emit(taken.outcome(self._context.state.step, rate))

    def _offer(self, code: str, remedy: Remedy, *, of_validation: bool = False) -> None:
        """Advise, unless the same was advised before."""
        known = code, remedy.key, str(remedy.value)
        if known not in self._offers:
            self._offers[known] = _Offer(remedy, of_validation)
            self._context.emit(remedy.advice(self._context.state.step, code))

    def _judge_validation(self) -> None:
        """Advise on validations that take long; the first, in which workers start, isn't judged."""
        context, measured, taken = self._context, self._validation, self._taken
        self._validations += 1
        if measured is None or self._validations == 1:
            return
        if taken is not None and taken.offer.of_validation:
            self._tell_outcome(taken, 1 / measured.seconds)
        if context.state.cursor.epoch >= context.job.config.training.epochs:
            return  # there is nothing left to make faster
        trained_s = context.reporter.epoch_throughput.seconds
        now = self._advice_context(context.job.val_loader)
        remedy = validation_remedy(now, trained_s, measured.seconds, measured.waited_s)
        if remedy is not None:
            self._offer("validation", remedy, of_validation=True)

    def _judge_metric(self) -> None:
        """Advise once on precision and learning rate after `NO_BETTER` epochs without improvement.

        Advice that a branch was given does not count once the run has left it.
        """
        context, best, step = self._context, self._context.state.best, self._context.state.step
        if self._advised_at is not None and step <= self._advised_at:
            self._advised_at = None
        if self._advised_at is not None or best.epochs_since < NO_BETTER:
            return
        self._advised_at, job = step, context.job
        if job.precision != "fp32":
            message = (
                f"no better for {NO_BETTER} epochs, in {job.precision}: `mptui check-amp` "
                "checks whether that is safe for this network, `mptui parity` compares it with FP32"
            )
            context.emit(Advice(step=step, code="no_better", message=message))
        words = "try a lower learning rate, or stop"
        message = f"{metric_word(best.metric)} is no better for {NO_BETTER} epochs: {words}"
        setting = f"training.lr={job.config.training.lr / 10:g}"
        context.emit(Advice(step=step, code="plateau", message=message, setting=setting))

    def _advice_context(self, loader: Loader) -> AdviceContext:
        job = self._context.job
        training, checkpoint = job.config.training, job.config.checkpoint
        return AdviceContext(
            layers=self._context.reporter.layers,
            workers=loader.workers,
            cpus=self._cpus,
            cached=loader.cached,
            computing=loader.computing_share,
            compiled=self._context.parts.compiler.active,
            batch_size=training.batch_size,
            batches=job.train_loader.batches,
            accumulate=training.accumulate,
            every_steps=checkpoint.every_steps,
            every_minutes=checkpoint.every_minutes,
            tensor_cores=job.device.type == "cuda" and job.precision != "fp32",
            aligned=self._aligned,
            could_mix=job.device.type == "cuda" and mixup_suits(job),
        )


def mixup_suits(job: Job) -> bool:
    """Whether a run trains a classifier without mixup and CutMix, for long enough to gain by them."""
    data = job.config.data
    is_mixed = bool(data.mixup_alpha or data.cutmix_alpha)
    return isinstance(job.task, Classification) and not is_mixed and job.config.training.epochs >= LONG


def computing_layers(model: torch.nn.Module) -> int:
    """Count the leaf modules of a network; each launches a few kernels."""
    return sum(1 for module in model.modules() if not any(module.children()))


def aligned_share(model: torch.nn.Module) -> float:
    """Return the share of weights in layers whose input and output channels are multiples of 8.

    Tensor Cores take 16-bit values in eights; other sizes are padded (NVIDIA, Deep Learning Performance).
    """
    kinds = (torch.nn.Linear, ConvNd)
    weights = [module.weight for module in model.modules() if isinstance(module, kinds)]
    total = sum(weight.numel() for weight in weights)
    aligned = sum(w.numel() for w in weights if all(size % _TENSOR_CORE == 0 for size in w.shape[:2]))
    return aligned / total if total else 1.0


# Warns of a first loss far above chance level: of outputs that were wrong before the run began
# ---------------------------------------------------------------------------------------------

FAR_ABOVE = 3.0
"""Multiple of the loss at chance level."""


class FirstLoss(Hook):
    """Compares the loss of the first step of a run with that of an untrained network.

    Args:
        context: The run.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context = context

    @override
    def rows_read(self, rows: Sequence[StepRow]) -> None:
        if not rows or rows[0].step != 1:
            return
        first, chance = rows[0], self._context.task.chance
        if math.isfinite(first.loss) and first.loss > FAR_ABOVE * chance:
            self._context.warn(
                "first_loss",
                f"the first loss is {first.loss:.3g}, where outputs by chance have about {chance:.3g}: the "
                "outputs of the network are too large, or its images are not normalised as it expects",
            )


# Reports the memory of the training process: what torch's allocator has, and what the system gave it
# ---------------------------------------------------------------------------------------------------

EVERY_S = 10.0
"""Seconds between two reports, but for the first after a rise of the peak."""


class MemorySamples(Hook):
    """Emits a sample of the memory every few seconds; reading the allocator's counters waits for nothing."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._process = psutil.Process()
        self._due = 0.0
        self._peak = 0

    def report_due(self) -> None:
        """Emit a sample if it is time, or the peak has risen."""
        device = self._context.device
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        now = time.monotonic()
        if now >= self._due or peak > self._peak:
            self._due = now + EVERY_S
            self._peak = peak
            self._context.emit(self._sample(device))

    def _sample(self, device: torch.device) -> MemorySample:
        step, process = self._context.state.step, self._process.memory_info().rss
        if device.type != "cuda":
            return MemorySample(step=step, process=process)
        counters = torch.cuda.memory_stats(device)
        return MemorySample(
            step=step,
            allocated=counters.get("allocated_bytes.all.current"),
            peak=counters.get("allocated_bytes.all.peak"),
            reserved=counters.get("reserved_bytes.all.current"),
            gaps=counters.get("inactive_split_bytes.all.current"),
            process=process,
        )
