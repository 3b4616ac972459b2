"""Where a run stands: the cursor in the data, the best so far, the patience left."""

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cursor:
    """Position between two optimizer steps. `epoch` counts from 0; `sample` is in the epoch's own order."""

    epoch: int = 0
    sample: int = 0
    epoch_step: int = 0


@dataclass(slots=True)
class Best:
    """The best validation so far; larger is better, and NaN is worse than anything."""

    metric: str
    value: float = -math.inf
    epoch: int = 0
    epochs_since: int = 0

    def offer(self, value: float, epoch: int) -> bool:
        """Take `value` of `epoch` (from 1) if it is better; say whether it was."""
        if not math.isnan(value) and value > self.value:
            self.value, self.epoch, self.epochs_since = value, epoch, 0
            return True
        self.epochs_since += 1
        return False


@dataclass(slots=True)
class Outcome:
    """What a run found: the summary's figures that only the trainer knows."""

    epochs: int = 0
    final: dict[str, float] = field(default_factory=dict)
    first_step_s: float | None = None
