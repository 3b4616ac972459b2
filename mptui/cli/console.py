"""Events of a run as lines or bars."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mptui import events as ev
from mptui import text as fmt
from mptui.registry.tasks import metric_word
from mptui.runs.view.specs import EVENTS, expected_time
from mptui.runs.view.state import Pace
from mptui.runs.view.words import steps_words, time_words
from mptui.text import clean

if TYPE_CHECKING:
    from rich.progress import TaskID


# Console output of `mptui run`: events as lines, and a progress bar per epoch
# ----------------------------------------------------------------------------

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
        self._steps = 0

    def handle(self, event: ev.Event) -> None:
        """Print the lines of an event, if it has any."""
        if isinstance(event, ev.RunStarted):
            self._mp = self._off if event.precision == "fp32" else self._on
        elif isinstance(event, ev.EpochStarted):  # of the batch that is in force now
            self._steps = event.steps
        elif isinstance(event, ev.Step):
            self._step(event)
        for line in EVENTS[event.kind].console_lines(event):
            self._print(line)

    def open(self) -> None:
        """Do nothing: there is no live display."""

    def close(self) -> None:
        """Do nothing: there is no live display."""

    def _step(self, event: ev.Step) -> None:
        now = time.monotonic()
        if self._steps and now - self._printed >= LINE_EVERY_S:
            self._printed = now
            place = f"epoch {event.epoch} step {event.epoch_step}/{self._steps}"
            self._print(f"{place}  {step_figures(event)}  mp: {self._mp}")

    def _print(self, line: str) -> None:
        self._console.print(clean(line), soft_wrap=True)


class Bars:
    """Shows a live bar for each training epoch and validation, and the lines of `Plain` above it."""

    every_s = 1 / _REDRAWS_PER_S

    def __init__(self, console: "Console", icon: tuple[str, str]) -> None:
        from rich.progress import Progress

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
        if isinstance(event, ev.PhaseChanged | ev.EpochStarted):
            self._pace.interrupted()
        if isinstance(event, ev.EpochStarted):
            self._epoch = event.epoch
            self._steps = event.steps
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
    parts += [f"{metric_word(name)}={value:.3f}" for name, value in list(event.metrics.items())[:1]]
    parts.append(f"lr={event.lr:.2e}")
    return " ".join(parts)


def final_lines(summary: dict[str, object]) -> list[str]:
    """Format the end of a run: status, metrics, directory."""
    final, best, duration = summary["final"], summary["best"], summary["time"]
    assert isinstance(final, dict)
    assert isinstance(best, dict)
    assert isinstance(duration, dict)
    epochs, steps, images = summary["epochs"], summary["optimizer_steps"], summary["samples_seen"]
    assert isinstance(epochs, int)
    assert isinstance(steps, int)
    assert isinstance(images, int)
    known = {name: value for name, value in final.items() if isinstance(value, float)}
    figures = "  ".join(f"{metric_word(name)} {value:.4f}" for name, value in known.items())
    done = steps_words(steps, summary.get("total_steps"))
    lines = [
        f"{summary['status']} after {fmt.counted(epochs, 'epoch')}, {done} step{'' if done == '1' else 's'}, "
        f"{fmt.counted(images, 'image')}, {time_words(duration.get('session_s'), duration['total_s'])}"
    ]
    if figures:
        terms = summary.get("loss_terms")  # not in the summaries of older runs
        assert isinstance(terms, list | None)
        lines.append(f"{figures}  (losses with {', '.join(terms)})" if terms else figures)
    if best.get("epoch") is not None:
        lines.append(f"best: {metric_word(str(best['metric']))} {best['value']:.4f} in epoch {best['epoch']}")
    if words := spent_words(summary):
        lines.append(words)
    concerns = summary.get("concerns") or []  # not in the summaries of older runs
    assert isinstance(concerns, list)
    lines += [f"doubtful: {words}" for words in concerns]
    if advice := summary.get("advice"):
        lines.append(f"what would help most: {advice}")
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


# The progress line of `mptui run`: figures, and a bar in the remaining width
# ---------------------------------------------------------------------------
# The line never wraps. In a narrow terminal whole parts are omitted: first the bar, then the extras, then
# the figures, starting from the last.

SHORTEST_BAR = 6
"""Cells; a shorter bar is omitted."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The text beside a bar, in the order of the line.

    Args:
        whole: Parts that fit into 80 columns. A narrower line omits the last ones first.
        extras: Parts that are added if there is room, the first ones first.
    """

    whole: Sequence[str] = ()
    extras: Sequence[str] = ()

    def fitting(self, width: int) -> list[str]:
        """Return the leading parts that fit into `width` cells."""
        parts: list[str] = []
        for part in (*self.whole, *self.extras):
            if cell_len(" ".join([*parts, part])) > width:
                break
            parts.append(part)
        return parts


class LineColumn(ProgressColumn):
    """The only column of the progress display: one line per task."""

    def render(self, task: Task) -> "Line":
        """Return the line of a task; without `figures`, it shows the count and the time left."""
        figures = task.fields.get("figures")
        return Line(task, figures if isinstance(figures, Figures) else counted(task))


class Line:
    """One task, drawn at the available width."""

    def __init__(self, task: Task, figures: Figures) -> None:
        self._task = task
        self._figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the name, the bar if it fits, and the figures."""
        width = options.max_width
        name = self._task.description
        parts = self._figures.fitting(width - cell_len(name) - 1)
        figures = " ".join(parts)
        complete = len(parts) >= len(self._figures.whole)
        room = width - cell_len(name) - cell_len(figures) - 2 if complete else 0
        cells: list[Text | ProgressBar] = [Text(name, no_wrap=True)]
        if room >= SHORTEST_BAR:
            total = self._task.total
            cells.append(
                ProgressBar(
                    total=total,
                    completed=self._task.completed,
                    width=room,
                    pulse=total is None,
                    animation_time=self._task.get_time(),
                )
            )
        row = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        for _ in range(len(cells) + 1):
            row.add_column(no_wrap=True)
        row.add_row(*cells, Text(figures, no_wrap=True))
        yield row


def counted(task: Task) -> Figures:
    """Return the figures of a phase without optimizer steps: count, rate and time left."""
    if task.total is None:
        return Figures([clock(task.elapsed)])
    total = int(task.total)
    rate = "" if task.speed is None else f"{fmt.figure(task.speed):>5} it/s"
    left = f"{clock(task.time_remaining)} left"
    return Figures([of(int(task.completed), total), *([rate] if rate else []), left])


def step_parts(event: ev.Step, steps: int, step_s: float | None, icon: str) -> Figures:
    """Return the figures of a training epoch.

    Args:
        event: The latest step event.
        steps: Optimizer steps of the epoch.
        step_s: Recent seconds per step, for the time left in this epoch; None: not known yet.
        icon: Symbol of mixed precision.
    """
    rates = []
    if event.samples_per_second is not None:
        rates.append(f"{_rate(event.samples_per_second):>6} img/s")
    if event.step_time_s:
        rates.append(f"{_rate(1 / event.step_time_s):>5} it/s")
    left = None if step_s is None else step_s * max(0, steps - event.epoch_step)
    metrics = [f"{metric_word(name)}={value:.3f}" for name, value in list(event.metrics.items())[:1]]
    return Figures(
        whole=[of(event.epoch_step, steps), f"loss={event.loss:.4f}", *rates, f"{clock(left)} left"],
        extras=[f"mp: {icon}", *metrics, f"lr={event.lr:.2e}"],
    )


def of(done: int, total: int) -> str:
    """Format `done/total`, padded to a constant width."""
    return f"{done:>{len(str(total))}}/{total}"


def clock(seconds: float | None) -> str:
    """Format a duration as 0:01:20; dashes if it is unknown."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
