"""Curves as SVG: a line for each, and a band from the smallest to the largest value behind a single run's.

A curve has at most `COLUMNS` points, whatever the length of the run. A few values that would press all others
to the bottom lie above the axis, as on the live screen: strokes at its edge show where, words how far.
`page.js` zooms by the view box alone, and reads values from the paths, so that the page shows all curves
without a script, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from mptui import format as fmt
from mptui.runs.view.history import Floats, History, end_of_values
from mptui.runs.view.labels import is_percent

COLUMNS = {True: 1024, False: 400}
"""Points of a curve: of a single run, and of one of several."""

_SIDE = 1000
_TICKS = 5
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A curve: its label, its values, and its colour, from 1."""

    label: str
    history: History
    colour: int


def figure_of(chart: str, title: str, lines: Sequence[CurveLine], *, single: bool) -> str:
    """Return the HTML of a chart; "" without values.

    Args:
        chart: The chart, as `RunView.histories` has it.
        title: The title.
        lines: The curves.
        single: Whether they are of one run.
    """
    lines = [line for line in lines if line.history.version]
    if not lines:
        return ""
    first = min(line.history.first_x for line in lines)
    last = max(max(line.history.end_x for line in lines), first + 1)
    seen = [line.history.columns(first, last, COLUMNS[single]) for line in lines]
    every = np.concatenate([part[np.isfinite(part)] for each in seen for part in (each.low, each.high)])
    if not every.size:
        return ""
    low, highest = float(every.min()), float(every.max())
    tops = [columns.high if single else columns.mean for columns in seen]
    means = [columns.mean for columns in seen if np.isfinite(columns.mean).any()]
    high = min(highest, end_of_values(low, tops, means))
    if not high - low > 1e-12 * max(abs(low), abs(high), 1e-12):
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    paths = []
    for line, columns in zip(lines, seen, strict=True):
        if single:
            paths.append(_band(columns.low, columns.high, low, high, line.colour))
        paths.append(_path(columns.mean, low, high, line))
    edge = high + _ROUNDING * (high - low)
    paths += [_above(top, edge, line.colour) for line, top in zip(lines, tops, strict=True)]
    say = fmt.percent if is_percent(chart) else fmt.figure
    values = (high - (high - low) * n / (_TICKS - 1) for n in range(_TICKS))
    steps = (first + (last - first) * n / (_TICKS - 1) for n in range(_TICKS))
    legend = "".join(f'<li class="c{line.colour}">{escape(line.label)}</li>' for line in lines)
    above = _above_words(lines, tops, edge, say, (first, last))
    grid = "".join(f'<path class="grid" d="M0 {y}H{_SIDE}"/>' for y in range(0, _SIDE + 1, _SIDE // 4))
    return (
        f'<figure class="chart" tabindex="0" data-first="{first:.12g}" data-last="{last:.12g}" '
        f'data-low="{low:.9g}" data-high="{high:.9g}" data-percent="{int(is_percent(chart))}">'
        f"<figcaption>{escape(title)}<ul>{legend}</ul>{above}<output></output></figcaption>"
        f'<div class="plot"><div class="y">{_spans(say(value) for value in values)}</div>'
        f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{grid}{"".join(paths)}</svg>'
        f'<div class="x">{_spans(f"{step:,.0f}" for step in steps)}</div></div></figure>'
    )


def _spans(words: Iterable[str]) -> str:
    return "".join(f"<span>{escape(word)}</span>" for word in words)


def _places(values: Floats, low: float, high: float) -> list[tuple[float, float]]:
    """Return x and y of each finite value."""
    known = np.flatnonzero(np.isfinite(values))
    xs = (known + 0.5) * _SIDE / values.size
    ys = (high - values[known]) / (high - low) * _SIDE
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def _path(values: Floats, low: float, high: float, line: CurveLine) -> str:
    points = _places(values, low, high)
    if len(points) == 1:
        points *= 2  # a line without length is drawn as a dot
    drawn = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    label = escape(line.label)
    return f'<path class="line c{line.colour}" d="M{drawn}" data-label="{label}"/>' if points else ""


def _band(lows: Floats, highs: Floats, low: float, high: float, colour: int) -> str:
    top, bottom = _places(highs, low, high), _places(lows, low, high)
    drawn = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*top, *reversed(bottom)])
    return f'<path class="band c{colour}" d="M{drawn}Z"/>' if top else ""


def _above(tops: Floats, edge: float, colour: int) -> str:
    """Return strokes at the upper edge of the axis where values lie above it."""
    columns = ((np.flatnonzero(tops > edge) + 0.5) * _SIDE / tops.size).tolist()
    drawn = "".join(f"M{x:.1f} 0v40" for x in columns)
    return f'<path class="above c{colour}" d="{drawn}"/>' if drawn else ""


def _above_words(
    lines: Sequence[CurveLine],
    tops: Sequence[Floats],
    edge: float,
    say: Callable[[float], str],
    steps: tuple[float, float],
) -> str:
    """Tell how far the values above the axis go, and where the largest of each curve is."""
    words = []
    for line, top in zip(lines, tops, strict=True):
        if (top > edge).any():
            column = int(np.nanargmax(top))
            step = steps[0] + (column + 0.5) / top.size * (steps[1] - steps[0])
            of = f"{line.label} " if len(lines) > 1 else ""
            words.append(f"{of}up to {say(float(top[column]))} near step {step:,.0f}")
    told = escape(", ".join(words))
    return f'<span class="quiet told"> above the axis: {told}</span>' if told else ""
