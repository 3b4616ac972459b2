"""Draws a curve of several runs over each other."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from mptui.runs.listing.run_curves import Curve, histories_of
from mptui.runs.view.history import History
from mptui.runs.view.labels import is_percent
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.widgets.chart.chart import Chart
from mptui.tui.widgets.chart.curve_shape import Series


def show_curve(
    chart: Chart, runs: Sequence[Path], views: Mapping[Path, RunView], curve: Curve, since: int = 0
) -> None:
    """Draw a curve of each run from step `since` on, in the colour of its number."""
    found = {run: history.since(since) for run, history in histories_of(views, curve).items()}
    name, label = curve
    chart.entitle(f"{name} · {label}" if label and label != name else name)
    titles = [views[run].title_of(name, run.name) if run in views else run.name for run in runs]
    labels = [f"{number} {title}" for number, title in enumerate(titles, 1)]
    if len(runs) == 1:
        labels = titles
    elif sum(map(len, labels)) + 8 * len(labels) > chart.size.width:
        labels = [str(number) for number in range(1, len(runs) + 1)]
    series = [
        Series(clean(text, 60), found.get(run) or History(2)) for run, text in zip(runs, labels, strict=True)
    ]
    chart.show(series, percent=is_percent(name))
