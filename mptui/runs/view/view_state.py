"""The state that a screen shows of a run, in constant memory, and the operations that change it.

It knows nothing of terminals, and not which events there are: `RunView` hands each event to the `EventSpec`
of its kind, which calls the operations here.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mptui.events import (
    Advice,
    Alert,
    DeviceSample,
    Event,
    LossScale,
    Numerics,
    Progress,
    RunFinished,
    RunStarted,
    Step,
    Validated,
)
from mptui.runs.view.eta import Pace
from mptui.runs.view.labels import shown
from mptui.runs.view.log_lines import LogLine, Tone
from mptui.runs.view.metric_history import History
from mptui.text import clean

LOG_LINES = 500
MARKS = 100
METRICS = 48
"""Largest number of metric histories, whatever names a run invents."""

OPEN_COMMANDS = 16

EPOCHS_KEPT = 1024
"""Points of a curve by epoch; with more epochs, neighbours share a point."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on the curves at `step`."""

    step: int
    label: str
    tone: Tone = "plain"


class ViewState:
    """All that a screen shows of a run."""

    def __init__(self) -> None:
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.profile = ""
        self.precision = ""
        self.phase = "starting"
        self.phase_detail = ""
        self.phase_since: float | None = None
        self.phase_expected_s: float | None = None
        self.paused = False
        self.compiled = False
        self.progress: Progress | None = None
        self.step = 0
        self.time = 0.0
        self.epoch = 0
        self.epochs = 0
        self.latest: Step | None = None
        self.device: DeviceSample | None = None
        self.validation: Validated | None = None
        self.advice: Advice | None = None
        self.alert: Alert | None = None
        self.numerics: Numerics | None = None
        self.skipped_steps = 0
        self.skip_streak = 0
        self.loss_scale: LossScale | None = None
        self.last_skip: int | None = None
        self.best: dict[str, tuple[int, float]] = {}
        self.histories: dict[str, dict[str, History]] = {}
        self.by_epoch: dict[str, History] = {}
        self.skips = History()
        self.marks: deque[Mark] = deque(maxlen=MARKS)
        self.log: deque[LogLine] = deque(maxlen=LOG_LINES)
        self.pace = Pace()
        self.version = 0
        self.commands: dict[str, LogLine] = {}

    def history(self, chart: str, series: str) -> History | None:
        """Return the history of a metric, created on first use; None beyond `METRICS` of them."""
        group = self.histories.get(chart)
        if group is not None and series in group:
            return group[series]
        if sum(map(len, self.histories.values())) >= METRICS:
            return None
        return self.histories.setdefault(chart, {}).setdefault(series, History())

    def record(self, chart: str, series: str, step: int, value: float | None) -> None:
        """Append a point to a curve; None is no point."""
        if value is not None and (history := self.history(chart, series)) is not None:
            history.append(step, value)

    def record_metrics(self, step: int, metrics: dict[str, float], series: str) -> None:
        """Append a point for each metric, to the chart that shows it."""
        for name, value in metrics.items():
            place = shown(name)
            self.record(clean(place.chart, 24), clean(f"{place.word} {series}".lstrip(), 24), step, value)

    def record_epoch(self, name: str, epoch: int, value: float) -> None:
        """Append a point to a curve by epoch."""
        history = self.by_epoch.get(name)
        if history is None and len(self.by_epoch) < METRICS:
            history = self.by_epoch[name] = History(EPOCHS_KEPT)
        if history is not None:
            history.forget_after(epoch - 1)  # an epoch repeated after a kill replaces the first attempt
            history.append(epoch, value)

    def enter(self, event: Event, phase: str, detail: str = "") -> None:
        """Enter a phase at the time of `event`."""
        self.phase, self.phase_detail, self.phase_since = phase, detail, event.time
        self.phase_expected_s = self.progress = None
        self.pace.interrupted()

    def mark(self, event: Event, label: str, tone: Tone = "plain") -> None:
        """Put a label on the curves at the step of `event`."""
        self.marks.append(Mark(event.step, clean(label, 32), tone))

    def write_log(self, event: Event, lines: Iterable[tuple[str, Tone]]) -> None:
        """Append lines to the log at the time of `event`."""
        self.log.extend(LogLine(event.time, clean(text), tone) for text, tone in lines)
