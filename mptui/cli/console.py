"""Console output of `mptui run`: events as lines, and a progress bar per epoch."""

import time
from typing import TYPE_CHECKING, Protocol

from mptui import events as ev
from mptui import format as fmt
from mptui.runs.view.eta import Pace
from mptui.runs.view.events.event_registry import EVENTS
from mptui.runs.view.events.lifecycle_specs import expected_time
from mptui.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

LINE_EVERY_S = 10.0
"""Seconds between two progress lines without a terminal."""
_REDRAWS_PER_S = 4
_BARS = {"scanning", "preparing", "validating", "sampling"}
"""Phases with a bar."""


class Renderer(Protocol):
    """Shows events in order."""

    every_s: float
    """Seconds between two polls for new events."""

    def handle(self, event: ev.Event) -> None:
        """Show one event."""

    def open(self) -> None:
        """Start drawing, also again after `close`."""

    def close(self) -> None:
        """Stop drawing and restore the console."""


class Quiet:
    """Shows warnings only; for --quiet and --json."""

    every_s = 1.0

    def __init__(self, console: "Console") -> None:
        self._console = console

    def handle(self, event: ev.Event) -> None:
        """Show the event if it is a warning."""
        if isinstance(event, ev.Warned):
            self._console.print(f"warning: {clean(event.message)}", soft_wrap=True)

    def open(self) -> None:
        """Do nothing: there is no live display."""

    def close(self) -> None:
        """Do nothing: there is no live display."""


class Plain:
    """Shows lines, for logs and pipes: at the start, every `LINE_EVERY_S` seconds, and after each epoch."""

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
        """Do nothing: there is no live display."""

    def close(self) -> None:
        """Do nothing: there is no live display."""

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
    """Shows a live bar for each training epoch and validation, and the lines of `Plain` above it."""

    every_s = 1 / _REDRAWS_PER_S

    def __init__(self, console: "Console", icon: tuple[str, str]) -> None:
        from rich.progress import Progress

        from mptui.cli.progress_line import LineColumn

        self._plain = Plain(console, icon)
        self._progress = Progress(
            LineColumn(),
            console=console,
            refresh_per_second=_REDRAWS_PER_S,
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
        """Advance the bar, or print a line above it."""
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
        elif isinstance(event, ev.PhaseChanged) and event.phase in _BARS:
            name = event.detail if event.phase == "preparing" and event.detail else event.phase
            if event.phase == "validating":
                name = f"Epoch {self._epoch} [Val]"
            self._new_bar(name, event.total, 0)
        elif isinstance(event, ev.Progress) and self._bar is not None:
            self._progress.update(self._bar, completed=event.done, total=event.total)
        elif not isinstance(event, ev.PhaseChanged):
            self._plain.handle(event)

    def open(self) -> None:
        """Start drawing the bars."""
        self._progress.start()

    def close(self) -> None:
        """Stop drawing and restore the console."""
        self._progress.stop()

    def _step(self, event: ev.Step, bar: "TaskID") -> None:
        from mptui.cli.progress_line import step_parts

        self._pace.stepped(event)
        figures = step_parts(event, self._steps, self._pace.step_s(), self._mp)
        self._progress.update(bar, completed=event.epoch_step, figures=figures)

    def _count_compile(self, event: ev.PhaseChanged) -> None:
        """Show the seconds of a compilation in a line below the bar."""
        if self._compile is not None:
            self._progress.remove_task(self._compile)
            self._compile = None
        if event.phase == "compiling":
            self._compile = self._progress.add_task(f"compiling{expected_time(event)}", total=None)

    def _new_bar(self, name: str, total: int | None, done: int) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
        self._bar = self._progress.add_task(name, total=total, completed=done)


def step_figures(event: ev.Step) -> str:
    """Format throughput, loss, metric and learning rate in one line."""
    parts = []
    if event.samples_per_second is not None:
        parts.append(f"{event.samples_per_second:.1f} img/s")
    parts.append(f"loss={event.loss:.4f}")
    parts += [f"{name}={value:.3f}" for name, value in list(event.metrics.items())[:1]]
    parts.append(f"lr={event.lr:.2e}")
    return " ".join(parts)


def final_lines(summary: dict[str, object]) -> list[str]:
    """Format the end of a run: status, metrics, directory."""
    final, best, duration = summary["final"], summary["best"], summary["time"]
    assert isinstance(final, dict)
    assert isinstance(best, dict)
    assert isinstance(duration, dict)
    epochs, steps = summary["epochs"], summary["optimizer_steps"]
    assert isinstance(epochs, int)
    assert isinstance(steps, int)
    figures = "  ".join(f"{name} {value:.4f}" for name, value in final.items() if isinstance(value, float))
    lines = [
        f"{summary['status']} after {fmt.counted(epochs, 'epoch')}, {fmt.counted(steps, 'step')}, "
        f"{duration['total_s']:.0f} s"
    ]
    if figures:
        terms = summary.get("loss_terms")  # not in the summaries of older runs
        assert isinstance(terms, list | None)
        lines.append(f"{figures}  (losses with {', '.join(terms)})" if terms else figures)
    if best.get("epoch") is not None:
        lines.append(f"best: {best['metric']} {best['value']:.4f} in epoch {best['epoch']}")
    if words := spent_words(summary):
        lines.append(words)
    lines.append(f"run: {summary['directory']}")
    return lines


def spent_words(summary: dict[str, object]) -> str:
    """Format the energy of the device and the cost; "" if both are unknown."""
    energy, cost = summary["energy"], summary["cost"]
    assert isinstance(energy, dict)
    words = []
    if energy["watt_hours"] is not None:
        mean = 3600 * energy["watt_hours"] / energy["seconds"]
        words.append(f"energy: {fmt.figure(energy['watt_hours'])} Wh, {mean:.0f} W on average")
    if isinstance(cost, int | float):
        words.append(f"cost: {fmt.figure(cost)}")
    return "  ".join(words)
