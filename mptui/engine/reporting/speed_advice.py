"""Advice on speed and convergence, emitted during the run."""

import torch

from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.job import Job
from mptui.engine.reporting.bottleneck import AdviceContext
from mptui.events import Advice
from mptui.hardware.host import usable_cpus
from mptui.tasks.classification import Classification

NO_BETTER = 8
"""Epochs without improvement of the validation metric after which advice is given."""

LONG = 50
"""Epochs from which mixup gains accuracy; its paper trains for 200 (Zhang et al. 2018)."""

_TENSOR_CORE = 8


class SpeedAdvice(Hook):
    """Advises on the bottleneck of the steps, and on a validation metric that no longer improves."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._cpus = usable_cpus()
        self._aligned = aligned_share(context.model)
        self._advised_on_plateau = False
        context.reporter.layers = computing_layers(context.model)
        context.reporter.reading = lambda: context.job.train_loader.unthrottled_rate

    def report_due(self) -> None:
        """Advise when the bottleneck has changed."""
        context = self._context
        advice = context.reporter.verdict.advice(self._advice_context(), context.state.step)
        if advice is not None:
            context.emit(advice)

    def epoch_ends(self) -> None:
        """Advise once on precision and learning rate after `NO_BETTER` epochs without improvement."""
        context, best = self._context, self._context.state.best
        if self._advised_on_plateau or best.epochs_since < NO_BETTER:
            return
        self._advised_on_plateau = True
        step, job = context.state.step, context.job
        if job.precision != "fp32":
            message = (
                f"no better for {NO_BETTER} epochs, in {job.precision}: `mptui check-amp` "
                "checks whether that is safe for this network, `mptui parity` compares it with FP32"
            )
            context.emit(Advice(step=step, code="no_better", message=message))
        words = "try a lower learning rate, or stop"
        message = f"{best.metric} is no better for {NO_BETTER} epochs: {words}"
        setting = f"training.lr={job.config.training.lr / 10:g}"
        context.emit(Advice(step=step, code="plateau", message=message, setting=setting))

    def settings_changed(self) -> None:
        """Restart the measurement."""
        self._context.reporter.verdict.restart()

    def _advice_context(self) -> AdviceContext:
        job = self._context.job
        return AdviceContext(
            layers=self._context.reporter.layers,
            workers=job.train_loader.workers,
            cpus=self._cpus,
            cached=job.train_loader.cached,
            compiled=self._context.parts.compiler.active,
            batch_size=job.config.training.batch_size,
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
    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    weights = [module.weight for module in model.modules() if isinstance(module, kinds)]
    total = sum(weight.numel() for weight in weights)
    aligned = sum(w.numel() for w in weights if all(size % _TENSOR_CORE == 0 for size in w.shape[:2]))
    return aligned / total if total else 1.0
