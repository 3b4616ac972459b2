"""The timeline of a run: a column for each slice of its time, with a cursor that goes back in time."""

from itertools import groupby

import numpy as np
from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from mptui.registry.names import LOSS_SCALED
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
FEWER_LANES = 3
"""Height with those of state, precision, and what happened."""

_LABEL = 11

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
_SKIPPED: Cell = ("x", "warn")
_NOTHING: Cell = (" ", "quiet")
_EARLIER: Cell = ("·", "quiet")
"""A best value that was surpassed later."""

_STATE_WORDS: dict[State, str] = {
    "preparing": "preparing",
    "compiling": "compiling",
    "training": "training",
    "waiting": "waiting for data, a quarter or more",
    "validating": "validating",
    "saving": "saving",
    "paused": "paused",
    "suspended": "nothing ran: asleep, or stopped",
}
_HAPPENED_WORDS: dict[Happening, str] = {
    "checkpoint": "checkpoint, but for routine ones",
    "restart": "resumed in another process",
    "best": "best validation; · surpassed since",
    "switch": "another profile or setting",
    "recovery": "went back to a checkpoint",
    "alert": "alert",
}


def signs(ascii_only: bool) -> list[tuple[str, str]]:
    """Return the signs of the timeline and what each means."""
    states = [(sign, _STATE_WORDS[state]) for state, (sign, _) in _state_cells(ascii_only).items()]
    happened = [(sign, _HAPPENED_WORDS[what]) for what, (sign, _) in _HAPPENED.items()]
    return [*states, *happened, (_SKIPPED[0], "skipped steps, in the lane of scale")]


def _state_cells(ascii_only: bool) -> dict[State, Cell]:
    if not ascii_only:
        return _STATE_CELLS
    return {state: (sign, _STATE_CELLS[state][1]) for state, sign in zip(STATES, _ASCII_STATES, strict=True)}


class Ribbon(Widget):
    """The timeline in as many lanes as its height allows: one, `FEWER_LANES` or `LANES`.

    One lane has the state, and over it what happened.
    """

    DEFAULT_CSS = "Ribbon { height: 1; }"

    class Pointed(Message):
        """The user wants to see this moment; None: now."""

        def __init__(self, moment: RunMoment | None) -> None:
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

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Go to the column before."""
        event.stop()
        self.post_message(self.Pointed(self.moved(-1)))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Go to the next column."""
        event.stop()
        self.post_message(self.Pointed(self.moved(1)))

    def _point(self, x: int) -> None:
        moment = self._timeline.moment_in(x - self._margin, self._columns)
        if moment is not None:
            self.post_message(self.Pointed(moment))

    @property
    def _margin(self) -> int:
        return _LABEL if self.size.height >= FEWER_LANES else 1

    @property
    def _columns(self) -> int:
        """Number of columns for the time."""
        return max(1, self.size.width - self._margin - 1)

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
        lanes = self._lanes(columns)
        if self._moment is not None and columns.skipped.size:
            at = self._timeline.column_of(self._moment, self._columns)
            for lane in lanes.values():
                lane[at] = (lane[at][0], "cursor")
        return [[(f" {label}".ljust(self._margin), "quiet"), *lane] for label, lane in lanes.items()]

    def _lanes(self, columns: TimeColumns) -> dict[str, list[Cell]]:
        """Return the lanes that there is room for, by their labels."""
        signs = _state_cells(self._ascii_only)
        states = [signs[state] if state else (" ", "quiet") for state in columns.main_states()]
        happened = _happened(columns)
        if self.size.height < FEWER_LANES:
            seen = zip(states, happened, strict=True)
            return {"": [state if sign in (_NOTHING, _EARLIER) else sign for state, sign in seen]}
        lanes = {"state": states, "precision": _numbers(columns)}
        if self.size.height >= LANES:
            lanes |= {"scale": _scales(columns), "busy": _busy(columns)}
        return lanes | {"events": happened}


def _happened(columns: TimeColumns) -> list[Cell]:
    """Return the sign of the most important happening in each column; of the best, the newest stands out."""
    found = columns.most_important()
    cells = [_HAPPENED[what] if what else _NOTHING for what in found]
    best = [column for column, what in enumerate(found) if what == "best"]
    for column in best[:-1]:
        cells[column] = _EARLIER
    return cells


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
    """Return the loss scale as bars of its powers of two and x for skipped steps, or why there is none."""
    newest = next((name for name in reversed(columns.precision) if name), "")
    has_none = newest and newest not in LOSS_SCALED and not np.isfinite(columns.scale).any()
    if has_none and not columns.skipped.any():
        words = f"not needed in {newest}".ljust(len(columns.precision))
        return [(sign, "quiet") for sign in words]
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
