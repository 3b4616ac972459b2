"""What the live screen knows of a run: events folded in one at a time, in constant memory.

The same view serves a run of this process, a run of another one, and a journal played back. It knows
nothing of terminals.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mptui.events import (
    Advice,
    Alert,
    CheckpointSaved,
    CommandAnswered,
    DeviceSample,
    Diagnosed,
    EpochFinished,
    EpochStarted,
    Event,
    LossScale,
    Numerics,
    Paused,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Progress,
    Recovered,
    Resumed,
    RunFinished,
    RunStarted,
    Step,
    StepSkipped,
    Validated,
    Warned,
)
from mptui.runs.view.cleaned import cleaned
from mptui.runs.view.eta import Pace
from mptui.runs.view.labels import LOSS, TRAIN, VALIDATION, shown
from mptui.runs.view.log_lines import LogLine, Tone, told, validated
from mptui.runs.view.metric_history import History
from mptui.text import clean

LOG_LINES = 500
MARKS = 100
METRICS = 48
"""Histories kept at most, whatever names a run invents."""

OPEN_COMMANDS = 16

EPOCHS_KEPT = 1024
"""Points of a curve by epoch; of more epochs neighbours share one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at `step`, to be shown on a curve."""

    step: int
    label: str
    tone: Tone = "plain"


class RunView:
    """The state of a run as a screen shows it; `fold` each event into it, read its attributes."""

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
        self._folds: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._run_started,
            PhaseChanged: self._phase_changed,
            Progress: self._progressed,
            EpochStarted: self._epoch_started,
            Step: self._stepped,
            Validated: self._validated,
            EpochFinished: self._epoch_finished,
            DeviceSample: self._sampled,
            PrecisionChanged: self._precision_changed,
            StepSkipped: self._step_skipped,
            LossScale: self._scaled,
            Diagnosed: self._diagnosed,
            Advice: self._advised,
            Alert: self._alerted,
            Numerics: self._looked_at,
            Recovered: self._recovered,
            PresetSwitched: self._preset_switched,
            CheckpointSaved: self._checkpoint_saved,
            Paused: self._paused,
            Resumed: self._resumed,
            CommandAnswered: self._command_answered,
            RunFinished: self._run_finished,
            Warned: self._warned,
        }

    def fold(self, event: Event) -> None:
        """Take one event into account."""
        event = cleaned(event)
        self.version += 1
        self.time = event.time
        self.step = event.step or self.step  # a validation's progress has no step
        fold = self._folds.get(type(event))
        if fold is not None:
            fold(event)
        if isinstance(event, StepSkipped) and self.log and "skipped: gradients" in self.log[-1].text:
            self.log.pop()
        if not self._joins_epoch(event):
            self.log.extend(told(event))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run; 0 while unknown."""
        return self.started.total_steps if self.started else 0

    @property
    def fraction_done(self) -> float:
        """Share of the run that is done."""
        return min(1.0, self.step / self.total_steps) if self.total_steps else 0.0

    def remaining_s(self) -> float | None:
        """Return the seconds until the run ends, validation counted; None while unknown."""
        run = self.started
        if run is None or self.finished is not None or not run.total_steps:
            return None
        steps = max(0, run.total_steps - self.step)
        seconds = self.pace.remaining(steps, run.steps_per_epoch, run.val_batches)
        if seconds is not None and self.phase == "validating" and self.pace.validation_s is not None:
            left = 1 - self.progress.done / self.progress.total if self.progress else 1.0
            seconds += left * self.pace.validation_s
        return seconds

    def history(self, chart: str, series: str) -> History | None:
        """Return the history of a metric, new where there was none; None beyond the limit of names."""
        group = self.histories.get(chart)
        if group is not None and series in group:
            return group[series]
        if sum(map(len, self.histories.values())) >= METRICS:
            return None
        return self.histories.setdefault(chart, {}).setdefault(series, History())

    def _record(self, chart: str, series: str, step: int, value: float | None) -> None:
        if value is not None and (history := self.history(chart, series)) is not None:
            history.append(step, value)

    def _record_metrics(self, step: int, metrics: dict[str, float], series: str) -> None:
        for name, value in metrics.items():
            place = shown(name)
            self._record(clean(place.chart, 24), clean(f"{place.word} {series}".lstrip(), 24), step, value)

    def _run_started(self, event: RunStarted) -> None:
        if self.started is not None:  # after a kill, the steps beyond the last save are taken again
            for history in [self.skips, *(h for group in self.histories.values() for h in group.values())]:
                history.forget_after(event.step)
        self.started, self.finished, self.alert = event, None, None
        self.profile, self.precision = event.profile, event.precision
        self.epochs = event.epochs
        self._enter(event, "starting")

    def _phase_changed(self, event: PhaseChanged) -> None:
        self.compiled |= event.phase == "compiling"
        self._enter(event, event.phase, event.detail)
        self.phase_expected_s = event.expected_s

    def _warned(self, event: Warned) -> None:
        if event.code == "compile_failed":
            self.compiled = False

    def _enter(self, event: Event, phase: str, detail: str = "") -> None:
        self.phase, self.phase_detail, self.phase_since = phase, detail, event.time
        self.phase_expected_s = self.progress = None
        self.pace.interrupted()

    def _progressed(self, event: Progress) -> None:
        """Follow the units of a phase; what is done within another one, such as filling a cache, ends."""
        inner = event.phase != self.phase
        if inner:
            self.pace.interrupted()
        if inner and event.done >= event.total:
            self.progress, self.phase_since = None, event.time
        else:
            self.progress = event if event.total > 0 else None

    def _epoch_started(self, event: EpochStarted) -> None:
        self.epoch, self.epochs = event.epoch, event.epochs
        if self.started is not None and event.steps != self.started.steps_per_epoch:
            self.started = _in_other_steps(self.started, event)
        self._enter(event, "training")

    def _stepped(self, event: Step) -> None:
        if self.phase != "training":
            self._enter(event, "training")
        self.latest, self.epoch = event, event.epoch
        if event.skipped_steps > self.skipped_steps:
            self.skipped_steps, self.last_skip = event.skipped_steps, event.step
        elif not event.nonfinite:
            self.skip_streak = 0
        self.pace.stepped(event)
        loss = self.history(LOSS, TRAIN)
        if loss is not None:
            loss.append(event.step, event.loss, event.loss_min, event.loss_max)
            if event.nonfinite:
                loss.append(event.step, float("nan"))
        self._record_metrics(event.step, event.metrics, TRAIN)
        self._record("learning rate", "rate", event.step, event.lr)
        self._record("gradient norm", "norm", event.step, event.grad_norm)
        self._record("loss scale", "scale", event.step, event.loss_scale)
        self._record("speed", "images/s", event.step, event.samples_per_second)

    def _validated(self, event: Validated) -> None:
        self.validation = event
        self.pace.validation_s = event.seconds
        self.pace.interrupted()
        self._record(LOSS, VALIDATION, event.step, event.loss)
        self._record_metrics(event.step, event.metrics, VALIDATION)
        if event.best:
            self._remember_best(event)
        if "validate" in self.commands:
            self.log.append(validated(event))

    def _remember_best(self, event: Validated) -> None:
        self.best = {LOSS: (event.step, event.loss)}
        for name, value in event.metrics.items():
            self.best.setdefault(shown(name).chart, (event.step, value))

    def _epoch_finished(self, event: EpochFinished) -> None:
        self.epoch, self.epochs = event.epoch, event.epochs
        self.pace.interrupted()
        losses = {"train_loss": event.train_loss, "val_loss": event.val_loss}
        for name, value in {**losses, **event.val_metrics}.items():
            if value is not None:
                self._record_epoch(clean(name, 24), event.epoch, value)

    def _record_epoch(self, name: str, epoch: int, value: float) -> None:
        history = self.by_epoch.get(name)
        if history is None and len(self.by_epoch) < METRICS:
            history = self.by_epoch[name] = History(EPOCHS_KEPT)
        if history is not None:
            history.forget_after(epoch - 1)  # one that is taken again after a kill counts as it was then
            history.append(epoch, value)

    def _sampled(self, event: DeviceSample) -> None:
        self.device = event

    def _precision_changed(self, event: PrecisionChanged) -> None:
        self.precision = event.precision
        if event.previous:
            self._mark(event, f"{event.previous} → {event.precision}", "warn")

    def _step_skipped(self, event: StepSkipped) -> None:
        self.skipped_steps, self.skip_streak, self.last_skip = event.total, event.streak, event.step
        self.skips.append(event.step, event.count)

    def _looked_at(self, event: Numerics) -> None:
        self.numerics = event

    def _scaled(self, event: LossScale) -> None:
        self.loss_scale = event

    def _diagnosed(self, event: Diagnosed) -> None:
        self._mark(event, f"{event.problem} in {event.where}" if event.where else event.problem, "warn")

    def _advised(self, event: Advice) -> None:
        if event.setting is not None:  # other advice is for the log, and takes nothing from the key's offer
            self.advice = event

    def _alerted(self, event: Alert) -> None:
        self.alert = None if event.over else event

    def _recovered(self, event: Recovered) -> None:
        self._mark(event, event.action, "warn")

    def _preset_switched(self, event: PresetSwitched) -> None:
        self.profile = event.profile
        self.compiled = self.compiled and not any(map(_is_compiled_in, event.changes))
        if self.advice is not None and (self.advice.setting or "").partition("=")[0] in event.changes:
            self.advice = None  # it was taken, or something else was chosen since
        if self.started is not None:
            self.started = _under_preset(self.started, event.changes)
        self._mark(event, _changed(event))

    def _checkpoint_saved(self, _event: CheckpointSaved) -> None:
        self.pace.interrupted()

    def _joins_epoch(self, event: Event) -> bool:
        """Whether the log tells a checkpoint at the end of the epoch's own line."""
        if not isinstance(event, CheckpointSaved) or event.reason not in {"epoch", "best"}:
            return False
        last = self.log[-1] if self.log else None
        if last is None or not last.text.startswith("epoch "):
            return False
        if not last.text.endswith("saved"):
            last.text += ", saved" if last.text.endswith("best") else "  saved"
        return True

    def _paused(self, _event: Paused) -> None:
        self.paused = True
        self.pace.interrupted()

    def _resumed(self, _event: Resumed) -> None:
        self.paused = False
        self.compiled = False
        self.pace.interrupted()

    def _run_finished(self, event: RunFinished) -> None:
        self.finished, self.paused = event, False
        self._enter(event, "finished")

    def _mark(self, event: Event, label: str, tone: Tone = "plain") -> None:
        self.marks.append(Mark(event.step, clean(label, 32), tone))

    def _command_answered(self, event: CommandAnswered) -> None:
        """Tell a command in one line that grows: asked … taken at step N, done."""
        words = {"asked": "asked …", "taken": f"taken at step {event.step:,}"}.get(event.state, event.state)
        if event.detail and event.state != "asked":
            words = f"{words} ({event.detail})"
        line = self.commands.get(event.command)
        if line is None or event.state == "asked":
            if event.detail and event.state == "asked":
                words = f"{event.detail} {words}"
            line = LogLine(event.time, clean(f"{event.command} {words}"))
            self.log.append(line)
            self.commands[event.command] = line
        else:
            line.text = clean(f"{line.text} {words}")
        if event.state == "refused":
            line.tone = "warn"
        if event.state in {"done", "refused"} or len(self.commands) > OPEN_COMMANDS:
            del self.commands[event.command]


def _is_compiled_in(key: str) -> bool:
    """Whether compiled code is of no use once this setting has changed."""
    return key.startswith(("speed.", "precision.", "memory.")) or key == "training.batch_size"


def _changed(event: PresetSwitched) -> str:
    """What a mark says of other settings: the preset, or the one setting that changed."""
    if event.undone:
        return f"back to {event.profile}"
    if event.previous != event.profile:
        return f"{event.previous} → {event.profile}"
    key, values = next(iter(event.changes.items()), ("", []))
    return f"{key.rpartition('.')[2]} {' → '.join(values)}"


def _in_other_steps(started: RunStarted, event: EpochStarted) -> RunStarted:
    """What was told at the start, after the batch has changed: other steps lie ahead."""
    total = event.step + (event.epochs - event.epoch + 1) * event.steps - event.first_step
    if started.total_steps < started.epochs * started.steps_per_epoch:  # it ends after a number of steps
        total = min(total, started.total_steps)
    return replace(started, steps_per_epoch=event.steps, total_steps=total)


def _under_preset(started: RunStarted, changes: dict[str, list[str]]) -> RunStarted:
    """What was told at the start, as another preset changes it (table.key -> old, new)."""
    new = {key: values[-1] for key, values in changes.items() if values}
    return replace(
        started,
        compile_mode=new.get("speed.compile", started.compile_mode),
        tf32=started.device.startswith("cuda") and new.get("precision.tf32", str(started.tf32)) == "True",
        channels_last=new.get("speed.channels_last", str(started.channels_last)) == "True",
    )
