"""The first lines of a run's screen: names, phase, progress, time left, and alerts."""

import math
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from textual.app import App
from textual.content import Content
from textual.widgets import Static

from mptui import text as fmt
from mptui.runs.listing.difference import ForkWords
from mptui.runs.store.heartbeat import SILENT_S, Heartbeat, age_of
from mptui.runs.view.history import RunMoment
from mptui.runs.view.run_view import RunView
from mptui.runs.view.state import OpenAlert
from mptui.runs.view.words import BUSY_PHASES, PHASE_WORDS, Tone, profile_words, ranks_words
from mptui.tui.keys import KEYS, display, keys_of
from mptui.tui.terminal.process import call_person
from mptui.tui.widgets.basics import bar, precision_words

# The first line: names, phase, progress and time left
# ----------------------------------------------------

_ENDED = {"completed": ("✓", "$text-success"), "stopped": ("■", "$text-warning")}

_COUNTED, _BRIEF = "state", "state without counts"
_FIXED = 5
"""From this place of `_FITS` on, the state has no counts."""

_WIDE, _CLOSE = 3, 1
_FITS: tuple[tuple[int, int, frozenset[str]], ...] = (
    (0, _WIDE, frozenset()),
    (0, _WIDE, frozenset({"lasted"})),
    (1, _WIDE, frozenset({"lasted"})),
    (1, _WIDE, frozenset({"lasted", "bar"})),
    (2, _WIDE, frozenset({"lasted", "bar"})),
    (2, _CLOSE, frozenset({"lasted", "bar"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end"})),
    (3, _CLOSE, frozenset({"lasted", "bar", "end"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end", "epoch"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end", "epoch", "left"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end", "epoch", "left", "step"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end", "epoch", "left", "step", "ranks"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end", "epoch", "left", "step", "ranks", "since"})),
    (2, _WIDE, frozenset({"lasted", "bar", "end", "epoch", "left", "step", "ranks", "since", "precision"})),
)
"""From the longest line to the shortest: number of omitted names, gap, and omitted parts."""

_LEFT, _END = 16, 11
"""Cells of the time left and of its end, which have no words before the first step."""

_FORK, _SHORT = "fork", "fork, short"
_ALL_WORDS = 7
_FORK_FITS = (
    *((short, gap, left_out | {_SHORT}) for short, gap, left_out in _FITS[:_ALL_WORDS]),
    *((short, _CLOSE, left_out | {_FORK}) for short, _, left_out in _FITS[_ALL_WORDS - 1 :] if short < 3),
    (2, _CLOSE, _FITS[-1][2] | {_FORK, _SHORT}),
)
"""The same for a fork. What differs from its parent is abbreviated before the epoch goes, and goes last."""


class Header(Static):
    """One line with values at fixed positions; the least important ones are omitted if it is too narrow.

    Args:
        has_precision: Whether it has the precision where the screen has no room for its panel.
        ascii_only: Draw in ASCII.
        id: The id of the widget.
    """

    DEFAULT_CSS = "Header { height: 1; padding: 0 1; }"

    def __init__(
        self, *, has_precision: bool = False, ascii_only: bool = False, id: str | None = None
    ) -> None:
        super().__init__(markup=False, id=id)
        self._has_precision, self._ascii_only = has_precision, ascii_only
        self._shown: Content | None = None
        self._given: tuple[RunView, float, RunMoment | None, ForkWords | None] | None = None
        self._of: RunView | None = None
        self._heartbeat = Heartbeat()

    def show(
        self, view: RunView, now: float, moment: RunMoment | None = None, fork: ForkWords | None = None
    ) -> None:
        """Show `view`, the earlier moment that the screen shows, and what a fork says of its parent.

        `now` gives the elapsed seconds of phases without other figures.
        """
        self._given = view, now, moment, fork
        silent_s = 0.0 if moment is not None else self._silence(view)
        width = self.content_size.width
        has_no_panel = self._has_precision and view.precision and self.screen.has_class("-narrow")
        precision = precision_words(view.precision, self._ascii_only) if has_no_panel else None
        content = headline(view, now, width, moment, fork=fork, silent_s=silent_s, precision=precision)
        if self._shown is None or not content.is_same(self._shown):
            self._shown = content
            self.update(content, layout=False)

    def _silence(self, view: RunView) -> float:
        """Return the seconds since the last sign of a run that gives one each second; 0: of no such run."""
        if view is not self._of:
            self._of, self._heartbeat = view, Heartbeat()
        if not view.is_beating or view.sign_clock is None:
            return 0.0
        age_s = age_of(view.sign_time, view.sign_clock)
        return self._heartbeat.seconds((view.sign_time, view.sign_clock), age_s)

    def on_resize(self) -> None:
        """Redraw at the new width."""
        if self._given is not None:
            self.show(*self._given)


def headline(
    view: RunView,
    now: float,
    width: int,
    moment: RunMoment | None = None,
    *,
    fork: ForkWords | None = None,
    silent_s: float = 0.0,
    precision: Content | None = None,
) -> Content:
    """Compose the line of `width` cells.

    Args:
        view: The run, at `moment` if there is one.
        now: Seconds since the epoch.
        width: Cells of the line.
        moment: The earlier moment that is shown.
        fork: What a fork says of its parent.
        silent_s: Seconds since the last sign of the run.
        precision: The precision of the run; None: a panel has it.
    """
    names, parts = _names(view), _parts(view, now if moment is None else moment.time, silent_s)
    if moment is not None:
        is_of_then = view.is_past and view.time == moment.time  # else it is still being read
        state = {_COUNTED: parts[_COUNTED].rstrip()} if is_of_then else {}
        parts = {**state, "past": _past(moment, now, view.precision if is_of_then else "")}
    elif fork is not None:
        style = "$text-accent" if fork.compares else "$quiet"
        parts |= {_FORK: Content.styled(fork.long, style), _SHORT: Content.styled(fork.short, style)}
    elif precision is not None:
        states = {name: parts.pop(name) for name in (_COUNTED, _BRIEF) if name in parts}
        parts = {**states, "precision": precision, **parts}
    for place, (short, gap, left_out) in enumerate(_FITS if _FORK not in parts else _FORK_FITS):
        other = _COUNTED if place >= _FIXED and _BRIEF in parts else _BRIEF
        shown = [part for name, part in parts.items() if name not in left_out and name != other]
        length = sum(part.cell_length for part in shown) + gap * max(0, len(shown) - 1)
        if names[short].cell_length + 2 + length <= width:
            break
    line = Content(" " * gap).join(shown)
    room = max(0, width - line.cell_length)
    name = names[short].truncate(max(0, room - 2), ellipsis=True)
    return Content.assemble(name, " " * max(0, room - name.cell_length), line)


def _names(view: RunView) -> list[Content]:
    """Return the run's names, from all of them to the profile alone, without that of the program."""
    known = view.started or view.forked
    short = f"{view.profile} +{len(view.changed)}" if view.changed else view.profile
    words = profile_words(view.profile, view.changed)
    return _named(words, short, *((known.model, known.dataset) if known else ("", "")))


@lru_cache(maxsize=16)  # they stay for a whole run
def _named(words: str, short: str, *more: str) -> list[Content]:
    program = Content.styled("mptui", "bold $text-accent")
    name = program.append_text(f"  {words}")
    names = [program.append_text(f"  {short}")]
    for each in more:
        name = name.append_text(f" · {each}" if each else "", "$quiet")
        names.insert(0, name)
    return [*names, Content(short)]


def _parts(view: RunView, now: float, silent_s: float) -> dict[str, Content]:
    is_silent = silent_s >= SILENT_S
    goes_on = view.finished is None and not view.paused and not is_silent
    parts = _states(view, now) if goes_on else {}
    parts = parts or {_COUNTED: _state(view, now, silent_s if is_silent else None)}
    if view.started is not None and (words := ranks_words(view.started.ranks, view.started.nodes)):
        parts["ranks"] = Content(words)
    if view.paused:
        parts["since"] = Content(_pause_words(view))
    elif goes_on and view.phase_since is not None and view.phase not in BUSY_PHASES:
        lasted = fmt.duration(max(0.0, now - view.phase_since), aligned=True)
        parts["lasted"] = Content.styled(f"for {lasted}", "$quiet")
    if view.epochs:
        parts["epoch"] = Content(f"epoch {view.epoch:>{len(str(view.epochs))}}/{view.epochs}")
    if view.total_steps:
        parts["step"] = Content(f"step {view.step:>{len(f'{view.total_steps:,}')},}")
        parts["bar"] = bar(view.fraction_done, 12)
    prepares = view.is_preparing and view.phase in BUSY_PHASES
    if goes_on and view.started is not None and not prepares:
        left = view.remaining_s()
        words, end = "", ""  # before the first step
        if left is not None:
            words = f"{fmt.duration(left, aligned=True):>11} left"
            end = fmt.clock_on_day(view.time + left, view.time)  # Fri 20:26 on another day
            end = f"ends {end}" if len(end) == len("20:26") else end
        parts["left"] = Content(words.ljust(_LEFT))
        parts["end"] = Content.styled(end.ljust(_END), "$quiet")
    return parts


def _states(view: RunView, now: float) -> dict[str, Content]:
    """Return the state in the cells of the longest that an epoch has, so that what follows stays in place."""
    if view.started is None:
        return {}
    last = f"● validating {view.started.val_batches:,}"
    return {
        _COUNTED: _padded(_state(view, now), f"{last} of {view.started.val_batches:,}"),
        _BRIEF: _padded(_state(view, now, has_counts=view.is_preparing), "● validating"),
    }


def _padded(state: Content, longest: str) -> Content:
    return state.append_text(" " * max(0, len(longest) - state.cell_length))


def _pause_words(view: RunView) -> str:
    since = "" if view.paused_since is None else f"since {fmt.clock(view.paused_since)}"
    return " ".join(filter(None, (since, view.paused_by and f"by {view.paused_by}")))


def _past(moment: RunMoment, now: float, precision: str) -> Content:
    """Describe an earlier moment: how long ago, its step and precision, and the way back."""
    ago = fmt.duration(max(0.0, now - moment.time), aligned=True)
    words = ", ".join(filter(None, (f"◂ {ago} ago", f"step {moment.step:,}", precision)))
    return Content.styled(f"{words}; Esc: now", "bold $text-warning")


def _state(view: RunView, now: float, silent_s: float | None = None, *, has_counts: bool = True) -> Content:
    if view.finished is not None:
        sign, style = _ENDED.get(view.finished.status, ("✗", "$text-error"))
        if view.finished.concerns and view.finished.status in _ENDED:
            sign, style = "▲", "$text-warning"
        return Content.styled(f"{sign} {view.finished.status.replace('_', ' ')}", f"bold {style}")
    if silent_s is not None:
        word = "paused" if view.paused else PHASE_WORDS.get(view.phase, view.phase)
        return Content.styled(f"▲ {word}, no sign for {fmt.duration(silent_s)}", "bold $text-warning")
    if view.paused:
        return Content.styled("■ paused", "bold $text-warning")
    phase = view.progress.phase if view.progress is not None else view.phase
    word = PHASE_WORDS.get(phase, phase)
    if view.progress is not None and has_counts:
        word = f"{word} {view.progress.done:,} of {view.progress.total:,}"
    elif view.progress is None and view.phase in BUSY_PHASES and view.phase_since is not None:
        word = f"{word} {fmt.duration(max(0.0, now - view.phase_since), aligned=True)}"
        if view.phase_expected_s is not None:
            word = f"{word} of about {fmt.duration(view.phase_expected_s)}"
    if phase == "restarting":
        return Content.styled(f"▲ {word}", "bold $text-warning")
    for alert in view.alerts:
        if alert.tone == "bad":
            told = alert.code.replace("_", " ")
            return Content.styled(
                f"▲ {told if phase == 'training' else f'{word}, {told}'}", "bold $text-error"
            )
    return Content.styled(f"● {word}", "$text-success" if phase == "training" else "$text-accent")


# The alerts of a run in one line: one after another, each until it is answered or over
# -------------------------------------------------------------------------------------

OFFERS = {
    "disk": ("app.runs", "open the runs"),
    "rank_lost": ("ranks", "show the ranks"),
    "rank_silent": ("ranks", "show the ranks"),
}
"""Code of an alert without a setting -> the action that helps, and its words."""

_STYLES: dict[Tone, str] = {"bad": "$text-error", "warn": "$text-warning", "plain": "$text-accent"}
"""In the order in which the alerts are shown."""

_LEAST_MESSAGE = 40
"""Cells for the message, below which a setting is named without its table."""

_ANSWERED: WeakKeyDictionary[App[Any], dict[tuple[str, str], float]] = WeakKeyDictionary()
"""Of each program: run and code of an alert -> when it was answered, by the clock of the run."""


class AlertBar(Static):
    """Shows the most urgent alert without an answer; the screen has the class `-alert` while there is one."""

    DEFAULT_CSS = "AlertBar { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; }"

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._view: RunView | None = None
        self._open: list[OpenAlert] = []
        self._called_until = time.time()  # what a journal says of earlier is no news
        self._shown: Content | None = None

    @property
    def alert(self) -> OpenAlert | None:
        """The alert that is shown."""
        return self._open[0] if self._open else None

    def show(self, view: RunView) -> None:
        """Show the alerts of `view`, and call the person where one is new or the run has ended."""
        self._view = view
        answered, run = _ANSWERED.setdefault(self.app, {}), _name(view)
        order = list(_STYLES)
        self._open = [
            alert
            for alert in sorted(view.alerts, key=lambda alert: order.index(alert.tone))
            if alert.time > answered.get((run, alert.code), -math.inf)
        ]
        self.screen.set_class(bool(self._open), "-alert")
        self._call(view)
        self._draw()

    def answer(self) -> None:
        """Show the alert no more, unless it begins again."""
        if self._view is not None and self.alert is not None:
            answered = _ANSWERED.setdefault(self.app, {})
            answered[_name(self._view), self.alert.code] = max(self.alert.time, self._view.time)
            self.show(self._view)

    def on_resize(self) -> None:
        """Draw in the new width."""
        self._draw()

    def _draw(self) -> None:
        width = self.content_size.width
        if self.alert is None or not width:
            return
        lines = alert_lines(self.alert, len(self._open), width, keys_of(self.app))
        content = Content("\n").join(lines)
        if self._shown is None or not content.is_same(self._shown):
            self._shown = content
            self.styles.height = len(lines)
            self.update(content, layout=False)

    def _call(self, view: RunView) -> None:
        """Call the person once for all that is new."""
        news = [alert for alert in self._open if alert.time > self._called_until]
        words = [alert.message for alert in news[:1]]
        times = [alert.time for alert in news]
        if view.finished is not None and view.finished.time > self._called_until:
            words = words or [view.finished.status.replace("_", " ")]
            times.append(view.finished.time)
        if times:
            self._called_until = max(times)
            more = f" ({len(news)} alerts)" if len(news) > 1 else ""
            call_person(self.app, f"{_name(view)}: {words[0]}{more}".removeprefix(": "))


def alert_lines(alert: OpenAlert, count: int, width: int, keymap: Mapping[str, str]) -> list[Content]:
    """Return the alert in lines of `width` cells, the first of `count`, with the keys that answer it.

    What to do is never cut. Where a key does it, a message without room is shortened; others are wrapped.
    """
    number = f"1 of {count}  " if count > 1 else ""
    sign = Content.styled(f"▲ {number}", f"bold {_STYLES[alert.tone]}")
    setting = alert.setting or ""
    offers = (setting, setting.partition(".")[2]) if setting else (OFFERS.get(alert.code, ("", ""))[1],)
    for offer in offers:
        keys = _keys(Content(offer).truncate(width // 2, ellipsis=True), keymap)
        room = max(0, width - keys.cell_length - 2)
        for message in (alert.message, alert.message.partition(": ")[0]) if offer else (alert.message,):
            words = sign.append_text(message)
            if words.cell_length <= room:
                return [_between(words, keys, width)]
        if room >= _LEAST_MESSAGE:
            break
    if offers[0]:
        return [_between(words.truncate(room, ellipsis=True), keys, width)]
    lines = sign.append_text(alert.message).wrap(width)
    if lines[-1].rstrip().cell_length > room:
        lines.append(Content(""))
    return [*lines[:-1], _between(lines[-1].rstrip(), keys, width)]


def _between(words: Content, keys: Content, width: int) -> Content:
    return Content.assemble(words, " " * max(0, width - keys.cell_length - words.cell_length), keys)


def _keys(offer: Content, keymap: Mapping[str, str]) -> Content:
    hide = _key("live.hide", Content("hide"), keymap)
    return Content.assemble(_key("live.advice", offer, keymap), "  ", hide) if offer else hide


def _key(name: str, words: Content, keymap: Mapping[str, str]) -> Content:
    (key,) = (key for key in KEYS if key.id == name)
    first = display(key, keymap).split(" / ")[0]
    return Content.assemble((first, "bold $footer-key-foreground"), " ", words.stylize("$quiet"))


def _name(view: RunView) -> str:
    return "" if view.started is None else view.started.run
