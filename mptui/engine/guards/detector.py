"""Rows to an alarm; health of the loss scale."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mptui.config.schema import GradScalerConfig
from mptui.engine.reporting.reporter import StepRow
from mptui.events import Advice, Alert, Event, LossScale

# Detects divergence in step figures that are read asynchronously: no step waits for it
# -------------------------------------------------------------------------------------
# In fp16 a step with a finite loss and an overflowing gradient is normal: the scaler skips it and backs
# off. A loss that is not finite, or without loss scaling a gradient that is not, is a fault. A fault
# followed by a good step is due to its batch: the update refused it, so the state is as if the run never
# had that batch. Repeated faults are divergence. So is a finite loss that stays far above its best and
# above chance. The result depends on the rows alone, not on when they are read.

FAULTS_IN_A_ROW = 3
"""Faults without a good step in between that count as divergence."""
MANY, WITHIN = 10, 100
"""So many faults within so many steps count as divergence, too: the run loses a tenth of its data."""


@dataclass(frozen=True, slots=True)
class WindowPosition:
    """A window of a run: the step that tried it, its epoch (from 0), and its first sample in the order."""

    step: int
    epoch: int
    sample: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """A detected divergence: the window where it began, and the reason in words.

    `finite`: all numbers are finite, but the loss is far too high.
    """

    place: WindowPosition
    reason: str
    finite: bool = False


class DivergenceDetector:
    """Handles the row of each step once, in order.

    Args:
        max_streak: Refused steps in a row that count as divergence whatever their cause.
        floor: Lower limit of the loss scale; None if the loss is not scaled.
        chance: Loss at chance level; by default finite losses are not judged.

    Attributes:
        far: Judges finite losses.
        last_good: The last step that was applied and whose loss was not far too high.
        alarm: The divergence, until `reset` or `clear_batches` clears it; later rows are queued.
        left_out: Faults due to their batch alone, until the caller takes them.
    """

    def __init__(self, max_streak: int, floor: float | None, chance: float = math.inf) -> None:
        self.floor = floor
        self.far = LossSpike(chance)
        self.last_good = 0
        self.alarm: Alarm | None = None
        self.left_out: list[WindowPosition] = []
        self.max_streak = max_streak
        self.reset()

    @property
    def refused_in_a_row(self) -> int:
        """Refused steps since the last applied one."""
        return len(self._refused)

    def reset(self) -> None:
        """Discard pending faults after a rollback."""
        self._absolved()
        self.far.forget()
        self._refused: list[WindowPosition] = []
        self._waiting: list[StepRow] = []

    def clear_batches(self) -> None:
        """Attribute pending faults to their batches, and handle the rows queued since."""
        self.left_out += self._faults
        self._absolved()
        waiting, self._waiting = self._waiting, []
        self.update(waiting)

    def _absolved(self) -> None:
        self.alarm = None
        self._faults: list[WindowPosition] = []
        self._skips_at_floor = 0
        self._recent: list[int] = []

    def update(self, rows: Sequence[StepRow]) -> None:
        """Handle the rows of the next steps."""
        if not rows:
            return
        may_be_good = self.alarm is None and not any(row.refused for row in rows)
        if may_be_good and self.far.none_in(rows):
            rows = rows[-1:]  # of good steps the last one suffices
        for row in rows:
            self._update(row)

    def update_losses(self, rows: Sequence[StepRow]) -> None:
        """Handle only the finite losses of the rows."""
        applied = [row for row in rows if not row.refused]
        if applied and not self.far.none_in(applied):
            for row in applied:
                self.far.update(row)

    def _update(self, row: StepRow) -> None:
        if self.alarm is not None:
            self._waiting.append(row)
            return
        if not row.refused:
            self._update_applied(row)
            return
        place = WindowPosition(row.step, row.epoch - 1, row.sample)
        self._refused.append(place)
        if self.floor is not None and math.isfinite(row.loss):
            self._skips_at_floor += row.loss_scale <= self.floor
        else:
            self._faults.append(place)
            self._recent = [step for step in self._recent if step > row.step - WITHIN] + [row.step]
        self.alarm = self._judged(row)

    def _update_applied(self, row: StepRow) -> None:
        self.left_out += self._faults
        self._faults = []
        self._refused = []
        self._skips_at_floor = 0
        if not self.far.update(row):
            self.last_good = row.step
        elif self.far.streak >= DIVERGED_AFTER:
            words = f"the loss was far too high for {DIVERGED_AFTER} steps in a row ({self.far.words()})"
            self.alarm = Alarm(WindowPosition(row.step, row.epoch - 1, row.sample), words, finite=True)

    def _judged(self, row: StepRow) -> Alarm | None:
        few = min(FAULTS_IN_A_ROW, self.max_streak)
        if len(self._faults) >= few:
            return self._alarm(self._faults[0], row, f"{few} steps in a row had values that are not finite")
        if self._skips_at_floor >= few:
            words = f"gradients overflow at the lowest loss scale of {self.floor:g}"
            return self._alarm(self._refused[0], row, words)
        if len(self._refused) >= self.max_streak:
            words = f"{self.max_streak} steps in a row had gradients that are not finite"
            return self._alarm(self._refused[0], row, words)
        if len(self._recent) >= MANY:
            words = f"{MANY} of {WITHIN} steps had values that are not finite"
            return self._alarm(self._faults[-1] if self._faults else self._refused[-1], row, words)
        return None

    def _alarm(self, place: WindowPosition, row: StepRow, words: str) -> Alarm:
        return Alarm(place, f"{words} (up to step {row.step})")

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint; alarm and left-out faults are handled before one is saved."""
        return {
            "last_good": self.last_good,
            "recent": self._recent,
            "faults": [asdict(place) for place in self._faults],
            "refused": [asdict(place) for place in self._refused],
            "skips_at_floor": self._skips_at_floor,
            "far": self.far.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""
        self.last_good = int(state["last_good"])
        self._skips_at_floor = int(state["skips_at_floor"])
        self._recent = [int(step) for step in state["recent"]]
        self.far.load_state_dict(state.get("far", {}))
        self._faults = [WindowPosition(**place) for place in state["faults"]]
        self._refused = [WindowPosition(**place) for place in state["refused"]]


# Detects divergence with a finite loss: far above the run's best, and above chance
# ---------------------------------------------------------------------------------
# Like all guards it uses figures that are read asynchronously: no step waits for it.

FAR = 3.0
"""Factor above which a loss is far above another."""
ALERT_AFTER = 5
"""Applied steps in a row with such a loss that raise an alert."""
DIVERGED_AFTER = 20
"""Applied steps in a row that count as divergence: spikes of a healthy run are shorter."""


class LossSpike:
    """Counts the applied steps in a row whose loss is far above the lowest one so far and above chance.

    Args:
        chance: Loss at chance level.

    Attributes:
        best: The lowest loss of a step so far.
        streak: Steps in a row whose loss is far above.
        loss: The last loss handled by `see`.
    """

    def __init__(self, chance: float) -> None:
        self.chance = chance
        self.best = self.loss = math.inf
        self.streak = 0

    def none_in(self, rows: Sequence[StepRow]) -> bool:
        """Handle rows of applied steps if no loss is far above, and return True; else change nothing."""
        losses = [row.loss for row in rows]
        best = min(self.best, *losses)
        if not max(losses) <= FAR * max(best, self.chance):
            return False
        self.best = best
        self.streak = 0
        return True

    def update(self, row: StepRow) -> bool:
        """Handle the row of an applied step; returns whether its loss is far above."""
        far = row.loss > FAR * max(self.best, self.chance)
        self.best = min(self.best, row.loss)
        self.streak = self.streak + 1 if far else 0
        self.loss = row.loss
        return far

    def forget(self) -> None:
        """Reset the streak, whose steps were undone."""
        self.streak = 0

    def words(self) -> str:
        """Describe the loss beside best and chance level."""
        return f"{self.loss:.3g}; best {self.best:.3g}, chance level {self.chance:.3g}"

    def state_dict(self) -> dict[str, Any]:
        """Return best and streak for a checkpoint."""
        return {"best": None if math.isinf(self.best) else self.best, "streak": self.streak}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state`, which is empty in checkpoints of earlier versions."""
        best = state.get("best")
        self.best = math.inf if best is None else float(best)
        self.streak = int(state.get("streak", 0))


# Alert and advice for a run that diverges with finite numbers
# ------------------------------------------------------------

CODE = "diverging"
GENTLER = 10
"""Divisor of the learning rate in the advice."""


class DivergenceAlert:
    """Reports when the loss becomes far too high, and when it is normal again.

    Args:
        far: Counts the steps.
    """

    def __init__(self, far: LossSpike) -> None:
        self._far = far
        self._on = False

    def news(self, step: int, lr: float) -> Iterator[Event]:
        """Yield events since the last call; `lr` is the learning rate in force."""
        if self._on and not self._far.streak:
            self._on = False
            yield Alert(step=step, code=CODE, message="the loss is normal again", over=True)
        elif not self._on and self._far.streak >= ALERT_AFTER:
            self._on = True
            message = f"the run is diverging: its loss is {self._far.words()}"
            yield Alert(step=step, code=CODE, message=message)
            yield Advice(
                step=step,
                code=CODE,
                message="the loss is far too high: use a lower learning rate",
                setting=f"training.lr={lr / GENTLER:g}",
            )


# Statistics of fp16 loss scaling, and advice when it fails
# ---------------------------------------------------------

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
        self.lowest = min(self.lowest, self.scale)
        self.highest = max(self.highest, self.scale)
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
        never_grows = self.seen >= 2 * interval and not self.growths
        if never_grows and self.skipped > 2:
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
