"""Where a run stands: the cursor in the data, the best so far, the patience left."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mptui.config.schema import TrainingConfig


@dataclass(slots=True)
class Cursor:
    """Position between two optimizer steps. `epoch` counts from 0; `sample` is in the epoch's own order.

    `measured_at` is the step (of all tried) at which the run ended and was validated in this epoch's middle;
    -1: it was not. With more steps it continues from there.
    """

    epoch: int = 0
    sample: int = 0
    epoch_step: int = 0
    measured_at: int = -1

    def next_epoch(self) -> None:
        """Stand at the beginning of the next epoch."""
        self.epoch, self.sample, self.epoch_step, self.measured_at = self.epoch + 1, 0, 0, -1

    def recount(self, training: TrainingConfig) -> None:
        """Count the steps of this epoch in windows of these settings."""
        self.epoch_step = self.sample // (training.batch_size * training.accumulate)

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        return asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Stand where `state_dict` was taken."""
        self.epoch, self.sample = state_dict["epoch"], state_dict["sample"]
        self.epoch_step, self.measured_at = state_dict["epoch_step"], state_dict.get("measured_at", -1)


@dataclass(slots=True)
class Best:
    """The best validation so far; larger is better, and what is not finite is never the best."""

    metric: str
    value: float = -math.inf
    epoch: int = 0
    epochs_since: int = 0

    def offer(self, value: float, epoch: int, *, whole: bool = True) -> bool:
        """Take `value` of `epoch` (from 1) if it is better; say whether it was.

        `whole` is False in an epoch's middle, which tries no patience.
        """
        if math.isfinite(value) and value > self.value:
            self.value, self.epoch, self.epochs_since = value, epoch, 0
            return True
        self.epochs_since += whole
        return False

    def state_dict(self) -> dict[str, Any]:
        """The best validation."""
        return asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue with the best validation of `state_dict`."""
        self.metric, self.value = state_dict["metric"], float(state_dict["value"])
        self.epoch, self.epochs_since = state_dict["epoch"], state_dict["epochs_since"]


@dataclass(slots=True)
class Outcome:
    """Figures of the summary that only the loop knows."""

    epochs: int = 0
    final: dict[str, float] = field(default_factory=dict)
    first_step_s: float | None = None
