"""The state of a run on screens, in constant memory, the operations that change it, and the time left."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import NamedTuple

from mptui import text as fmt
from mptui.events import (
    DeviceSample,
    Event,
    Forked,
    ImagesGenerated,
    LossScale,
    MemorySample,
    Numerics,
    PhaseChanged,
    Progress,
    RanksSampled,
    RunFinished,
    RunStarted,
    Step,
    Validated,
)
from mptui.registry.tasks import VAL_LOSS, metric_spec
from mptui.runs.view.doubts import REMEDIES
from mptui.runs.view.history import History, Timeline
from mptui.runs.view.words import LOSS, LogLine, Tone, metric_words, preparation_words
from mptui.text import clean

# Estimates the speed of a run and its end, including validation
# --------------------------------------------------------------

HALF_LIFE_S = 30.0
"""Age in seconds at which a step counts half, so that the estimate adapts without jumps."""

FORWARD_SHARE = 1 / 3
"""Assumed fraction of a training step for a validation batch that is not measured yet."""

ENDS_KEPT = 5
"""Ends of epochs whose median is the usual one."""

SLOW = 10.0
"""Factor over what is to be expected from which a single measurement is an exception."""

SURE_S = 5.0
"""Seconds of steps from which their time is known well enough to call an interval an exception."""


@dataclass(slots=True)
class Pace:
    """Estimates the seconds per step and per end of an epoch from events, undisturbed by a single slow one.

    The end of an epoch is all between its last step and the next epoch: validation, pictures, saving.

    Attributes:
        ends: Seconds of the last ends of epochs.
    """

    _seconds: float = 0.0
    _steps: float = 0.0
    _previous: float | None = None
    _last_step: float | None = None
    _is_over: bool = False
    ends: list[float] = field(default_factory=list)

    def stepped(self, event: Step) -> None:
        """Count the steps of `event`, timed since the previous one without an interruption."""
        if self._previous is not None and event.instant > self._previous:
            self._add(event.instant - self._previous, event.steps)
        elif event.step_time_s is not None and not self._steps:
            self._add(event.step_time_s * event.steps, event.steps)
        self._previous = self._last_step = event.instant

    def interrupted(self) -> None:
        """Exclude the next interval, in which other work took time."""
        self._previous = None

    def waited(self) -> None:
        """Exclude the next interval and this end of an epoch: the run waited for a person or a disk."""
        self._previous = self._last_step = None

    def finished_epoch(self) -> None:
        """Time the end of this epoch until the next one begins."""
        self._previous = None
        self._is_over = True

    def began_epoch(self, event: Event) -> None:
        """Count the end of the epoch before, unless the run continues in the middle of one."""
        if self._is_over and self._last_step is not None and event.instant > self._last_step:
            self.ends = [*self.ends[1 - ENDS_KEPT :], event.instant - self._last_step]
        self._is_over = False
        self.waited()

    def restart(self) -> None:
        """Forget the time of steps under other settings, or of another process."""
        self._seconds = self._steps = 0.0
        self.waited()

    def step_s(self) -> float | None:
        """Return the current seconds per step; None while unknown."""
        return self._seconds / self._steps if self._steps else None

    def epoch_end_s(self, val_batches: int) -> float | None:
        """Return the seconds between the last step of an epoch and the next epoch; None while unknown.

        It is the median of the last ones, of two the shorter. A single one far above what so many batches are
        expected to take is not believed.
        """
        step_s = self.step_s()
        if step_s is None:
            return None
        expected = val_batches * step_s * FORWARD_SHARE
        if not self.ends:
            return expected
        usual = median_low(self.ends)
        is_believed = len(self.ends) > 1 or not expected or usual <= SLOW * expected
        return usual if is_believed else expected

    def remaining(self, steps: int, steps_per_epoch: int, val_batches: int) -> float | None:
        """Return the seconds for `steps` more steps, with the end of each epoch."""
        step_s, end_s = self.step_s(), self.epoch_end_s(val_batches)
        if step_s is None or end_s is None:
            return None
        ends = math.ceil(steps / steps_per_epoch) if steps_per_epoch else 0
        return steps * step_s + ends * end_s

    def _add(self, seconds: float, steps: int) -> None:
        """Add an interval; one that is far too long, as of a process that was suspended, counts in part."""
        kept = 0.5 ** (max(0.0, seconds) / HALF_LIFE_S)
        if self._seconds >= SURE_S:
            seconds = min(seconds, SLOW * steps * self._seconds / self._steps)
        self._seconds = self._seconds * kept + seconds
        self._steps = self._steps * kept + steps


# The state of a run on screens, in constant memory, and the operations that change it
# ------------------------------------------------------------------------------------
# It is independent of terminals and of the kinds of events: `RunView` passes each event to the `EventSpec`
# of its kind, which calls the operations here.

LOG_LINES = 500
MARKS = 100
PLANNED = 200
METRICS = 48
"""Largest number of metric histories, as names of metrics are not limited."""

OPEN_COMMANDS = 16

OPEN_ALERTS = 16
"""Largest number of alerts; with more, the oldest goes."""

EARLIER_BESTS = 64
"""Largest number of earlier bests that a run can go back to."""

BRANCHES = 64
"""Largest number of branches that a run has left and that are listed; with more, the oldest goes."""

PREPARATION_STEPS = 32
"""Largest number of steps of a preparation; with more, the oldest goes."""

EPOCHS_KEPT = 1024
"""Largest number of points of a curve by epoch; with more epochs, neighbours share a point."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on the curves at `step`."""

    step: int
    label: str
    tone: Tone = "plain"


class ChartBest(NamedTuple):
    """The best value of a chart: its step, itself, and the epoch of its validation."""

    step: int
    value: float
    epoch: int


@dataclass(frozen=True, slots=True)
class PreparationStep:
    """What a run does before its first step, from `began` to `ended`, and what came of it."""

    words: str
    began: float
    ended: float | None = None
    found: str = ""
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """The steps of a run from its start, or from a return to an earlier step, to the next return.

    Attributes:
        start: The step after which it begins.
        end: Its last step.
        began: When it began, in seconds since the epoch.
        ended: What ended it: undo, rollback or resume; "": it is in force.
        metric: The primary metric; "": there was no validation.
        best_step: The step of the best validation up to its end.
        best: The value of the metric there.
    """

    start: int
    end: int
    began: float
    ended: str = ""
    metric: str = ""
    best_step: int = 0
    best: float | None = None

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Start, end, what ended it, and best, as texts."""
        best = fmt.UNKNOWN
        if self.best is not None:
            best = f"{metric_words({self.metric: self.best})[0]} at step {self.best_step:,}"
        ended = f"ended by {self.ended}" if self.ended else "in force"
        return f"{self.start:,}", f"{self.end:,}", ended, best


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """Something about a run that needs a person, until it is answered or over.

    Attributes:
        code: What it is about; there is one alert of a code.
        message: Text to show.
        time: When it began, in seconds since the epoch, as precisely as the journal has it.
        tone: bad if the training is at risk, warn for a resource or a process, plain for advice.
        setting: What can be set against it (`table.key=value`).
        lasts: Whether it is a condition, which ends by itself or with the process.
    """

    code: str
    message: str
    time: float
    tone: Tone
    setting: str | None
    lasts: bool


@dataclass(eq=False)
class PlainState:
    """The plain values of a view; each is saved under its name."""

    profile: str = ""
    changed: list[str] = field(default_factory=list)
    """Settings that people have set since the run took its profile."""
    precision: str = ""
    phase: str = "starting"
    phase_since: float | None = None
    phase_expected_s: float | None = None
    paused: bool = False
    paused_since: float | None = None
    paused_by: str = ""
    """Who or what has paused it; "": not known."""
    is_beating: bool = False
    """Whether its process reports its device once a second."""
    sign_time: float = 0.0
    sign_clock: float | None = None
    """The clocks of its process at the last event of it; None: it told none."""
    compiled: bool = False
    step: int = 0
    time: float = 0.0
    epoch: int = 0
    epochs: int = 0
    total_steps: int = 0
    """Optimizer steps of the whole run, taken and ahead; 0 while unknown."""
    steps_per_epoch: int = 0
    steps_offset: int = 0
    """What to add to the steps taken for those that as many samples make in the batch in force."""
    skipped_steps: int = 0
    skip_streak: int = 0
    last_skip: int | None = None
    version: int = 0
    planned_lr: list[list[float]] = field(default_factory=list)
    undo_step: int | None = None
    """The step that an undo goes back to; None: there is nothing to undo."""
    undo_to: str = ""
    """The profile at that step."""
    is_undone: bool = False
    """Whether an undo goes back to the branch that the last one has left."""
    split_step: int | None = None
    """The step up to which that branch is the same as this one."""
    has_left: bool = False
    """Whether it is the one that curves have as `abandoned`, not one of a rollback or a resume since."""
    left_step: int | None = None
    """The step of the branch that an undo is about to leave."""
    branch_start: int = 0
    """The step after which the branch in force begins."""
    branch_began: float = 0.0
    last_step: int = 0
    """Its last step."""
    throttled_since: float | None = None
    throttled_until: float | None = None


@dataclass(eq=False)
class LatestEvents:
    """The latest event of some kinds; each is saved under its name."""

    forked: Forked | None = None
    started: RunStarted | None = None
    finished: RunFinished | None = None
    progress: Progress | None = None
    latest: Step | None = None
    device: DeviceSample | None = None
    images: ImagesGenerated | None = None
    data_pictures: ImagesGenerated | None = None
    pictures: ImagesGenerated | None = None
    validation: Validated | None = None
    numerics: Numerics | None = None
    loss_scale: LossScale | None = None
    ranks: RanksSampled | None = None
    memory: MemorySample | None = None


@dataclass(eq=False)
class ViewState(PlainState, LatestEvents):
    """The complete state of a run on screens."""

    best: dict[str, ChartBest] = field(default_factory=dict)
    """By chart: of the loss the lowest, of the others that of the best validation."""
    earlier_bests: deque[dict[str, ChartBest]] = field(default_factory=lambda: deque(maxlen=EARLIER_BESTS))
    """The bests before `best`, to one of which a run goes back."""
    best_left: dict[str, ChartBest] = field(default_factory=dict)
    """The best of the branch that was left last."""
    branches: list[Branch] = field(default_factory=list)
    """Those that the run has left, the oldest first."""
    histories: dict[str, dict[str, History]] = field(default_factory=dict)
    by_epoch: dict[str, History] = field(default_factory=dict)
    skips: History = field(default_factory=History)
    alerts: list[OpenAlert] = field(default_factory=list)
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=MARKS))
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    pace: Pace = field(default_factory=Pace)
    commands: dict[str, LogLine] = field(default_factory=dict)
    preparation: list[PreparationStep] = field(default_factory=list)
    """What it has done before the first point of its charts, the oldest first."""
    timeline: Timeline = field(default_factory=Timeline)

    def history(self, chart: str, series: str) -> History | None:
        """Return the history of a metric, created on first use; None beyond `METRICS` of them."""
        group = self.histories.get(chart)
        if group is not None and series in group:
            return group[series]
        if sum(map(len, self.histories.values())) >= METRICS:
            return None
        return self.histories.setdefault(chart, {}).setdefault(series, History())

    def record(self, chart: str, series: str, step: int, value: float | None) -> None:
        """Append a point to a curve, unless the value is None."""
        if value is not None and (history := self.history(chart, series)) is not None:
            history.append(step, value)

    def record_metrics(self, step: int, metrics: dict[str, float], series: str) -> None:
        """Append a point for each metric, to the chart that shows it."""
        for name, value in metrics.items():
            place = metric_spec(name)
            self.record(clean(place.chart, 24), clean(f"{place.word} {series}".lstrip(), 24), step, value)

    def record_epoch(self, name: str, epoch: int, value: float) -> None:
        """Append a point to a curve by epoch."""
        history = self.by_epoch.get(name)
        if history is None and len(self.by_epoch) < METRICS:
            history = self.by_epoch[name] = History(EPOCHS_KEPT)
        if history is not None:
            history.append(epoch, value)

    def improve(self, best: dict[str, ChartBest]) -> None:
        """Take a new best of each chart."""
        self.earlier_bests.append(self.best)
        self.best = best

    @property
    def is_preparing(self) -> bool:
        """Whether the run goes on and has nothing to draw yet: no point of a loss, no image."""
        return self.finished is None and LOSS not in self.histories and self.images is None

    def note_preparation(self, event: PhaseChanged) -> None:
        """End the step of the preparation under way, and begin the next one.

        One that found nothing leaves its place to the next of its kind, as candidates of one choice do.
        """
        steps = [] if event.phase == "starting" else self.preparation
        began = event.time
        if steps and steps[-1].ended is None:
            *steps, last = steps
            if event.found or event.phase != self.phase:
                steps.append(replace(last, ended=event.time, found=event.found))
            else:
                began = last.began
        words = preparation_words(event)
        steps = [*steps, PreparationStep(words, began, expected_s=event.expected_s)]
        self.preparation = steps[-PREPARATION_STEPS:]

    def branch(self, ended: str = "") -> Branch:
        """Return the branch in force, with what has ended it."""
        best, metric = None, ""
        if self.validation is not None:
            metric = self.validation.primary or next(iter(self.validation.metrics), VAL_LOSS)
            best = self.best.get(LOSS if metric == VAL_LOSS else metric_spec(metric).chart)
        at, value = (best.step, best.value) if best else (0, None)
        return Branch(self.branch_start, self.last_step, self.branch_began, ended, metric, at, value)

    def leave_branch(self, event: Event, ended: str) -> None:
        """Begin another branch after the step of `event`, which has ended the one in force."""
        self.branches.append(self.branch(ended))
        del self.branches[:-BRANCHES]
        self.branch_start = self.last_step = event.step
        self.branch_began = event.time
        self.end_alerts("plateau", *REMEDIES)  # advice on the validations that were left

    def go_back(self, step: int) -> None:
        """Begin another branch after `step`: curves, marks and bests of later steps are of the one before."""
        for group in self.histories.values():
            for history in group.values():
                self.has_left &= history.end_x <= step
                history.branch_off(step)
        if self.split_step is not None:
            self.split_step = min(self.split_step, step)
        self.skips.forget_after(step)
        self.marks = deque((mark for mark in self.marks if mark.step <= step), maxlen=MARKS)
        self.best_left = self.best
        self._forget_bests(step)
        if self.latest is not None and self.latest.step > step:
            self.latest = None
        if self.last_skip is not None and self.last_skip > step:
            self.last_skip = None
        self.skip_streak = 0
        self.end_alerts("skipped_steps")
        self.pace.waited()

    def return_to_abandoned(self, step: int) -> None:
        """Go on with the branch that was left, after `step`."""
        for group in self.histories.values():
            for history in group.values():
                history.return_to_abandoned(step)
        for history in self.by_epoch.values():
            history.return_to_abandoned(math.inf)
        left = self.best
        self._forget_bests(step if self.split_step is None else self.split_step)
        self.improve(self.best_left)
        self.best_left = left
        self.latest = None
        self.pace.waited()

    def _forget_bests(self, step: int) -> None:
        """Go back to the best of the validations up to `step`."""
        while any(each.step > step for each in self.best.values()):
            self.best = self.earlier_bests.pop() if self.earlier_bests else {}

    def enter(self, event: Event, phase: str) -> None:
        """Enter a phase at the time of `event`."""
        self.phase = phase
        self.phase_since = event.time
        self.phase_expected_s = self.progress = None
        self.pace.interrupted()

    def plan(self, planned_lr: list[list[float]]) -> None:
        """Take the learning rates that lie ahead, as [step, rate]; invalid ones are none."""
        valid = all(len(point) == 2 and all(map(math.isfinite, point)) for point in planned_lr)
        self.planned_lr = planned_lr[:PLANNED] if valid else []

    def mark(self, event: Event, label: str, tone: Tone = "plain") -> None:
        """Put a label on the curves at the step of `event`."""
        self.marks.append(Mark(event.step, clean(label, 32), tone))

    def open_alert(
        self,
        event: Event,
        code: str,
        message: str,
        tone: Tone,
        *,
        setting: str | None = None,
        lasts: bool = True,
    ) -> None:
        """Add an alert that begins with `event`, in place of one of the same code."""
        self.end_alerts(code)
        self.alerts.append(OpenAlert(code, message, round(event.time, 3), tone, setting, lasts))
        del self.alerts[:-OPEN_ALERTS]
        self.timeline.happen("alert")

    def end_alerts(self, *codes: str) -> None:
        """Remove the alerts of these codes."""
        self.alerts = [alert for alert in self.alerts if alert.code not in codes]

    def write_log(self, event: Event, lines: Iterable[tuple[str, Tone]]) -> None:
        """Append lines to the log at the time of `event`."""
        self.log.extend(LogLine(event.time, clean(text), tone) for text, tone in lines)
