"""A network and small images for trials of its precision."""

from dataclasses import replace

from torch import nn

from mptui.engine.job import Job
from mptui.lab.measure.amp_trial import TrialSetup, first_batches
from tests.engine.small import build_trainer, config, end


def bench(tmp_path, model: nn.Module, batches: int = 2) -> TrialSetup:
    """Small images (8 px) and a network for them."""
    trainer, _ = build_trainer(config(training={"batch_size": 16}), tmp_path)
    job: Job = replace(trainer.context.job, model=model)
    taken = first_batches(job, batches)
    end(trainer)
    return TrialSetup(job, taken)
