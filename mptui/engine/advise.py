"""Advice on speed, given by the run itself at the moment it applies."""

from typing import TYPE_CHECKING

import torch

from mptui.engine.verdict import Circumstances
from mptui.hardware.host import usable_cpus

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


class Adviser:
    """Looks at the verdict on a trainer's steps once in each reporting interval.

    Args:
        trainer: Its reporter measures, its `emit` is told.
    """

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._cpus = usable_cpus()
        trainer.reporter.layers = computing_layers(trainer.model)
        trainer.reporter.reading = lambda: trainer.job.train_loader.alone

    def look(self) -> None:
        """Give advice where something new holds the run back."""
        trainer = self._trainer
        advice = trainer.reporter.verdict.advice(self._circumstances(), trainer.step)
        if advice is not None:
            trainer.emit(advice)

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
        )


def computing_layers(model: torch.nn.Module) -> int:
    """How many modules of a network have no modules inside: each is a few kernels to launch."""
    return sum(1 for module in model.modules() if not any(module.children()))
