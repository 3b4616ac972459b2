"""The timeline of a run as HTML: state, precision, loss scale, device busy and what happened, over its time.

It has the columns of the live screen's timeline: their number is fixed, whatever the length of the run.
"""

from collections.abc import Iterable
from html import escape
from itertools import groupby

import numpy as np

from mptui import format as fmt
from mptui.runs.view.history import HAPPENINGS, STATES, Floats, Happening, TimeColumns
from mptui.runs.view.run_view import RunView

COLUMNS = 360
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
    columns = view.timeline.columns(COLUMNS)
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
            column = view.timeline.column_of(moment, COLUMNS)
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
    moment = view.timeline.moment_in(round(share * (count - 1)), COLUMNS)
    return fmt.UNKNOWN if moment is None else f"{moment.step:,}"


def _ticks(words: Iterable[str]) -> str:
    return f'<div class="x">{"".join(f"<span>{escape(word)}</span>" for word in words)}</div>'
