"""The timeline of a run: a column for each slice of its time, with a cursor that goes back in time."""

from itertools import groupby
from typing import Literal

import numpy as np
from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from mptui.runs.view.history import (
    STATES,
    Floats,
    Happening,
    RunMoment,
    State,
    TimeColumns,
    Timeline,
)
from mptui.tui.themes import style_on

Cell = tuple[str, str]
"""A character and its part, which sets the colour."""

LANES = 5
"""Height with all lanes: state, precision, loss scale, device busy, and what happened."""

_LABEL, _LEGEND = 11, 25
_LEGEND_FROM = 120
"""Width from which the signs are explained at the right."""

_STATE_CELLS: dict[State, Cell] = {
    "preparing": ("░", "quiet"),
    "compiling": ("▒", "accent"),
    "training": ("━", "good"),
    "waiting": ("╌", "warn"),
    "validating": ("▓", "other"),
    "saving": ("▄", "quiet"),
    "paused": ("║", "warn"),
    "suspended": ("┊", "warn"),
}
"""No two have the same sign, as a terminal may show no colours."""
_ASCII_STATES = "-#=wvspz"
"""Signs of `STATES` in ASCII mode, which has one character for several kinds of shade."""

_HAPPENED: dict[Happening, Cell] = {
    "checkpoint": ("c", "quiet"),
    "restart": ("┃", "quiet"),
    "best": ("●", "good"),
    "switch": ("▼", "accent"),
    "recovery": ("▲", "warn"),
    "alert": ("!", "bad"),
}
_STYLES = {
    "quiet": "$quiet",
    "accent": "$text-accent",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "bold $text-error",
    "other": "$series-4",
    "text": "",
    "cursor": "bold $background on $accent",
}
_BARS = "▁▂▃▄▅▆▇█"
_LABELS = (" state", " precision", " scale", " busy", "")
_SKIPPED: Cell = ("x", "warn")
_LEGENDS: tuple[tuple[tuple[State | Happening | Literal["skipped"], str], ...], ...] = (
    (("training", "train"), ("validating", "validate")),
    (("compiling", "compile"), ("waiting", "wait"), ("suspended", "lost")),
    (("skipped", "skip"), ("paused", "pause"), ("alert", "alert")),
    (("switch", "switch"), ("recovery", "recovery")),
    (("best", "best"), ("checkpoint", "checkpoint")),
)


class Ribbon(Widget):
    """One lane with the state and what happened, or all lanes if it is `LANES` high."""

    DEFAULT_CSS = "Ribbon { height: 1; }"

    class Pointed(Message):
        """The user wants to see this moment."""

        def __init__(self, moment: RunMoment) -> None:
            super().__init__()
            self.moment = moment

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._ascii_only = ascii_only
        self._timeline = Timeline()
        self._moment: RunMoment | None = None
        self._fingerprint: object = None
        self._rows: list[list[Cell]] = []

    def show(self, timeline: Timeline, moment: RunMoment | None) -> None:
        """Show a timeline with the cursor at `moment`; None: without a cursor."""
        self._timeline = timeline
        self._moment = moment
        fingerprint = (id(timeline), timeline.version, moment, self.size)
        if fingerprint == self._fingerprint or not self.size.area:
            return
        self._fingerprint = fingerprint
        rows = self._laid_out()
        if rows != self._rows:
            self._rows = rows
            self.refresh()

    def moved(self, columns: int) -> RunMoment | None:
        """Return the moment `columns` after the cursor, or before it if negative; None after the last."""
        last = min(self._timeline.used, self._columns) - 1
        here = last if self._moment is None else self._timeline.column_of(self._moment, self._columns)
        if here + columns > last:
            return None
        return self._timeline.moment_in(here + columns, self._columns)

    def page(self) -> int:
        """Return the columns that a page has: a tenth of all."""
        return max(1, min(self._timeline.used, self._columns) // 10)

    def on_resize(self) -> None:
        """Lay out in the new size."""
        self.show(self._timeline, self._moment)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Go to the moment under the mouse."""
        self._point(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the mouse while its button is down."""
        if event.button:
            self._point(event.x)

    def _point(self, x: int) -> None:
        moment = self._timeline.moment_in(x - self._margin, self._columns)
        if moment is not None:
            self.post_message(self.Pointed(moment))

    @property
    def _margin(self) -> int:
        return _LABEL if self.size.height >= LANES else 1

    @property
    def _columns(self) -> int:
        """Number of columns for the time."""
        right = _LEGEND if self.size.height >= LANES and self.size.width >= _LEGEND_FROM else 0
        return max(1, self.size.width - self._margin - right - 1)

    def render_line(self, y: int) -> Strip:
        """Return line `y`."""
        if y >= len(self._rows):
            return Strip.blank(self.size.width, self.rich_style)
        runs = groupby(self._rows[y], key=lambda cell: cell[1])
        segments = [
            Segment("".join(sign for sign, _ in cells), style_on(self, _STYLES[part])) for part, cells in runs
        ]
        return Strip(segments).adjust_cell_length(self.size.width, self.rich_style)

    def _laid_out(self) -> list[list[Cell]]:
        """Return all rows, with the cursor."""
        columns = self._timeline.columns(self._columns)
        states, happened = self._states(columns), _happened(columns)
        if self.size.height < LANES:
            both = zip(states, happened, strict=True)
            lanes = [[state if sign[0] == " " else sign for state, sign in both]]
        else:
            lanes = [states, _numbers(columns), _scales(columns), _busy(columns), happened]
        if self._moment is not None and states:
            at = self._timeline.column_of(self._moment, self._columns)
            for lane in lanes:
                lane[at] = (lane[at][0], "cursor")
        if len(lanes) == 1:
            return [[(" ", "quiet"), *lanes[0]]]
        room = self._columns
        return [
            [(label.ljust(_LABEL), "quiet"), *lane, (" " * (room - len(lane) + 1), "quiet"), *legend]
            for label, lane, legend in zip(_LABELS, lanes, self._legends(), strict=True)
        ]

    def _legends(self) -> list[list[Cell]]:
        """Return what explains the signs, beside each lane."""
        known = [*self._state_signs().items(), *_HAPPENED.items(), ("skipped", _SKIPPED)]
        signs = dict[str, Cell](known)
        return [
            [cell for what, word in lane for cell in (signs[what], (f" {word}  ", "quiet"))]
            for lane in _LEGENDS
        ]

    def _state_signs(self) -> dict[State, Cell]:
        if not self._ascii_only:
            return _STATE_CELLS
        return {
            state: (sign, _STATE_CELLS[state][1]) for state, sign in zip(STATES, _ASCII_STATES, strict=True)
        }

    def _states(self, columns: TimeColumns) -> list[Cell]:
        """Return the sign of the state that took most of each column."""
        signs = self._state_signs()
        return [signs[state] if state else (" ", "quiet") for state in columns.main_states()]


def _happened(columns: TimeColumns) -> list[Cell]:
    """Return the sign of the most important happening in each column."""
    return [_HAPPENED[what] if what else (" ", "quiet") for what in columns.most_important()]


def _numbers(columns: TimeColumns) -> list[Cell]:
    """Return the name of each precision where it begins, with dots while it stays."""
    cells: list[Cell] = []
    before, rest = "", ""
    for name in columns.precision:
        if name != before:
            before, rest = name, name
        cells.append((rest[0], "text") if rest else ("·" if name else " ", "quiet"))
        rest = rest[1:]
    return cells


def _scales(columns: TimeColumns) -> list[Cell]:
    """Return the loss scale as bars of its powers of two, and an x for skipped steps."""
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.log2(columns.scale)
    known = powers[np.isfinite(powers)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    span = max(high - low, len(_BARS) - 1.0)
    cells = _bars((powers - (low + high - span) / 2) / span, "accent")
    for column in np.flatnonzero(columns.skipped).tolist():
        cells[column] = _SKIPPED
    return cells


def _busy(columns: TimeColumns) -> list[Cell]:
    """Return the utilisation as bars, that of the column before where there was no sample."""
    sampled = np.maximum.accumulate(np.where(np.isfinite(columns.busy), np.arange(columns.busy.size), 0))
    return _bars(columns.busy[sampled], "quiet")


def _bars(shares: Floats, part: str) -> list[Cell]:
    """Return a bar for each share of 1; nothing for NaN."""
    heights = np.clip(np.nan_to_num(shares), 0, 1) * (len(_BARS) - 1)
    known = np.isfinite(shares).tolist()
    return [
        (_BARS[height], part) if there else (" ", "quiet")
        for height, there in zip(np.rint(heights).astype(int).tolist(), known, strict=True)
    ]
