"""Advice on speed, given by the run itself at the moment it applies."""

from typing import TYPE_CHECKING

import torch

from mptui.engine.reporting.bottleneck import Circumstances
from mptui.events import Advice
from mptui.hardware.host import usable_cpus

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


NO_BETTER = 8
"""Epochs without a better validation after which a run gets advice: in 16 bits, how to compare with FP32."""

_TENSOR_CORE = 8


class Adviser:
    """Looks at the verdict on a trainer's steps once in each reporting interval.

    Args:
        trainer: Its reporter measures, its `emit` is told.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._cpus = usable_cpus()
        self._aligned = aligned_share(trainer.model)
        self._told_of_plateau = False
        trainer.reporter.layers = computing_layers(trainer.model)
        trainer.reporter.reading = lambda: trainer.job.train_loader.alone

    def look(self) -> None:
        """Give advice where something new holds the run back."""
        trainer = self._trainer
        advice = trainer.reporter.verdict.advice(self._circumstances(), trainer.step)
        if advice is not None:
            trainer.emit(advice)

    def epoch_ended(self) -> None:
        """Give advice, once, where a run has not grown better for long: is it the precision, or the rate?"""
        trainer = self._trainer
        if self._told_of_plateau or trainer.best.epochs_since < NO_BETTER:
            return
        self._told_of_plateau = True
        if trainer.job.precision != "fp32":
            message = (
                f"no better for {NO_BETTER} epochs, in {trainer.job.precision}: `mptui check-amp` "
                "looks whether that is safe for this network, `mptui parity` trains it beside FP32"
            )
            trainer.emit(Advice(step=trainer.step, code="no_better", message=message))
        trainer.emit(
            Advice(
                step=trainer.step,
                code="plateau",
                message=f"{trainer.best.metric} is no better for {NO_BETTER} epochs: "
                "a lower learning rate may help, else stop here",
                setting=f"training.lr={trainer.job.config.training.lr / 10:g}",
            )
        )

    def restart(self) -> None:
        """Other settings are in force: measure again."""
        self._trainer.reporter.verdict.restart()

    def _circumstances(self) -> Circumstances:
        job = self._trainer.job
        return Circumstances(
            layers=self._trainer.reporter.layers,
            workers=job.train_loader.workers,
            cpus=self._cpus,
            cached=job.train_loader.cached,
            compiled=self._trainer.parts.compiler.active,
            batch_size=job.config.training.batch_size,
            tensor_cores=job.device.type == "cuda" and job.precision != "fp32",
            aligned=self._aligned,
        )


def computing_layers(model: torch.nn.Module) -> int:
    """How many modules of a network have no modules inside: each is a few kernels to launch."""
    return sum(1 for module in model.modules() if not any(module.children()))


def aligned_share(model: torch.nn.Module) -> float:
    """Share of a network's weights in layers whose channels in and out are multiples of 8.

    Tensor Cores work on such pieces of 16-bit numbers; others are padded (NVIDIA, Deep Learning Performance).
    """
    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    weights = [module.weight for module in model.modules() if isinstance(module, kinds)]
    total = sum(weight.numel() for weight in weights)
    aligned = sum(w.numel() for w in weights if all(size % _TENSOR_CORE == 0 for size in w.shape[:2]))
    return aligned / total if total else 1.0
