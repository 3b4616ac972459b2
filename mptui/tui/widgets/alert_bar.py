"""The alerts of a run in one line: one after another, each until it is answered or over."""

import math
import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from textual.app import App
from textual.content import Content
from textual.widgets import Static

from mptui.runs.view.log_lines import Tone
from mptui.runs.view.run_view import RunView
from mptui.runs.view.view_state import OpenAlert
from mptui.tui.keys.bindings import KEYS, display
from mptui.tui.terminal.calling import call_person

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
    """Shows the most urgent alert that is not answered; the screen has the class `-alert` while there is one.

    Args:
        keymap: The user's keys.
    """

    DEFAULT_CSS = "AlertBar { height: 1; padding: 0 1; background: $panel; text-wrap: nowrap; }"

    def __init__(self, keymap: Mapping[str, str]) -> None:
        super().__init__(markup=False)
        self._keymap = keymap
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
        line = alert_line(self.alert, len(self._open), width, self._keymap)
        if self._shown is None or not line.is_same(self._shown):
            self._shown = line
            self.update(line, layout=False)

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


def alert_line(alert: OpenAlert, count: int, width: int, keymap: Mapping[str, str]) -> Content:
    """Return the alert in `width` cells, the first of `count`, with the keys that answer it."""
    number = f"1 of {count}  " if count > 1 else ""
    words = Content.assemble((f"▲ {number}", f"bold {_STYLES[alert.tone]}"), alert.message)
    setting = alert.setting or ""
    offers = (setting, setting.partition(".")[2]) if setting else (OFFERS.get(alert.code, ("", ""))[1],)
    for offer in offers:
        keys = _keys(Content(offer).truncate(width // 2, ellipsis=True), keymap)
        room = max(0, width - keys.cell_length - 2)
        if room >= min(_LEAST_MESSAGE, words.cell_length):
            break
    words = words.truncate(room, ellipsis=True)
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
