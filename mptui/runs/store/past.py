"""The view of a run at an earlier moment.

Curves and timeline are those of the view now. What panels and log show comes from the events before the
moment: all rare ones of the last megabytes of the journal, and the latest of those that come all the time.
"""

from copy import deepcopy
from pathlib import Path

from mptui.runs.replay.journal_search import first_lines, lines_until
from mptui.runs.store import journal
from mptui.runs.view.events.event_registry import EVENTS
from mptui.runs.view.history import History, RunMoment
from mptui.runs.view.labels import GRADIENT_NORM
from mptui.runs.view.run_view import RunView

SEARCHED = 4 << 20
"""Bytes of the journal before the moment: a thousand seconds or more."""

_FIRST = 1 << 18
_RARE = 200
"""Largest number of rare events; of each kind that comes all the time, the latest is read."""

_OFTEN = tuple(f'{{"event":"{kind}",'.encode() for kind, spec in EVENTS.items() if not spec.shown_at_once)
_START = b'{"event":"run_started",'


def folded_until(run: Path | None, moment: RunMoment) -> RunView:
    """Return what the journal says of a moment.

    Args:
        run: The run directory; None if there is none yet.
        moment: The moment.
    """
    past = RunView()
    try:
        lines = [] if run is None else _lines(run / journal.NAME, moment.time)
    except OSError:
        lines = []
    for line in lines:
        if (event := journal.parsed(line)) is not None:
            past.handle(event)
    return past


def completed(past: RunView, now: RunView, moment: RunMoment) -> RunView:
    """Add to the view of a moment what the current view knows of it."""
    past.started = past.started or now.started
    past.precision, past.profile = now.timeline.settings_at(moment)
    if not past.log:
        past.log.extend(line for line in now.log if line.time <= moment.time)
    past.timeline, past.by_epoch, past.best = now.timeline, now.by_epoch, now.best
    past.histories = {**now.histories, **_trends(now, moment.step)}
    past.step, past.time = moment.step, moment.time
    past.epochs = past.epochs or now.epochs
    return past


def _lines(path: Path, time: float) -> list[bytes]:
    """Return the lines that make the view at `time`, the oldest first."""
    complete, lines = lines_until(path, time, SEARCHED)
    rare = [number for number, line in enumerate(lines) if not line.startswith(_OFTEN)][-_RARE:]
    often = [place for prefix in _OFTEN if (place := _last(lines, prefix)) is not None]
    kept = [lines[number] for number in sorted({*rare, *often})]
    if complete or any(line.startswith(_START) for line in kept):
        return kept
    beginning = first_lines(path, _FIRST)
    return [line for line in beginning if line.startswith(_START)][:1] + kept


def _last(lines: list[bytes], prefix: bytes) -> int | None:
    """Return the place of the last line with this beginning; None without one."""
    places = range(len(lines) - 1, -1, -1)
    return next((number for number in places if lines[number].startswith(prefix)), None)


def _trends(now: RunView, step: int) -> dict[str, dict[str, History]]:
    """Return the histories that a panel shows the end of, up to `step`."""
    group = {}
    for name, history in now.histories.get(GRADIENT_NORM, {}).items():
        group[name] = deepcopy(history)
        group[name].forget_after(step)
    return {GRADIENT_NORM: group} if group else {}
