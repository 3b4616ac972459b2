"""What `mptui run` says on a console: the same events as the screens, as lines and one bar an epoch."""

import time
from typing import TYPE_CHECKING, Protocol

from mptui import events as ev
from mptui import format as fmt
from mptui.runs.view.eta import Pace
from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

LINE_EVERY_S = 10.0
"""Without a terminal: seconds between two lines of one epoch."""
_REDRAWS = 4
"""Of the bars, a second."""

_LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


class Renderer(Protocol):
    """Shows events, in order."""

    every_s: float
    """Seconds between two looks for new ones."""

    def show(self, event: ev.Event) -> None:
        """Show one event."""

    def open(self) -> None:
        """Draw on the console again after `close`."""

    def close(self) -> None:
        """Leave the console as it was."""


class Quiet:
    """Shows warnings and how it ended, nothing else; for --quiet and --json."""

    every_s = 1.0

    def __init__(self, console: "Console") -> None:
        self._console = console

    def show(self, event: ev.Event) -> None:
        """Show a warning."""
        if isinstance(event, ev.Warned):
            self._console.print(f"warning: {clean(event.message)}", soft_wrap=True)

    def open(self) -> None:
        """Nothing is drawn that stays."""

    def close(self) -> None:
        """Nothing was taken."""


class Plain:
    """Lines, for logs and pipes: at the start, at most one in ten seconds, and one an epoch."""

    every_s = 1.0

    def __init__(self, console: "Console", icon: tuple[str, str]) -> None:
        self._console = console
        self._on, self._off = icon
        self._mp = ""
        self._told = 0.0
        self._started: ev.RunStarted | None = None

    def show(self, event: ev.Event) -> None:
        """Show one event, where it is worth a line."""
        if isinstance(event, ev.RunStarted):
            self._start(event)
        elif isinstance(event, ev.Step):
            self._step(event)
        elif isinstance(event, ev.EpochFinished):
            for line in epoch_summary(event):
                self._say(line)
        elif isinstance(event, ev.PrecisionChanged):
            self._say(f"precision: {event.previous} -> {event.precision}: {event.reason}")
        elif isinstance(event, ev.StepSkipped):
            self._say(skipped_line(event))
        elif isinstance(event, ev.Recovered):
            self._say(f"{event.problem}: {event.action}")
        elif isinstance(event, ev.Advice):
            self._say(advice_line(event))
        elif isinstance(event, ev.PhaseChanged) and event.phase in {"scanning", "compiling"}:
            self._say(f"{event.phase} {event.detail}{_usual(event)} …")
        elif isinstance(event, ev.PhaseChanged) and event.phase == "preparing" and event.detail:
            self._say(f"{event.detail} …")
        elif isinstance(event, ev.Warned):
            self._say(f"warning: {event.message}")
        elif isinstance(event, ev.Alert):
            self._say(f"alert: {event.message}")

    def open(self) -> None:
        """Nothing is drawn that stays."""

    def close(self) -> None:
        """Nothing was taken."""

    def _start(self, event: ev.RunStarted) -> None:
        self._mp = self._off if event.precision == "fp32" else self._on
        self._started = event
        for line in start_lines(event):
            self._say(line)

    def _step(self, event: ev.Step) -> None:
        now = time.monotonic()
        if self._started is not None and now - self._told >= LINE_EVERY_S:
            self._told = now
            steps = self._started.steps_per_epoch
            self._say(
                f"epoch {event.epoch} step {event.epoch_step}/{steps}  {step_figures(event)}  mp: {self._mp}"
            )

    def _say(self, line: str) -> None:
        self._console.print(clean(line), soft_wrap=True)


class Bars:
    """A live bar an epoch for training and for validation, and the same lines as `Plain` above it."""

    every_s = 1 / _REDRAWS

    def __init__(self, console: "Console", icon: tuple[str, str]) -> None:
        from rich.progress import Progress

        from mptui.cli.progress_line import LineColumn

        self._plain = Plain(console, icon)
        self._progress = Progress(
            LineColumn(),
            console=console,
            refresh_per_second=_REDRAWS,
            transient=True,
            expand=True,
        )
        self._progress.start()
        self._bar: TaskID | None = None
        self._compile: TaskID | None = None
        self._epoch = self._steps = 0
        self._pace = Pace()
        self._on, self._off = icon
        self._mp = ""

    def show(self, event: ev.Event) -> None:
        """Move the bar, or print a line above it."""
        if isinstance(event, ev.RunStarted):
            self._mp = self._off if event.precision == "fp32" else self._on
        if isinstance(event, ev.PhaseChanged):
            self._count_compile(event)
        if isinstance(event, ev.PhaseChanged | ev.EpochStarted | ev.CheckpointSaved):
            self._pace.interrupted()
        if isinstance(event, ev.EpochStarted):
            self._epoch, self._steps = event.epoch, event.steps
            self._new_bar(f"Epoch {event.epoch} [Train]", event.steps, event.first_step)
        elif isinstance(event, ev.Step) and self._bar is not None:
            self._step(event, self._bar)
        elif isinstance(event, ev.PhaseChanged) and event.phase in {"scanning", "preparing", "validating"}:
            name = event.detail if event.phase == "preparing" and event.detail else event.phase
            if event.phase == "validating":
                name = f"Epoch {self._epoch} [Val]"
            self._new_bar(name, event.total, 0)
        elif isinstance(event, ev.Progress) and self._bar is not None:
            self._progress.update(self._bar, completed=event.done, total=event.total)
        elif not isinstance(event, ev.PhaseChanged):
            self._plain.show(event)

    def open(self) -> None:
        """Draw the bars again."""
        self._progress.start()

    def close(self) -> None:
        """Leave the console as it was."""
        self._progress.stop()

    def _step(self, event: ev.Step, bar: "TaskID") -> None:
        from mptui.cli.progress_line import step_parts

        self._pace.stepped(event)
        figures = step_parts(event, self._steps, self._pace.step_s(), self._mp)
        self._progress.update(bar, completed=event.epoch_step, figures=figures)

    def _count_compile(self, event: ev.PhaseChanged) -> None:
        """A line of its own counts the seconds of a compile, below the bar that waits for it."""
        if self._compile is not None:
            self._progress.remove_task(self._compile)
            self._compile = None
        if event.phase == "compiling":
            self._compile = self._progress.add_task(f"compiling{_usual(event)}", total=None)

    def _new_bar(self, name: str, total: int | None, done: int) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
        self._bar = self._progress.add_task(name, total=total, completed=done)


def _usual(event: ev.PhaseChanged) -> str:
    """How long a phase took the last time."""
    return "" if event.expected_s is None else f" (about {fmt.duration(event.expected_s)} the last time)"


def start_lines(event: ev.RunStarted) -> list[str]:
    """What a person needs to know of a run that begins."""
    on = event.precision != "fp32"
    precision = _LONG_NAMES[event.precision] if on else "off (float32)"
    speed = [
        "TF32" if event.tf32 else "",
        "channels last" if event.channels_last else "",
        f"compile {event.compile_mode}" if event.compile_mode != "off" else "",
    ]
    effective = f" x {event.accumulate}" if event.accumulate > 1 else ""
    lines = [
        *event.notes,
        f"Device: {event.device_name} ({event.device})",
        f"Mixed precision: {precision}: {event.precision_reason}",
        f"✓ AMP enabled with {_LONG_NAMES[event.precision]}" if on else "",
        f"{event.model}, {event.parameters / 1e6:.1f} M parameters, {event.image_size} px, "
        f"batch {event.batch_size}{effective}" + "".join(f", {item}" for item in speed if item),
        f"{event.dataset}: {event.train_samples:,} training and {event.val_samples:,} validation images"
        + (f", {len(event.classes)} classes" if event.task != "diffusion" else ""),
        f"Run: {event.directory}",
    ]
    if event.resumed_from_step is not None:
        lines.append(f"Resumed after step {event.resumed_from_step:,}")
    return [line for line in lines if line]


def step_figures(event: ev.Step) -> str:
    """Rate, loss, metric and learning rate in one line."""
    parts = []
    if event.samples_per_second is not None:
        parts.append(f"{event.samples_per_second:.1f} img/s")
    parts.append(f"loss={event.loss:.4f}")
    parts += [f"{name}={value:.3f}" for name, value in list(event.metrics.items())[:1]]
    parts.append(f"lr={event.lr:.2e}")
    return " ".join(parts)


def epoch_summary(event: ev.EpochFinished) -> list[str]:
    """One line an epoch: training beside validation."""
    train = [f"loss {event.train_loss:.4f}", *(f"{k} {v:.4f}" for k, v in event.train_metrics.items())]
    line = f"Epoch {event.epoch}/{event.epochs}  train: {' '.join(train[:2])}"
    if event.val_loss is not None:
        val = [f"loss {event.val_loss:.4f}", *(f"{k} {v:.4f}" for k, v in event.val_metrics.items())]
        line += f"  val: {' '.join(val[:3])}"
    rate = "" if event.samples_per_second is None else f"  {event.samples_per_second:.1f} img/s"
    return [f"{line}{rate}  {event.seconds:.1f} s{'  ✓ best' if event.best else ''}"]


def skipped_line(event: ev.StepSkipped) -> str:
    """How many steps were skipped, and the loss scale now."""
    scale = "" if event.loss_scale is None else f", loss scale {event.loss_scale:,.0f}"
    return f"skipped {event.count} step(s) with non-finite gradients ({event.total} in all{scale})"


def advice_line(event: ev.Advice) -> str:
    """What would help, and the flag that does it."""
    return f"advice: {event.message}" + (f" (--set {event.setting})" if event.setting else "")


def final_lines(summary: dict[str, object]) -> list[str]:
    """How it ended, and where it lies."""
    final, best, duration = summary["final"], summary["best"], summary["time"]
    assert isinstance(final, dict)
    assert isinstance(best, dict)
    assert isinstance(duration, dict)
    figures = "  ".join(f"{name} {value:.4f}" for name, value in final.items() if isinstance(value, float))
    lines = [
        f"{summary['status']} after {summary['epochs']} epochs, {summary['optimizer_steps']} steps, "
        f"{duration['total_s']:.0f} s"
    ]
    if figures:
        lines.append(figures)
    if best.get("epoch") is not None:
        lines.append(f"best: {best['metric']} {best['value']:.4f} in epoch {best['epoch']}")
    lines.append(f"run: {summary['directory']}")
    return lines
