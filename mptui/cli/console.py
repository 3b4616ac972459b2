"""What `mptui run` says on a console: the same events as the screens, as lines and one bar an epoch."""

import time
from typing import TYPE_CHECKING, Protocol

from mptui import events as ev
from mptui.runs.view.eta import Pace
from mptui.runs.view.events.event_registry import EVENTS
from mptui.runs.view.events.lifecycle_specs import usual_time
from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

LINE_EVERY_S = 10.0
"""Without a terminal: seconds between two lines of one epoch."""
_REDRAWS = 4
"""Of the bars, a second."""


class Renderer(Protocol):
    """Shows events, in order."""

    every_s: float
    """Seconds between two looks for new ones."""

    def handle(self, event: ev.Event) -> None:
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

    def handle(self, event: ev.Event) -> None:
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
        self._printed = 0.0
        self._started: ev.RunStarted | None = None

    def handle(self, event: ev.Event) -> None:
        """Print the lines of an event, if it has any."""
        if isinstance(event, ev.RunStarted):
            self._mp = self._off if event.precision == "fp32" else self._on
            self._started = event
        elif isinstance(event, ev.Step):
            self._step(event)
        for line in EVENTS[event.kind].console_lines(event):
            self._say(line)

    def open(self) -> None:
        """Nothing is drawn that stays."""

    def close(self) -> None:
        """Nothing was taken."""

    def _step(self, event: ev.Step) -> None:
        now = time.monotonic()
        if self._started is not None and now - self._printed >= LINE_EVERY_S:
            self._printed = now
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

    def handle(self, event: ev.Event) -> None:
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
            self._plain.handle(event)

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
            self._compile = self._progress.add_task(f"compiling{usual_time(event)}", total=None)

    def _new_bar(self, name: str, total: int | None, done: int) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
        self._bar = self._progress.add_task(name, total=total, completed=done)


def step_figures(event: ev.Step) -> str:
    """Rate, loss, metric and learning rate in one line."""
    parts = []
    if event.samples_per_second is not None:
        parts.append(f"{event.samples_per_second:.1f} img/s")
    parts.append(f"loss={event.loss:.4f}")
    parts += [f"{name}={value:.3f}" for name, value in list(event.metrics.items())[:1]]
    parts.append(f"lr={event.lr:.2e}")
    return " ".join(parts)


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
