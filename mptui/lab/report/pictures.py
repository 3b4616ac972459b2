"""The pictures of a report: curves, exponents and the time line, as SVG and HTML."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

import numpy as np

from mptui import text as fmt
from mptui.events import Numerics, NumericsLayer
from mptui.runs.view.history import HAPPENINGS, STATES, Floats, Happening, History, TimeColumns, end_of_values
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import is_percent

# The timeline of a run as HTML: state, precision, loss scale, device busy and what happened, over its time
# ---------------------------------------------------------------------------------------------------------
# It has the columns of the live screen's timeline: their number is fixed, whatever the length of the run.

LANE_COLUMNS = 360
_TICKS = 5

_SIGNS: dict[Happening, str] = {
    "checkpoint": "c",
    "restart": "┃",
    "best": "●",
    "switch": "▼",
    "recovery": "▲",
    "alert": "!",
}


def timeline_html(view: RunView) -> str:
    """Return the lanes of a run; "" before its first event."""
    columns = view.timeline.columns(LANE_COLUMNS)
    if not columns.skipped.size:
        return ""
    lanes = {
        "state": _states(columns),
        "precision": _precisions(columns),
        "loss scale": _scales(columns),
        "device busy": _busy(columns),
        "events": _happenings(view, columns),
        "time": _ticks([fmt.duration(share * columns.seconds.sum()) for share in _shares()]),
        "step": _ticks([_step_at(view, share, columns.skipped.size) for share in _shares()]),
    }
    shown = "".join(f"<b>{name}</b>{lane}" for name, lane in lanes.items() if lane)
    return f'<div class="timeline">{shown}</div>{_legend(columns)}'


def time_by_state(columns: TimeColumns) -> dict[str, str]:
    """Return the time in each state, with its share of all."""
    spent = columns.seconds.sum(axis=1)
    total = float(spent.sum())
    return {
        state: f"{fmt.duration(seconds)} ({fmt.percent(seconds / total)})"
        for state, seconds in zip(STATES, spent.tolist(), strict=True)
        if seconds
    }


def _legend(columns: TimeColumns) -> str:
    states = "".join(
        f'<li class="s-{state}">{state} {escape(told)}</li>' for state, told in time_by_state(columns).items()
    )
    signs = "".join(
        f'<li class="sign">{_SIGNS[what]} {what}</li>'
        for what, counts in zip(HAPPENINGS, columns.happened, strict=True)
        if counts.any()
    )
    skipped = '<li class="skipped">skipped step</li>' if columns.skipped.any() else ""
    return f'<ul class="legend">{states}{signs}{skipped}</ul>'


def _states(columns: TimeColumns) -> str:
    """Draw the main state of each column; equal neighbours share a rectangle."""
    seconds = columns.seconds.sum(axis=0)
    drawn = []
    for state, first, last in _spans(columns.main_states()):
        lasted = fmt.duration(float(seconds[first:last].sum()))
        if state:
            drawn.append(
                f'<rect class="s-{state}" x="{first}" width="{last - first}" height="1">'
                f"<title>{state}, {lasted}</title></rect>"
            )
    return _svg(columns, "state", "".join(drawn))


def _precisions(columns: TimeColumns) -> str:
    count = columns.skipped.size
    spans = [
        f'<span style="left:{100 * first / count:.2f}%;width:{100 * (last - first) / count:.2f}%" '
        f'title="{escape(name)}">{escape(name)}</span>'
        for name, first, last in _spans(columns.precision)
        if name
    ]
    return f'<div class="lane spans">{"".join(spans)}</div>' if spans else ""


def _scales(columns: TimeColumns) -> str:
    """Draw the powers of two of the loss scale as steps, and a stroke for each column with skipped steps."""
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.log2(columns.scale)
    known = np.isfinite(powers)
    skipped = np.flatnonzero(columns.skipped)
    if not known.any() and not skipped.size:
        return ""
    low, high = (float(powers[known].min()), float(powers[known].max())) if known.any() else (0.0, 0.0)
    heights = 0.9 - 0.8 * (powers - low) / max(high - low, 1.0)
    steps = [
        f"{'M' if not column or not known[column - 1] else 'L'}{column} {heights[column]:.3f}h1"
        for column in np.flatnonzero(known).tolist()
    ]
    strokes = "".join(f"M{column + 0.5:g} 0V1" for column in skipped.tolist())
    told = f"loss scale from 2^{low:.0f} to 2^{high:.0f}" if known.any() else "skipped steps"
    drawn = f'<path class="line c1" d="{"".join(steps)}"/>' if steps else ""
    return _svg(columns, told, drawn + (f'<path class="skip" d="{strokes}"/>' if strokes else ""))


def _busy(columns: TimeColumns) -> str:
    """Draw the utilisation as an area; a column without a sample has the value before it."""
    sampled = np.maximum.accumulate(np.where(np.isfinite(columns.busy), np.arange(columns.busy.size), 0))
    busy: Floats = np.clip(columns.busy[sampled], 0, 1)
    known = np.flatnonzero(np.isfinite(busy)).tolist()
    if not known:
        return ""
    top = "".join(f"L{column} {1 - busy[column]:.3f}h1" for column in known)
    drawn = f'<path class="band c8" d="M{known[0]} 1{top}V1Z"/>'
    return _svg(columns, f"device busy, {fmt.percent(float(busy[known].mean()))} on average", drawn)


def _happenings(view: RunView, columns: TimeColumns) -> str:
    """Place the sign of each column's most important happening; its tooltip tells all."""
    count = columns.skipped.size
    marks: dict[int, list[str]] = {}
    for mark in view.marks:
        if (moment := view.timeline.moment_at(mark.step)) is not None:
            column = view.timeline.column_of(moment, LANE_COLUMNS)
            marks.setdefault(column, []).append(f"{mark.label} at step {mark.step:,}")
    signs = []
    for column, what in enumerate(columns.most_important()):
        if what is not None:
            numbers = columns.happened[:, column]
            told = [f"{n:.0f} × {each}" for each, n in zip(HAPPENINGS, numbers, strict=True) if n]
            words = ", ".join([*told, *marks.get(column, [])])
            left = 100 * (column + 0.5) / count
            signs.append(
                f'<i class="g-{what}" style="left:{left:.2f}%" title="{escape(words)}">{_SIGNS[what]}</i>'
            )
    return f'<div class="lane signs">{"".join(signs)}</div>' if signs else ""


def _spans(values: Iterable[str | None]) -> Iterable[tuple[str | None, int, int]]:
    """Yield each value with its first column and the one after its last."""
    first = 0
    for value, equal in groupby(values):
        last = first + sum(1 for _ in equal)
        yield value, first, last
        first = last


def _svg(columns: TimeColumns, told: str, drawn: str) -> str:
    return (
        f'<svg class="lane" viewBox="0 0 {columns.skipped.size} 1" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(told)}">{drawn}</svg>'
    )


def _shares() -> list[float]:
    return [number / (_TICKS - 1) for number in range(_TICKS)]


def _step_at(view: RunView, share: float, count: int) -> str:
    moment = view.timeline.moment_in(round(share * (count - 1)), LANE_COLUMNS)
    return fmt.UNKNOWN if moment is None else f"{moment.step:,}"


def _ticks(words: Iterable[str]) -> str:
    return f'<div class="x">{"".join(f"<span>{escape(word)}</span>" for word in words)}</div>'


# Curves as SVG: a line for each, and a band from the smallest to the largest value behind a single run's
# -------------------------------------------------------------------------------------------------------
# A curve has at most `COLUMNS` points, whatever the length of the run. A few values that would press all
# others to the bottom lie above the axis, as on the live screen: strokes at its edge show where, words how
# far. `page.js` zooms by the view box alone, and reads values from the paths, so that the page shows all
# curves without a script, too.

CURVE_COLUMNS = {True: 1024, False: 400}
"""Points of a curve: of a single run, and of one of several."""

_SIDE = 1000
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class CurveLine:
    """A curve: its label, its values, and its colour, from 1; 0: quiet."""

    label: str
    history: History
    colour: int


@dataclass(frozen=True, slots=True)
class SvgPlot:
    """Curves and their axes.

    Attributes:
        svg: The curves, an image that is stretched to any size; colours are those of `page.css`.
        steps: The first and the last value of the horizontal axis.
        values: The lowest and the highest value of the vertical one.
        step_labels: The horizontal axis, from the left.
        value_labels: The vertical axis, from the top.
        above: What lies above the axis, as HTML; "" if nothing.
    """

    svg: str
    steps: tuple[float, float]
    values: tuple[float, float]
    step_labels: list[str]
    value_labels: list[str]
    above: str


def plot_of(chart: str, title: str, lines: Sequence[CurveLine], *, single: bool) -> SvgPlot | None:
    """Draw a chart; None without values.

    Args:
        chart: The chart, as `RunView.histories` has it.
        title: The title, which is read aloud.
        lines: The curves.
        single: Whether they are of one run.
    """
    lines = [line for line in lines if line.history.version]
    if not lines:
        return None
    first = min(line.history.first_x for line in lines)
    last = max(max(line.history.end_x for line in lines), first + 1)
    seen = [line.history.columns(first, last, CURVE_COLUMNS[single]) for line in lines]
    every = np.concatenate([part[np.isfinite(part)] for each in seen for part in (each.low, each.high)])
    if not every.size:
        return None
    low, highest = float(every.min()), float(every.max())
    tops = [columns.high if single else columns.mean for columns in seen]
    means = [columns.mean for columns in seen if np.isfinite(columns.mean).any()]
    high = min(highest, end_of_values(low, tops, means))
    if not high - low > 1e-12 * max(abs(low), abs(high), 1e-12):
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    paths = []
    for line, columns in zip(lines, seen, strict=True):
        if single:
            paths.append(_band(columns.low, columns.high, low, high, colour=line.colour))
        paths.append(_path(columns.mean, low, high, line))
    edge = high + _ROUNDING * (high - low)
    paths += [_above(top, edge, line.colour) for line, top in zip(lines, tops, strict=True)]
    say = fmt.percent if is_percent(chart) else fmt.figure
    grid = "".join(f'<path class="grid" d="M0 {y}H{_SIDE}"/>' for y in range(0, _SIDE + 1, _SIDE // 4))
    shares = _shares()
    return SvgPlot(
        svg=f'<svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{grid}{"".join(paths)}</svg>',
        steps=(first, last),
        values=(low, high),
        step_labels=[f"{first + (last - first) * share:,.0f}" for share in shares],
        value_labels=[say(high - (high - low) * share) for share in shares],
        above=_above_words(lines, tops, edge, say, steps=(first, last)),
    )


def figure_of(chart: str, title: str, lines: Sequence[CurveLine], *, single: bool) -> str:
    """Return the HTML of a chart, drawn by `plot_of`; "" without values."""
    plot = plot_of(chart, title, lines, single=single)
    if plot is None:
        return ""
    legend = "".join(
        f'<li class="c{line.colour}">{escape(line.label)}</li>' for line in lines if line.history.version
    )
    (first, last), (low, high) = plot.steps, plot.values
    return (
        f'<figure class="chart" tabindex="0" data-first="{first:.12g}" data-last="{last:.12g}" '
        f'data-low="{low:.9g}" data-high="{high:.9g}" data-percent="{int(is_percent(chart))}">'
        f"<figcaption>{escape(title)}<ul>{legend}</ul>{plot.above}<output></output></figcaption>"
        f'<div class="plot"><div class="y">{_labels(plot.value_labels)}</div>{plot.svg}'
        f'<div class="x">{_labels(plot.step_labels)}</div></div></figure>'
    )


def _labels(words: Iterable[str]) -> str:
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


def _band(lows: Floats, highs: Floats, low: float, high: float, *, colour: int) -> str:
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
    *,
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


# The exponents of the layers of a numerics probe as small charts, with the range of fp16
# ---------------------------------------------------------------------------------------

_LAYERS = 12
"""Largest number of layers that have a chart, worst first."""
_LOWEST, _HIGHEST = -48, 24
"""Exponents on the axis; those beyond are drawn at its ends."""
_SUBNORMAL, _NORMAL, _TOP = -24, -14, 15
"""Exponents of fp16: subnormal, with fewer bits, below `_NORMAL`."""
_PARTS = {"lost": "bad", "fewer": "warn", "kept": "c1"}


def exponents_html(view: RunView) -> str:
    """Return a chart for each of the worst layers of the last probe; "" without a probe."""
    event = view.numerics
    if event is None:
        return ""
    drawn = "".join(_layer(event, layer) for layer in event.layers[:_LAYERS] if sum(layer.exponents) > 0)
    legend = (
        '<ul class="legend"><li class="bar c1">kept by fp16</li><li class="bar warn">with fewer bits</li>'
        '<li class="bar bad">lost: zero or too large</li></ul>'
    )
    return f'{legend}<div class="exponents">{drawn}</div>' if drawn else ""


def _layer(event: Numerics, layer: NumericsLayer) -> str:
    """Draw a bar for each exponent, as fp16 has it under the loss scale."""
    scale = 1.0 if layer.part == "forward" else event.loss_scale or event.best_scale or 1.0
    shift = max(0, int(scale).bit_length() - 1) if scale < 2.0**127 else 127
    heights = dict.fromkeys(range(_LOWEST, _HIGHEST + 1), 0)
    for number, share in enumerate(layer.exponents):
        exponent = min(max(layer.first_exponent + number + shift, _LOWEST), _HIGHEST)
        heights[exponent] += max(share, 0)
    most = max(heights.values())
    bars = dict.fromkeys(_PARTS, "")
    for exponent, share in heights.items():
        if share:
            bars[_range_of(exponent)] += f"M{exponent - _LOWEST + 0.5:g} 1V{1 - share / most:.3f}"
    drawn = "".join(f'<path class="bar {_PARTS[part]}" d="{path}"/>' for part, path in bars.items() if path)
    title = escape(f"{layer.name} · {layer.part}")
    return (
        f'<figure><svg viewBox="0 0 {_HIGHEST - _LOWEST + 1} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}">{drawn}</svg><figcaption>{title}</figcaption></figure>'
    )


def _range_of(exponent: int) -> str:
    if exponent < _SUBNORMAL or exponent > _TOP:
        return "lost"
    return "fewer" if exponent < _NORMAL else "kept"
