"""Statistics of fp16 loss scaling, and advice when it fails."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mptui.config.base_tables import GradScalerConfig
from mptui.engine.reporting.device_buffer import StepRow
from mptui.events import Advice, LossScale

FALLS = 8
"""Backoffs without growth in between, after the initial search, that count as a falling scale."""
SEARCH_STEPS = 100
"""Initial steps in which the scale backs off from a high value to a usable one."""
_FEW_BETWEEN = 4
"""Steps from one skipped step to the next below which a shorter growth interval is of no use."""
MOVES_KEPT = 32
_FIGURES = ("growths", "backoffs", "skipped", "streak", "longest_streak", "falls", "seen")


class ScalerHealth:
    """Counts growths, backoffs and skipped steps from the rows of scaled steps.

    Attributes:
        moves: The last changes of the scale, as (step, scale from then on).
    """

    def __init__(self, scaler: Callable[[], GradScalerConfig]) -> None:
        self._scaler = scaler
        self.moves: deque[tuple[int, float]] = deque(maxlen=MOVES_KEPT)
        self.growths = self.backoffs = self.skipped = self.streak = self.longest_streak = 0
        self.falls = self.seen = 0
        self.scale = self.lowest = self.highest = scaler().init_scale
        self._advised: set[str] = set()
        self._news = False

    def update(self, rows: Sequence[StepRow]) -> None:
        """Handle the rows of the next steps."""
        if any(row.refused or row.loss_scale != self.scale for row in rows):
            for row in rows:
                self._update(row)
        elif rows:
            self.seen += len(rows)
            self.streak = 0

    def _update(self, row: StepRow) -> None:
        self.seen += 1
        if row.refused and math.isfinite(row.loss):
            self.skipped += 1
            self.streak += 1
            self.longest_streak = max(self.longest_streak, self.streak)
            self._news = True
        elif not row.refused:
            self.streak = 0
        if row.loss_scale != self.scale:
            self._moved(row)

    def _moved(self, row: StepRow) -> None:
        if row.loss_scale > self.scale:
            self.growths += 1
            self.falls = 0
        else:
            self.backoffs += 1
            self.falls += self.seen > SEARCH_STEPS
        self.scale = row.loss_scale
        self.lowest, self.highest = min(self.lowest, self.scale), max(self.highest, self.scale)
        self.moves.append((row.step, self.scale))
        self._news = True

    def news(self, step: int) -> LossScale | None:
        """Return the statistics if they changed since the last report, else None."""
        if not self._news:
            return None
        self._news = False
        return LossScale(
            step=step,
            scale=self.scale,
            lowest=self.lowest,
            highest=self.highest,
            growths=self.growths,
            backoffs=self.backoffs,
            skipped=self.skipped,
            streak=self.streak,
            longest_streak=self.longest_streak,
            skip_rate=self.skipped / self.seen,
        )

    def advice(self, step: int, *, bf16: bool) -> Advice | None:
        """Return advice that applies now, each kind once per run; `bf16`: the hardware supports it."""
        remedy = "precision.mode=bf16" if bf16 else "training.clip_grad_norm=1.0"
        interval = self._scaler().growth_interval
        if self.falls >= FALLS:
            return self._advise(
                step,
                "loss_scale_falls",
                f"the loss scale keeps falling: {self.falls} times since it last grew, now {self.scale:g}; "
                "small gradients are lost",
                remedy,
            )
        if self.seen >= 2 * interval and not self.growths and self.skipped > 2:
            between = max(1, self.seen // self.skipped)
            if between < _FEW_BETWEEN:  # to grow sooner would skip still more
                message = f"a step is skipped about every {between:,} steps: the gradients overflow in fp16"
                return self._advise(step, "loss_scale_too_high", message, remedy)
            return self._advise(
                step,
                "loss_scale_never_grows",
                f"the loss scale never grows: a step is skipped about every {between:,} steps, but "
                f"growth takes {interval:,} finite ones in a row",
                f"precision.grad_scaler.growth_interval={max(1, between // 2)}",
            )
        return None

    def _advise(self, step: int, code: str, message: str, setting: str) -> Advice | None:
        if code in self._advised:
            return None
        self._advised.add(code)
        return Advice(step=step, code=code, message=message, setting=setting)

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics for a checkpoint."""
        return {
            **{name: getattr(self, name) for name in _FIGURES},
            "scales": [self.scale, self.lowest, self.highest],
            "moves": list(self.moves),
            "advised": sorted(self._advised),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the statistics from `state`."""
        for name in _FIGURES:
            setattr(self, name, int(state[name]))
        self.scale, self.lowest, self.highest = (float(value) for value in state["scales"])
        self.moves = deque(((int(step), float(scale)) for step, scale in state["moves"]), MOVES_KEPT)
        self._advised = set(state["advised"])
