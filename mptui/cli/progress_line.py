"""The progress line of `mptui run`: figures, and a bar in the remaining width.

The line never wraps. In a narrow terminal whole parts are omitted: first the bar, then the extras, then the
figures, starting from the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mptui import events as ev
from mptui import format as fmt

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
        self._task, self._figures = task, figures

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
    metrics = [f"{name}={value:.3f}" for name, value in list(event.metrics.items())[:1]]
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
