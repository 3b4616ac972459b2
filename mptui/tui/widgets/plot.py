"""Draws a chart of histories as a grid of characters, with numpy only, independent of Textual."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from mptui import text as fmt
from mptui.runs.view.history import POINTS as FEW
from mptui.runs.view.history import CurveColumns, History, end_of_values
from mptui.runs.view.state import Mark
from mptui.runs.view.words import DEVICE, TRAIN, VALIDATION

# Axes with round numbers: ticks, labels and ranges
# -------------------------------------------------

Floats = NDArray[np.float64]

_LONGEST = 7
"""Cells from which on a percentage has no space."""


def nice_step(span: float, ticks: int) -> float:
    """Return the round number (1, 2, 2.5 or 5 times 10^n) that divides `span` into about `ticks`."""
    rough = span / max(1, ticks)
    power: float = 10.0 ** math.floor(math.log10(rough))
    return power * next(round_one for round_one in (1, 2, 2.5, 5, 10) if rough <= round_one * power * 1.0001)


@dataclass(frozen=True, slots=True)
class Axis:
    """A vertical axis from `low` to `high`; on a log axis, both are exponents of ten."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False
    percent: bool = False

    def rows(self, values: Floats, rows: int) -> NDArray[np.intp]:
        """Return the dot row of each value, 0 on top; what has no place (NaN) lands on row 0."""
        share = np.fmin(np.fmax(self._shares(values), 0), 1)
        row: NDArray[np.intp] = np.rint(share * (rows - 1)).astype(np.intp)
        return row

    def above(self, values: Floats) -> NDArray[np.bool_]:
        """Return which values lie above the axis, by more than rounding."""
        return np.asarray(self._shares(values) < -1e-6)

    def below(self, values: Floats) -> NDArray[np.bool_]:
        """Return which values lie below the axis, by more than rounding."""
        return np.asarray(self._shares(values) > 1 + 1e-6)

    def _shares(self, values: Floats) -> Floats:
        """Return the place of each value as a share of the axis, 0 on top."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            position = np.log10(values) if self.log else values
            shares: Floats = (self.high - position) / (self.high - self.low)
        return shares

    def row(self, value: float, rows: int) -> int:
        """Return the row of one value."""
        return int(self.rows(np.array([value]), rows)[0])

    def label(self, tick: float) -> str:
        """Format a tick with as many digits as the ticks need to differ: `1.50`, `3k`, `2.5e-5`, `80 %`."""
        is_plain = self.log or tick in (0, 1)
        if self.percent and is_plain:
            return f"{100 * tick:.4g} %"
        if tick == 0:
            return "0"
        if self.log:
            return fmt.short(tick) if abs(tick) >= 1e-3 else _power(tick)
        largest, step = max(map(abs, self.ticks)), self.ticks[-1] - self.ticks[0]
        step = step / (len(self.ticks) - 1) if len(self.ticks) > 1 else largest
        if self.percent:
            label = f"{100 * tick:.{_digits(100 * step)}f} %"
            return label if len(label) < _LONGEST else label.replace(" ", "")
        if largest < 1e-3:
            return _power(tick)
        return fmt.short(tick) if largest >= 1e4 else f"{tick:.{_digits(step)}f}"


def _power(value: float) -> str:
    """Return a short text in powers of ten: `1e-5`, `2.5e-5`."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _digits(step: float) -> int:
    """Return the decimals of a round step: 0 for 5, 1 for 0.5, 2 for 0.25; at most 5."""
    return next((digits for digits in range(5) if abs(round(step, digits) - step) < step / 1e6), 5)


def linear_axis(low: float, high: float, rows: int, percent: bool = False) -> Axis:
    """Return an axis over `low` to `high`, widened to quarters of a tick, with about 2 to 6 ticks.

    That of percentages stays within 0 % and 100 %, unless a value lies beyond.
    """
    least, most = (min(low, 0.0), max(high, 1.0)) if percent else (-math.inf, math.inf)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        margin = abs(high) / 2 if abs(high) > 1e-100 else 1.0
        low, high = max(low - margin, least), min(high + margin, most)
    step = nice_step(high - low, max(2, min(6, rows // 2)))
    quarter = step / 4
    first, last = math.floor(low / quarter + 1e-9) * quarter, math.ceil(high / quarter - 1e-9) * quarter
    last = min(last, most)
    numbers = range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)
    return Axis(first, last, tuple(round(i * step, 12) for i in numbers), percent=percent)


def log_axis(low: float, high: float, percent: bool = False) -> Axis:
    """Return a log axis over positive `low` to `high`, widened to 1, 2 or 5 times powers of ten."""
    rounds = [
        factor * 10.0**power
        for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
        for factor in (1, 2, 5)
    ]
    start = max(i for i, tick in enumerate(rounds) if tick <= low * 1.0001)
    stop = min(i for i, tick in enumerate(rounds) if tick >= high * 0.9999 and i > start)
    ticks = rounds[start : stop + 1]
    if len(ticks) > 7:
        ticks = [tick for tick in ticks if f"{tick:e}".startswith("1.0")]
    ends = math.log10(rounds[start]), math.log10(rounds[stop])
    return Axis(*ends, tuple(ticks), log=True, percent=percent)


def end_of_steps(last: float) -> float:
    """Return the end of a step axis: `last` rounded up coarsely, so that the axis rarely changes."""
    if last <= 0:
        return 1.0
    quantum = max(1.0, nice_step(last, 20))
    return math.ceil(last / quantum) * quantum


def step_ticks(first: float, last: float, width: int) -> list[tuple[float, str]]:
    """Return round whole steps from `first` to `last` with distinct labels, one per about 12 cells."""
    if last <= first:
        return [(first, fmt.short(first))]
    step = nice_step(max(1.0, (last - first) / max(1, width // 12)), 1)
    step = max(1.0, 5.0 if step == 2.5 else step)
    ticks = [i * step for i in range(math.ceil(first / step), math.floor(last / step) + 1)]
    labels = list(map(fmt.short, ticks))
    if len(set(labels)) < len(labels):
        labels = [f"{tick:,.0f}" for tick in ticks]
    return list(zip(ticks, labels, strict=True))


# Converts masks of dots to braille, block or ASCII characters
# ------------------------------------------------------------
# A cell has `across` x `down` dots. Masks are bool arrays of (rows x down, columns x across).

Mode = Literal["braille", "block", "ascii"]
Mask = NDArray[np.bool_]
Codes = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Dots:
    """Packing of dots into cells: the weight of each dot, and the code point of each sum."""

    across: int
    down: int
    weights: NDArray[np.uint8]
    glyphs: Codes

    def cells(self, mask: Mask) -> NDArray[np.intp]:
        """Pack a mask into one number per cell; 0 is empty."""
        rows, columns = mask.shape[0] // self.down, mask.shape[1] // self.across
        packed: NDArray[np.intp] = np.zeros((rows, columns), dtype=np.intp)
        for y in range(self.down):
            for x in range(self.across):
                packed += mask[y :: self.down, x :: self.across] * int(self.weights[y, x])
        return packed


def _codes(characters: str) -> Codes:
    return np.array([ord(character) for character in characters], dtype=np.uint32)


DOTS: dict[Mode, Dots] = {
    "braille": Dots(
        2,
        4,
        np.array([[1, 8], [2, 16], [4, 32], [64, 128]], dtype=np.uint8),
        _codes(" " + "".join(chr(0x2800 + code) for code in range(1, 256))),
    ),
    "block": Dots(2, 2, np.array([[1, 2], [4, 8]], dtype=np.uint8), _codes(" ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█")),
    "ascii": Dots(1, 1, np.array([[1]], dtype=np.uint8), _codes(" *")),
}

ASCII_MARKERS = "*o+x#%"
"""Characters of the series in ASCII mode, which has one dot per cell."""


def trace(top: NDArray[np.intp], bottom: NDArray[np.intp], drawn: Mask, rows: int) -> Mask:
    """Fill `top` to `bottom` (dot rows, downwards) of each `drawn` column, and join neighbours to a line."""
    top, bottom = top.copy(), bottom.copy()
    joined = drawn[1:] & drawn[:-1]
    before_top, before_bottom = top[:-1].copy(), bottom[:-1].copy()
    top[1:] = np.where(joined & (top[1:] > before_bottom + 1), before_bottom + 1, top[1:])
    bottom[1:] = np.where(joined & (bottom[1:] < before_top - 1), before_top - 1, bottom[1:])
    y = np.arange(rows)[:, None]
    return (y >= top) & (y <= bottom) & drawn


# The shape of a curve: its line, smoothed where values are noisy, and the band of the values behind it
# -----------------------------------------------------------------------------------------------------

SMOOTHING = 0.8
"""Weight of the moving average per dot column: high enough to show a trend, low enough to follow it."""

ENOUGH = 4
"""A band is drawn if at least one in so many columns has a value; over fewer, it would be made up."""


@dataclass(frozen=True, slots=True)
class Series:
    """A metric to draw.

    Attributes:
        label: Its name in the legend.
        history: Its values.
        dashed: Whether the line is dashed.
        noisy: Whether its line is the mean of a column, smoothed, with a band of all values behind it;
            otherwise the line covers all values.
        behind: If it is a quiet line behind the others, the word for all such lines in the legend.
        role: What it is of (`ROLES`), which gives its colour; "": its place gives it.
        points: Whether it is a point for each value, without a line.
        titled: Whether the title names it, so that the legend doesn't.
    """

    label: str
    history: History
    dashed: bool = False
    noisy: bool = False
    behind: str = ""
    role: str = ""
    points: bool = False
    titled: bool = False


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The steps that a chart shows: `span` of them up to `end`, or up to the latest step if it is None."""

    span: float
    end: float | None = None


@dataclass(frozen=True, slots=True)
class CurveShape:
    """The lowest and highest value of the line in each column, and of the band; NaN: nothing is drawn."""

    line: tuple[Floats, Floats]
    band: tuple[Floats, Floats] | None = None

    @property
    def values(self) -> tuple[Floats, ...]:
        """All values that are drawn."""
        return (*self.line, *(self.band or ()))

    def ends(self, seen: CurveColumns) -> tuple[Floats, Floats]:
        """Return the lowest and the highest point in each column that has values; NaN in others."""
        low, high = self.band or self.line
        known = np.isfinite(seen.low)
        return (
            np.where(known, low, np.nan).clip(-_LARGEST, _LARGEST),
            np.where(known, high, np.nan).clip(-_LARGEST, _LARGEST),
        )


def shape_of(series: Series, seen: CurveColumns, smooth: bool) -> CurveShape:
    """Return the curve of a series in these columns."""
    low, high = bridged(seen.low, seen.broken), bridged(seen.high, seen.broken)
    if not series.noisy:
        return CurveShape((low, high))
    mean = bridged(seen.mean, seen.broken)
    if np.isfinite(seen.low).sum() * ENOUGH < seen.low.size:
        return CurveShape((mean, mean))
    line = smoothed(mean) if smooth else mean
    return CurveShape((line, line), None if series.behind else (low, high))


def bridged(values: Floats, broken: Mask) -> Floats:
    """Interpolate over columns without values; non-finite values of the run stay gaps."""
    known = np.isfinite(values)
    if known.sum() < 2:
        return values
    at = np.flatnonzero(known)
    columns = np.arange(values.size)
    filled = np.interp(columns, at, values[at], left=np.nan, right=np.nan)
    stretch = np.searchsorted(at, columns, side="right")
    torn = np.zeros(at.size + 1, dtype=np.bool_)
    torn[stretch[broken & ~known]] = True
    joined: Floats = np.where(torn[stretch] & ~known, np.nan, filled)
    return joined


def smoothed(values: Floats) -> Floats:
    """Return the moving average over the columns; gaps stay, and the average continues after them.

    It is the mean of two exponential averages, forwards and backwards, so that it doesn't lag behind.
    """
    smooth = np.full(values.size, np.nan)
    known = np.flatnonzero(np.isfinite(values))
    smooth[known] = (_averaged(values[known]) + _averaged(values[known][::-1])[::-1]) / 2
    return smooth


def _averaged(values: Floats) -> Floats:
    """Return the exponential average of each value and those before it."""
    means = accumulate(values.tolist(), lambda mean, value: SMOOTHING * mean + (1 - SMOOTHING) * value)
    return np.fromiter(means, np.float64, values.size)


def last_step(series: Sequence[Series]) -> float:
    """Return the last step for which any series has a value."""
    return max((s.history.end_x for s in series if s.history.version), default=0.0)


def first_step(series: Sequence[Series]) -> float:
    """Return the first step, 0 unless early steps are unknown (late resume)."""
    first = min((s.history.first_x for s in series if s.history.version), default=0.0)
    return 0.0 if first < last_step(series) / 10 else first


# Draws a chart of histories as a grid of characters, with numpy only, independent of Textual
# -------------------------------------------------------------------------------------------
# Rows from the top: the legend or the values at the cursor, the plot, the step axis. Each cell has a
# character and a part (`PARTS`), whose colour is set by the theme.

SERIES_COLOURS = 8
ROLES = (TRAIN, VALIDATION, DEVICE)
POINTS = "●○◆◇"
"""Points of the first metric of a chart, and of the next."""
PARTS = (
    *ROLES,
    *(f"series-{number}" for number in range(1, SERIES_COLOURS + 1)),
    "raw",
    "axis",
    "mark",
    "warn",
    "bad",
    "best",
    "cursor",
    "text",
)
GUTTER = 7
"""Width of the value labels in cells, fixed so that the plot doesn't move when a label grows."""

PARENT, ABANDONED = "parent", "abandoned"
"""Words for series behind the others, which must come after them: of the parent of a fork; of a branch that
the run has left. The steps of other runs, which have their names, are shown as far as the run's own."""

FITTED = 0.8
"""Share of the steps in view, the last ones, whose values are on a fitted axis."""

_BRAILLE = 0x2800
_SIGN_EVERY = 8
"""Cells from a sign of a series to its next."""
_LARGEST = 1e100
"""Limit of an axis, beyond which differences and powers of ten overflow."""

Run = tuple[str, str]
Planned = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Plot:
    """All inputs of a drawing except its size.

    `best` is (word, step, value), `cursor` a step of the run, `planned` the (step, value) that lie ahead,
    `window` the steps that are shown; None: all of them. `from_zero` begins the value axis at 0. `fitted`: a
    linear axis that begins elsewhere covers the values of the last steps in view (`FITTED`), and the best.
    `signed`: each series but the first has a sign on its line, as there are no colours.
    """

    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    skips: History | None = None
    best: tuple[str, int, float] | None = None
    percent: bool = False
    from_zero: bool = False
    planned: Planned = ()
    log_y: bool = False
    fitted: bool = False
    smooth: bool = True
    mode: Mode = "braille"
    cursor: float | None = None
    window: StepWindow | None = None
    signed: bool = False

    @property
    def own(self) -> list[Series]:
        """The series that are not behind others."""
        return [series for series in self.series if not series.behind]

    @property
    def steps(self) -> tuple[float, float]:
        """The range of the step axis, to the end of the planned values if there are any."""
        first, last = first_step(self.own), last_step(self.own)
        if self.window is not None:
            end = last if self.window.end is None else self.window.end
            return end - self.window.span, end
        last = last_step([series for series in self.series if series.behind in {"", ABANDONED}])
        end = self.planned[-1][0] if self.planned else 0.0
        return first, max(end_of_steps(last), end, first + 1)


class Drawing:
    """One frame of a plot at a size; `rows()` returns runs of text with their parts."""

    def __init__(self, plot: Plot, width: int, height: int) -> None:
        self.plot = plot
        self._size = width, height
        self._codes = np.full((height, width), ord(" "), dtype=np.uint32)
        self._parts = np.full((height, width), PARTS.index("text"), dtype=np.uint8)
        self._dots = DOTS[plot.mode]
        self._width = width - GUTTER
        self._height = height - 2
        if self._height < 2 or self._width < 10:
            return
        self._x0, self._x1 = plot.steps
        dots = self._width * self._dots.across
        self._seen = [s.history.columns(self._x0, self._x1, dots) for s in plot.series]
        self._curves = [
            shape_of(s, seen, plot.smooth) for s, seen in zip(plot.series, self._seen, strict=True)
        ]
        ends = [curve.ends(seen) for curve, seen in zip(self._curves, self._seen, strict=True)]
        self._bottoms, self._tops = ([each[end] for each in ends] for end in (0, 1))
        self._planned = self._plan(dots)
        axis = self._axis()
        if axis is None:
            self._write(height // 2, max(0, (width - 11) // 2), "no data yet", "axis")
            return
        self._y = axis
        self._draw()

    def rows(self) -> list[list[Run]]:
        """Return each row as runs of (text, part)."""
        width, height = self._size
        text = self._codes.astype("<u4").tobytes().decode("utf-32-le")
        begins = np.ones((height, width), dtype=np.bool_)
        begins[:, 1:] = self._parts[:, 1:] != self._parts[:, :-1]
        starts = np.flatnonzero(begins)
        rows: list[list[Run]] = [[] for _ in range(height)]
        parts = self._parts.ravel()[starts].tolist()
        for (start, end), part in zip(pairwise([*starts.tolist(), len(text)]), parts, strict=True):
            rows[start // width].append((text[start:end], PARTS[part]))
        return rows

    def _axis(self) -> Axis | None:
        """Choose the value axis for the visible values but outliers; None if there are none."""
        first = self._first_fitted()
        curves = [part[first:] for curve in self._curves for part in curve.values]
        values = np.concatenate([self._planned, *curves, self._visible_best()])
        if self.plot.log_y:
            values = values[values > 0].clip(min=1 / _LARGEST)
        values = values[np.isfinite(values)].clip(-_LARGEST, _LARGEST)
        if not values.size:
            nothing = not any(columns.broken.any() for columns in self._seen)
            return None if nothing else linear_axis(0, 1, self._height)
        low, high = float(values.min()), float(values.max())
        if self.plot.log_y:
            return log_axis(low, high, self.plot.percent)
        smooth = [curve.line[1][first:] for curve in self._curves if curve.band is not None]
        tops = [*(each[first:] for each in self._tops), self._planned, self._visible_best()]
        bottoms = [-each[first:] for each in self._bottoms]
        if self.plot.from_zero:
            low = min(low, 0.0)
        elif self.plot.fitted:
            low = max(low, -end_of_values(-high, [*bottoms, -self._visible_best()], [-e for e in smooth]))
        high = min(high, end_of_values(low, tops, smooth))
        return linear_axis(low, high, self._height, self.plot.percent)

    def _first_fitted(self) -> int:
        """Return the first column of dots whose values are on the axis: if it is fitted, not the first."""
        plot = self.plot
        if not plot.fitted or plot.log_y or plot.from_zero:
            return 0
        shown = min(last_step(plot.own), self._x1) - self._x0
        dots = self._width * self._dots.across
        first = int(max(shown, 0.0) * (1 - FITTED) / (self._x1 - self._x0) * dots)
        are_enough = sum(np.isfinite(each[first:]).sum() for each in self._tops) >= FEW
        return first if are_enough else 0

    def _visible_best(self) -> Floats:
        """Return the value of the best if its step is shown."""
        best = self.plot.best
        is_visible = best is not None and self._x0 <= best[1] <= self._x1
        return np.array([best[2]] if best is not None and is_visible else [])

    def _plan(self, dots: int) -> Floats:
        """Return the planned value of each dot column after the last step, dashed; NaN elsewhere."""
        steps = self._x0 + (np.arange(dots) + 0.5) / dots * (self._x1 - self._x0)
        if not self.plot.planned:
            return np.full(dots, np.nan)
        at, values = np.array(self.plot.planned).T
        ahead = (steps > last_step(self.plot.own)) & (np.arange(dots) % 4 < 2)
        planned: Floats = np.where(ahead, np.interp(steps, at, values, np.nan, np.nan), np.nan)
        return planned

    def _draw(self) -> None:
        self._curve_top = np.full(self._width, self._height, dtype=np.intp)
        self._draw_line(self._planned, self._planned, "axis", 0)
        series = self.plot.series
        order = sorted(
            range(len(series)), key=lambda n: (series[n].behind == "", series[n].points, series[n].dashed, -n)
        )
        for number in order:
            # without colours, a line is not seen in front of its band
            if (band := self._curves[number].band) is not None and not self.plot.signed:
                self._draw_line(*self._placed(*band), "raw", number)
        for number in order:
            self._draw_series(number)
        self._draw_cut()
        self._draw_axes()
        if self.plot.cursor is not None:
            self._draw_cursor(min(self.plot.cursor, last_step(self.plot.own)))
        else:
            self._draw_legend()
        self._draw_best()
        self._draw_marks()
        self._draw_edges()

    def _placed(self, low: Floats, high: Floats) -> tuple[Floats, Floats]:
        """Return the ends of a line without the values that a log axis has no place for."""
        if self.plot.log_y:
            low = np.where((low <= 0) & (high > 0), 10**self._y.low, low)
            high, low = np.where(high > 0, high, np.nan), np.where(low > 0, low, np.nan)
        return low, high

    def _draw_series(self, number: int) -> None:
        low, high = self._placed(*self._curves[number].line)
        if self.plot.series[number].points:
            self._draw_points(number)
            return
        if self.plot.series[number].dashed:
            dash = np.arange(low.size) % (2 * self._dots.across + 2) < self._dots.across + 1
            own = np.isfinite(self._seen[number].low)
            low, high = np.where(dash | own, low, np.nan), np.where(dash | own, high, np.nan)
        self._draw_line(low, high, self._style_of(number), number)
        if sign := self._sign(number):
            values = high[:: self._dots.across]
            there = self._on_axis(values) & (np.arange(values.size) % _SIGN_EVERY == 0)
            for cell in np.flatnonzero(there).tolist():
                row = 1 + self._y.row(float(values[cell]), self._height)
                self._write(row, GUTTER + cell, sign, self._style_of(number))

    def _draw_points(self, number: int) -> None:
        """Draw a point for each value, on a cell of its own: it shares no dots with a line."""
        _, values = self._placed(self._seen[number].mean, self._seen[number].mean)
        drawn = self._on_axis(values)
        for dot in np.flatnonzero(drawn).tolist():
            cell, row = dot // self._dots.across, self._y.row(float(values[dot]), self._height)
            self._write(1 + row, GUTTER + cell, self._point(number), self._style_of(number))
            self._curve_top[cell] = min(self._curve_top[cell], row)

    def _on_axis(self, values: Floats) -> Mask:
        return np.isfinite(values) & ~self._y.above(values) & ~self._y.below(values)

    def _point(self, number: int) -> str:
        if self.plot.mode == "ascii":
            return self._marker("", number)
        place = [n for n, each in enumerate(self.plot.series) if each.points].index(number)
        return POINTS[place % len(POINTS)]

    def _draw_cut(self) -> None:
        """Mark where curves leave the axis, once a stretch, and say the furthest value at each edge."""
        numbers = range(len(self.plot.own))
        for row, way, sign in ((1, 1, "▲"), (self._height, -1, "▾")):
            places = [place for number in numbers for place in self._beyond(number, way)]
            for _, cell in places:
                self._write(row, GUTTER + cell, sign, "axis")
            said = self._y.label(way * max(places)[0]) if places else ""
            cells = [GUTTER + cell for _, cell in sorted(places, reverse=True)]
            beside = [(row, column + 1) for column in cells]
            inside = [(row + way, column) for column in cells]
            for near, column in (*beside, *inside):
                if self._free(near, column, len(said) + 1, over="raw"):
                    self._write(near, column, f"{said} ", "axis")
                    break

    def _beyond(self, number: int, way: int) -> list[tuple[float, int]]:
        """Return the furthest value of each stretch of a curve above the axis (`way` 1) or below it (-1).

        With its cell; a value below counts as negative.
        """
        curve, is_line = self._curves[number], not self.plot.series[number].points
        ends = (curve.band or curve.line) if is_line else (self._bottoms[number], self._tops[number])
        values = way * ends[(way + 1) // 2]
        beyond = self._y.above(values) if way > 0 else self._y.below(-values)
        if self._y.log or not beyond.any():  # a log axis marks what has no place on it
            return []
        outside = np.where(beyond, values, -np.inf).reshape(-1, self._dots.across).max(axis=1)
        cells = np.flatnonzero(np.isfinite(outside))
        stretches = np.split(cells, np.flatnonzero(np.diff(cells) > 1) + 1)
        furthest = [int(each[outside[each].argmax()]) for each in stretches]
        return [(float(outside[cell]), cell) for cell in furthest]

    def _sign(self, number: int) -> str:
        """Return the sign on the line of a series; "" without one."""
        is_plain = not number or not self.plot.signed or self.plot.series[number].behind
        return "" if is_plain else ASCII_MARKERS[number % len(ASCII_MARKERS)]

    def _marker(self, part: str, number: int) -> str:
        """Return the character of a series in ASCII, or of planned values, which are in no series."""
        if part == "axis":
            return "-" if len(self.plot.own) <= number < len(self.plot.series) else "."
        return ASCII_MARKERS[number % len(ASCII_MARKERS)]

    def _style_of(self, number: int) -> str:
        """Return the part of a series, which gives its colour."""
        series = self.plot.series[number]
        return "axis" if series.behind else series.role or f"series-{number % SERIES_COLOURS + 1}"

    def _draw_line(self, low: Floats, high: Floats, part: str, number: int) -> None:
        rows = self._height * self._dots.down
        drawn = np.isfinite(low) & np.isfinite(high)
        if not drawn.any():
            return
        mask = trace(self._y.rows(high, rows), self._y.rows(low, rows), drawn, rows)
        mask[:, self._y.above(low) | self._y.below(high)] = False
        if part == "raw":
            mask[::2, 1::2] = mask[1::2, ::2] = False
        cells = self._dots.cells(mask)
        hit = cells > 0
        area = slice(1, 1 + self._height), slice(GUTTER, GUTTER + self._width)
        codes = self._dots.glyphs[cells]
        if self.plot.mode == "ascii":
            codes = np.where(hit, ord("." if part == "raw" else self._marker(part, number)), codes)
        elif self.plot.mode == "braille":
            joins = hit & (self._codes[area] >= _BRAILLE) & (self._parts[area] != PARTS.index("raw"))
            codes = np.where(joins, codes | self._codes[area], codes)
        self._codes[area] = np.where(hit, codes, self._codes[area])
        self._parts[area] = np.where(hit, PARTS.index(part), self._parts[area])
        top = np.where(hit.any(axis=0), hit.argmax(axis=0), self._height)
        self._curve_top = np.minimum(self._curve_top, top)

    def _draw_axes(self) -> None:
        free = self._height
        for tick in self._y.ticks:
            value = np.log10(tick) if self._y.log else tick
            share = (self._y.high - value) / (self._y.high - self._y.low)
            row = round(share * (self._height - 1))
            if row < free:
                free = row
                label = self._y.label(tick)
                self._write(1 + row, max(0, GUTTER - 1 - len(label)), label, "axis")
        end = 0
        for tick, label in step_ticks(self._x0, self._x1, self._width):
            column = GUTTER + self._cell(tick) - (len(label) // 2 if tick else 0)
            column = min(column, self._size[0] - len(label))
            if end <= column:
                self._write(self._size[1] - 1, column, label, "axis")
                end = column + len(label) + 2

    def _draw_legend(self) -> None:
        """Write the labels of the series on the right, abbreviated if they don't fit."""
        ascii_only = self.plot.mode == "ascii"
        own = {number: series for number, series in enumerate(self.plot.own) if not series.titled}
        behind = dict.fromkeys(series.behind for series in self.plot.series if series.behind)
        first = {series.behind: number for number, series in reversed([*enumerate(self.plot.series)])}
        numbers = [*own, *(first[word] for word in behind)]
        labels = [_narrow(label) for label in (*(series.label for series in own.values()), *behind)]
        if sum(len(label) + 6 for label in labels) > self._width:
            labels = [label.replace(VALIDATION, "val") for label in labels]
        # the swatch takes two cells and a space; the last label has no gap
        gap = 3 if sum(len(label) + 6 for label in labels) <= self._width + 3 else 1
        column = self._size[0]
        for number, label in reversed([*zip(numbers, labels, strict=True)]):
            part = self._style_of(number)
            swatch = "╌╌" if self.plot.series[number].dashed else "──"
            swatch = swatch[0] + (self._sign(number) or swatch[0])
            if ascii_only:
                swatch = self._marker(part, number)
            elif self.plot.series[number].points:
                swatch = self._point(number)
            column -= len(swatch) + 1 + len(label)
            if column < GUTTER:
                return
            self._write(0, column, swatch, part)
            self._write(0, column + len(swatch) + 1, label, "text")
            column -= gap

    def _draw_cursor(self, step: float) -> None:
        if self._x0 <= step <= self._x1:
            column = GUTTER + self._cell(step)
            for row in range(1, 1 + self._height):
                if self._codes[row, column] == ord(" "):
                    self._write(row, column, "┊", "cursor")
        column = self._write(0, GUTTER, f"step {step:,.0f}", "text")
        for number, series in enumerate(self.plot.series):
            text = f"  {_narrow(series.label)} {self._said(series.history.at(step))}"
            if column + len(text) > self._size[0]:
                break  # a part of a figure would be another one
            column = self._write(0, column, text, self._style_of(number))

    def _said(self, value: float | None) -> str:
        return fmt.percent(value) if self.plot.percent else fmt.figure(value)

    def _draw_best(self) -> None:
        if self.plot.best is None:
            return
        word, step, value = self.plot.best
        has_no_row = self._y.log and value <= 0
        if has_no_row or not self._x0 <= step <= self._x1:
            return
        cell, row = self._cell(step), 1 + self._y.row(value, self._height)
        self._write(row, GUTTER + cell, POINTS[0], "best")
        text = f"{word} {self._said(value)}"
        for near in (row, row + 1, row - 1, row + 2, row - 2):
            for column in (GUTTER + cell - len(text) - 1, GUTTER + cell + 2):
                if self._free(near, column, len(text)):
                    self._write(near, column, text, "best")
                    return

    def _draw_marks(self) -> None:
        """Draw each mark above the curve, the latest first; only its sign if the label doesn't fit."""
        for mark in reversed(self.plot.marks):
            if not self._x0 <= mark.step <= self._x1:
                continue
            cell = self._cell(mark.step)
            part = "mark" if mark.tone == "plain" else "warn"
            text = _narrow(mark.label)
            above = min(self._height, self._curve_top[cell])
            for row in range(above, 0, -1):
                if self._claim_label(row, GUTTER + cell, text, part):
                    break
            else:
                free = (row for row in range(above, 0, -1) if self._free(row, GUTTER + cell, 1))
                self._write(next(free, max(1, above)), GUTTER + cell, "▼", part)

    def _claim_label(self, row: int, column: int, text: str, part: str) -> bool:
        length = len(text) + 2
        for start, words in ((column, f"▼ {text}"), (column - length + 1, f"{text} ▼")):
            before, after = start > GUTTER, start + length < self._size[0]  # room for a space
            if self._free(row, start - before, length + before + after):
                self._write(row, start, words, part)
                return True
        return False

    def _draw_edges(self) -> None:
        """Mark skipped steps, values not on a log axis, and NaN along the bottom."""
        bottom = self._height
        if self.plot.skips is not None:
            skipped = np.isfinite(self.plot.skips.columns(self._x0, self._x1, self._width).low)
            self._edge(bottom, skipped, "▴", "warn")
        across = self._dots.across
        seen = self._seen[: len(self.plot.own)]
        if self.plot.log_y:
            for columns in seen:
                self._edge(bottom, _cells(columns.low <= 0, across), "▁", "warn")
        for columns in seen:
            self._edge(bottom, _cells(columns.broken, across), "✗", "bad")

    def _edge(self, row: int, where: NDArray[np.bool_], character: str, part: str) -> None:
        for cell in np.flatnonzero(where).tolist():
            self._write(row, GUTTER + cell, character, part)

    def _cell(self, step: float) -> int:
        share = (step - self._x0) / (self._x1 - self._x0)
        return int(min(max(share, 0.0) * self._width, self._width - 1))

    def _free(self, row: int, column: int, length: int, over: str = "") -> bool:
        """Whether cells are blank, or of this part, that other words may cover."""
        has_columns = GUTTER <= column <= self._size[0] - length
        if not has_columns or not 1 <= row <= self._height:
            return False
        cells = row, slice(column, column + length)
        blank = self._codes[cells] == ord(" ")
        return bool((blank | (self._parts[cells] == PARTS.index(over)) if over else blank).all())

    def _write(self, row: int, column: int, text: str, part: str) -> int:
        """Write as much of `text` as fits; return the column after it."""
        text = text[: self._size[0] - column]
        end = column + len(text)
        self._codes[row, column:end] = [ord(character) for character in text]
        self._parts[row, column:end] = PARTS.index(part)
        return end


def _cells(columns: NDArray[np.bool_], across: int) -> NDArray[np.bool_]:
    return np.asarray(columns.reshape(-1, across).any(axis=1))


def _narrow(text: str) -> str:
    """Replace characters of a label that are not one cell wide by `?`."""
    return "".join(character if cell_len(character) == 1 else "?" for character in text)
