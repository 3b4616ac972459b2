"""The table of devices; the one under the cursor is opened below it."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.widgets import Static

from mptui.tui.widgets.setup.device_lines import DeviceRow, table_lines


class DeviceTable(Vertical):
    """A line for each device, and one of sums; the lines scroll where not all fit."""

    DEFAULT_CSS = """
    DeviceTable {
        display: none;
        height: auto;
        Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        VerticalScroll { scrollbar-size: 1 1; }
        VerticalScroll Static { height: auto; }
    }
    """

    class Pressed(Message):
        """A line was clicked."""

        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

    def __init__(self) -> None:
        super().__init__()
        self._heading, self._lines, self._sums = (Static(markup=False) for _ in range(3))
        self._scroll = VerticalScroll(self._lines, can_focus=False)
        self._rows: Sequence[DeviceRow] = ()
        self._chosen = 0

    def compose(self) -> ComposeResult:
        """Lay out headings, devices and sums."""
        yield self._heading
        yield self._scroll
        yield self._sums

    def show(self, rows: Sequence[DeviceRow], chosen: int) -> None:
        """Show devices with their latest samples; unchanged lines are not repainted."""
        self._rows, self._chosen = rows, chosen
        width = (
            self.content_size.width
            - self._scroll.scrollbar_size_vertical * self._scroll.show_vertical_scrollbar
        )
        if width <= 0 or not rows:
            return
        lines = table_lines(rows, chosen, width)
        _put(self._heading, lines.heading)
        _put(self._lines, Content("\n").join(lines.rows))
        _put(self._sums, lines.sums or Content(""))

    def fit(self, height: int) -> int:
        """Keep to `height` lines: sums are left out first, then devices scroll. Return the lines in use."""
        several = sum(row.is_gpu for row in self._rows) > 1
        self._sums.display = several and len(self._rows) + 2 <= height
        others = 1 + self._sums.display
        lines = min(len(self._rows), max(1, height - others))
        self._scroll.styles.height = lines
        self.call_after_refresh(self._scroll.scroll_to_region, Region(0, self._chosen, 1, 1), animate=False)
        return lines + others

    def on_resize(self) -> None:
        """Lay the lines out in the new width."""
        self.show(self._rows, self._chosen)

    def on_click(self, event: Click) -> None:
        """Choose the device of the line under the mouse."""
        place = event.get_content_offset(self._lines)
        if place is not None and self._scroll.region.contains_point(event.screen_offset):
            self.post_message(self.Pressed(place.y))


def _put(line: Static, content: Content) -> None:
    """Show a content if it differs from the one that is shown."""
    before = line.content
    if not isinstance(before, Content) or not content.is_same(before):
        line.update(content, layout=content.plain.count("\n") != str(before).count("\n"))
