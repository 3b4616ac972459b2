"""Progress of a run: position in the data, best validation, figures for the summary."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mptui.config.schema import TrainingConfig
from mptui.registry.tasks import VAL_LOSS


@dataclass(slots=True)
class Cursor:
    """Position between two optimizer steps. `epoch` counts from 0; `sample` is in the epoch's own order.

    `measured_at` is the step (of all tried) of a validation in mid-epoch, where `max_steps` ended the run;
    -1: none. A resume with more steps continues from there.
    """

    epoch: int = 0
    sample: int = 0
    epoch_step: int = 0
    measured_at: int = -1

    def next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch, self.sample, self.epoch_step, self.measured_at = self.epoch + 1, 0, 0, -1

    def recount(self, training: TrainingConfig) -> None:
        """Recompute the step in this epoch for the window size of these settings."""
        self.epoch_step = self.sample // (training.batch_size * training.accumulate)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position from `state_dict`."""
        self.epoch, self.sample = state_dict["epoch"], state_dict["sample"]
        self.epoch_step, self.measured_at = state_dict["epoch_step"], state_dict.get("measured_at", -1)


@dataclass(slots=True)
class Best:
    """The best validation metric so far; larger is better, but for `val_loss`. Only finite values count."""

    metric: str
    value: float = -math.inf
    epoch: int = 0
    epochs_since: int = 0

    def offer(self, value: float, epoch: int, *, whole: bool = True) -> bool:
        """Record `value` of `epoch` (from 1) if it is better; returns whether it is.

        `whole` is False in mid-epoch, which does not count towards early stopping.
        """
        first = not math.isfinite(self.value)
        better = value < self.value if self.metric == VAL_LOSS else value > self.value
        if math.isfinite(value) and (first or better):
            self.value, self.epoch, self.epochs_since = value, epoch, 0
            return True
        self.epochs_since += whole
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the best validation."""
        return asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the best validation from `state_dict`."""
        self.metric, self.value = state_dict["metric"], float(state_dict["value"])
        self.epoch, self.epochs_since = state_dict["epoch"], state_dict["epochs_since"]


@dataclass(slots=True)
class Outcome:
    """Figures for the summary that only the loop has."""

    epochs: int = 0
    final: dict[str, float] = field(default_factory=dict)
    first_step_s: float | None = None
