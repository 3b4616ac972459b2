"""Describes the effective learning rate and batch of a planned run. Imports no torch."""

from collections.abc import Iterator

from mptui.config.schema import TrainingConfig
from mptui.engine.optim.lr_schedule import scaled_lr, warmup_epochs
from mptui.registry.optimizers import OPTIMIZERS


def effective_words(training: TrainingConfig) -> str:
    """Describe the effective rate and batch: after scaling, warm-up and schedule."""
    rate = f"lr {scaled_lr(training):.3g} for a batch of {_batch(training)}"
    return f"{rate}{_scaled(training)}, {_over(training)}"


def rate_notes(training: TrainingConfig) -> tuple[str, ...]:
    """Return a line for each difference between the rate of a run and its settings."""
    notes = []
    if scaled_lr(training) != training.lr:
        notes.append(
            f"Effective learning rate: {scaled_lr(training):.3g} for a batch of {_batch(training)}"
            f"{_scaled(training)}"
        )
    if training.warmup_epochs > warmup_epochs(training):
        notes.append(
            f"Warm-up: {warmup_epochs(training):g} epochs, not {training.warmup_epochs:g}: at most "
            f"{training.warmup_max_fraction:.0%} of the run (training.warmup_max_fraction)"
        )
    elif training.warmup_epochs and training.max_steps is not None:
        notes.append(
            f"Warm-up: {training.warmup_epochs:g} epochs, or {training.warmup_max_fraction:.0%} of the steps "
            "if that is less (training.warmup_max_fraction)"
        )
    if by_layer := [*_by_layer(training)]:
        notes.append(f"Learning rate by layer: {', '.join(by_layer)}")
    if OPTIMIZERS[training.optimizer].averages and training.schedule != "constant":
        notes.append(
            f'Schedule: {training.optimizer} is meant for training.schedule = "constant" with warm-up, not '
            f'"{training.schedule}": it averages the weights in place of decaying the rate'
        )
    return tuple(notes)


def _by_layer(training: TrainingConfig) -> Iterator[str]:
    if training.layer_decay != 1.0:
        yield f"x {training.layer_decay:g} from each layer to the one before it (training.layer_decay)"
    if training.head_lr_scale != 1.0:
        yield f"x {training.head_lr_scale:g} for the head (training.head_lr_scale)"


def _batch(training: TrainingConfig) -> int:
    return training.batch_size * training.accumulate


def _scaled(training: TrainingConfig) -> str:
    if scaled_lr(training) == training.lr:
        return ""
    return f" ({training.lr:g} for {training.lr_batch_size}, scaled {training.lr_scaling})"


def _over(training: TrainingConfig) -> str:
    warmup = warmup_epochs(training)
    rise = f"after {warmup:g} epoch{'s' if warmup != 1 else ''} of warm-up, " if warmup else ""
    return f"{rise}{training.schedule} schedule"
