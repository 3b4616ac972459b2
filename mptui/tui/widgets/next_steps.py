"""What can be done on the first screen, in words: what Enter would train, and where else to go."""

from collections.abc import Mapping

from textual.content import Content
from textual.widgets import Static

from mptui.text import clean
from mptui.tui.keys import KEYS, display
from mptui.tui.look import Outlook

_KEY = 7
_GAP = "    "
_LEAD = "settings, then train "


class NextSteps(Static):
    """The keys of the first screen with what they would do, in as many lines as it has.

    Args:
        keymap: The user's keys.
    """

    DEFAULT_CSS = "NextSteps { text-wrap: nowrap; padding: 0 1; }"

    def __init__(self, keymap: Mapping[str, str], *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        keys = {key.id: key for key in KEYS}
        names = "detection.choose", "detection.demo", "detection.learn", "app.runs", "detection.next"
        self._keys = {name: display(keys[name], keymap).split(" / ")[0] for name in names}
        self._outlook: Outlook | None = None

    def show(self, outlook: Outlook | None) -> None:
        """Show what Enter would train; None: that is not known yet."""
        if outlook != self._outlook:
            self._outlook = outlook
            self.on_resize()

    def on_resize(self) -> None:
        """Lay the lines out in the new size."""
        width, height = self.content_size
        if width > 0:
            lines = self._of_enter(width - _KEY)
            lines += self._elsewhere(height - len(lines))
            content = Content("\n").join(line.truncate(width, ellipsis=True) for line in lines[:height])
            self.update(content, layout=False)

    def _of_enter(self, room: int) -> list[Content]:
        key = self._key("detection.choose")
        found = self._outlook
        if found is None:
            return [Content.assemble(key, ("looking at this machine …", "$quiet"))]
        if found.fault:
            first, *_ = found.fault.splitlines()
            return [Content.assemble(key, (f"✗ {clean(first)}", "$text-warning"))]
        what = f"{_LEAD}{found.network} on {found.data}"
        more = ", ".join(part for part in (found.epochs, found.time_there) if part)
        if len(what) + 2 + len(more) <= room:
            return [Content.assemble(key, what, (f": {more}", "$quiet"))]
        return [Content.assemble(key, what), Content.styled(" " * _KEY + more, "$quiet")]

    def _elsewhere(self, lines: int) -> list[Content]:
        """Return where else to go, in so many lines."""
        demo = Content.assemble(self._key("detection.demo"), "demo: built-in shapes, at once")
        learn = Content.assemble(self._key("detection.learn", 3), "learn mixed precision")
        if lines < 2:
            return [Content(_GAP).join([demo, learn])][:lines]
        runs = Content.assemble(self._key("app.runs", 3), "all runs")
        learn = Content.assemble(self._key("detection.learn"), "learn mixed precision, with real numbers")
        return [demo, Content(_GAP).join([learn, runs])]

    def _key(self, name: str, width: int = _KEY) -> Content:
        return Content.styled(self._keys[name].ljust(width), "bold $footer-key-foreground")
