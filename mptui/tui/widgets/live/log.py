"""The log panel, with the newest lines at the bottom."""

from textual.content import Content

from mptui import format as fmt
from mptui.runs.view.log_lines import LogLine
from mptui.runs.view.run_view import RunView
from mptui.tui.keys.bindings import bindings
from mptui.tui.widgets.panel import Lines, Panel

_STYLES = {
    "plain": "",
    "quiet": "$quiet",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "$text-error",
}
_INDENT = 10


class LogPanel(Panel, can_focus=True):
    """The last lines that fit; scrolls when focused."""

    BINDINGS = bindings("log")
    DEFAULT_CSS = "LogPanel { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("log", id=id)
        self._back = 0

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the lines that fit, ending `_back` lines before the last."""
        height = self.content_size.height
        rows: list[Content] = []
        for line in reversed(view.log):
            rows[:0] = _laid_out(line, width)
            if len(rows) >= height + self._back:
                break
        self._back = max(0, min(self._back, len(rows) - height))
        end = len(rows) - self._back
        return rows[max(0, end - height) : end]

    def action_scroll_log(self, lines: int) -> None:
        """Scroll up by `lines`, or down if negative."""
        self._back = max(0, self._back + lines)
        if self._view is not None:
            self.show(self._view)


def _laid_out(line: LogLine, width: int) -> list[Content]:
    """Return the rows of a line: its time of day, with the wrapped text beside it."""
    style = _STYLES[line.tone]
    texts = Content(line.text).wrap(max(10, width - _INDENT)) or [Content("")]
    times = [fmt.clock(line.time, seconds=True).ljust(_INDENT), *[" " * _INDENT] * (len(texts) - 1)]
    return [
        Content.assemble((moment, "$quiet"), (text.plain.rstrip(), style))
        for moment, text in zip(times, texts, strict=True)
    ]
