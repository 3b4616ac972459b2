"""The charts of a screen, which show the same steps and have the same cursor."""

from collections.abc import Mapping, Sequence

from mptui.registry.tasks import DEFAULT_TASK, TASKS
from mptui.runs.listing.fork_parent import Curves
from mptui.runs.view.history import History
from mptui.runs.view.labels import (
    DEVICE,
    FROM_ZERO,
    GRADIENT_NORM,
    LOSS,
    LR,
    TRAIN,
    VALIDATION,
    is_noisy,
    is_percent,
)
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.chart.chart import Chart
from mptui.tui.widgets.chart.curve_shape import Series, StepWindow
from mptui.tui.widgets.chart.zoom import panned, zoomed


def charts_of(view: RunView, chosen: Sequence[str]) -> list[str]:
    """Return the charts to draw: the chosen ones first, then the default ones."""
    name, primary = (DEFAULT_TASK, "") if view.started is None else (view.started.task, view.started.primary)
    primary_chart = TASKS.get(name, TASKS[DEFAULT_TASK]).chart(primary)
    return list(dict.fromkeys([*chosen, LOSS, primary_chart, LR, GRADIENT_NORM, "speed", DEVICE]))


class ChartSet:
    """Charts by importance.

    Args:
        charts: The widgets, the most important first.
    """

    def __init__(self, charts: Sequence[Chart]) -> None:
        self._charts = charts
        self._window: StepWindow | None = None
        self._pinned: float | None = None
        self._behind: Curves = {}
        self._shown: tuple[RunView, Sequence[str]] | None = None

    def show(self, view: RunView, names: Sequence[str]) -> None:
        """Show the metrics of these names, as far as there are charts."""
        self._shown = view, names
        for number, chart in enumerate(self._charts):
            name = names[number] if number < len(names) else ""
            _show(chart, view, name, self._behind.get(name, {}), is_first=number == 0)

    def put_behind(self, curves: Curves) -> None:
        """Draw the curves of the parent of a fork behind those of the same charts."""
        if curves is not self._behind:
            self._behind = curves
            if self._shown is not None:
                self.show(*self._shown)

    def zoom(self, last: float, closer: bool, centre: float | None = None) -> None:
        """Show fewer or more of the steps to `last`, around `centre` or the cursor."""
        centre = self._pinned if centre is None else centre
        self._look_at(zoomed(self._window, last, closer, centre))

    def pan(self, last: float, share: float) -> None:
        """Show later steps by a share of those shown, or earlier ones if it is negative."""
        self._look_at(panned(self._window, last, share))

    def whole(self) -> None:
        """Show all steps."""
        self._look_at(None)

    def pin(self, step: float | None) -> None:
        """Put the cursor at a step, which keeps it while the axis grows; None: remove it."""
        self._pinned = step
        for chart in self._charts:
            chart.pin(step)

    def remove_cursor(self) -> bool:
        """Remove the cursor; return whether there was one."""
        self._pinned = None
        removed = [chart.remove_cursor() for chart in self._charts]
        return any(removed)

    def toggle_log(self) -> None:
        """Toggle the value axes between linear and logarithmic."""
        for chart in self._charts:
            chart.toggle_log()

    def toggle_smoothing(self) -> None:
        """Toggle smoothing of noisy curves."""
        for chart in self._charts:
            chart.toggle_smoothing()

    def _look_at(self, window: StepWindow | None) -> None:
        self._window = window
        for chart in self._charts:
            chart.look_at(window)


def _show(chart: Chart, view: RunView, name: str, behind: Mapping[str, History], *, is_first: bool) -> None:
    histories = view.histories.get(name, {})
    both = any(label.endswith(TRAIN) for label in histories)
    chart.entitle(view.title_of(name))
    chart.show(
        [
            Series(label, history, both and label.endswith(VALIDATION), is_noisy(name, label))
            for label, history in histories.items()
        ]
        + [
            Series(f"parent's {label}", history, noisy=is_noisy(name, label), behind=True)
            for label, history in behind.items()
        ],
        marks=tuple(view.marks) if is_first else (),
        skips=view.skips if is_first else None,
        best=view.best.get(name),
        percent=is_percent(name),
        from_zero=name in FROM_ZERO,
        planned=[(step, rate) for step, rate in view.planned_lr] if name == LR else (),
    )
