"""What all panels are made of: frame, columns, bars, gauges, cells, the top line, a failure."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from textual.app import ComposeResult
from textual.containers import Center, Middle, Vertical, VerticalScroll
from textual.content import Content
from textual.events import Click
from textual.message import Message
from textual.screen import ModalScreen
from textual.style import Style
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from mptui import text as fmt
from mptui.events import DeviceSample, RunFinished
from mptui.registry.names import SIXTEEN_BIT
from mptui.text import clean, clean_lines
from mptui.tui.keys import BoundKey, bindings, display_in_line, heard_on

if TYPE_CHECKING:
    from mptui.runs.view.numbers import Number
    from mptui.runs.view.run_view import RunView

# Base class of panels: frame, title, and repaint only after a change
# -------------------------------------------------------------------

Lines = Sequence[Content]

_GAP = "   "


class Panel(Static):
    """A framed block of lines of a run's view. Subclasses implement `lines`."""

    DEFAULT_CSS = """
    Panel {
        text-wrap: nowrap;
        padding: 0 1;
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
    }
    """

    def __init__(self, title: str, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)
        self._title = self._subtitle = ""
        self._shown: Content | None = None
        self._view: RunView | None = None
        self.retitle(title)

    @abstractmethod
    def lines(self, view: "RunView", width: int) -> Lines:
        """Return the content for `view` in `width` cells."""

    def retitle(self, title: str) -> None:
        """Change the title, if it differs."""
        title = clean(title, 60)
        if title != self._title:
            self._title = title
            self.border_title = Content(title)

    def subtitle(self, words: str) -> None:
        """Change what stands in the lower border, if it differs; "": nothing."""
        if words != self._subtitle:
            self._subtitle = words
            self.border_subtitle = Content(words)

    def show(self, view: "RunView") -> None:
        """Show `view`; unchanged content is not repainted."""
        self._view = view
        width = self.content_size.width
        if width <= 0:
            return
        content = Content("\n").join(line.truncate(width, ellipsis=True) for line in self.lines(view, width))
        if self._shown is None or not self._shown.is_same(content):
            self._shown = content
            self.update(content, layout=False)

    def on_resize(self) -> None:
        """Redraw at the new width."""
        if self._view is not None:
            self.show(self._view)


def joined(parts: Iterable[Content], width: int) -> Content:
    """Join as many of `parts`, from the first on, as fit into a line of `width` cells."""
    line = Content("")
    for part in parts:
        longer = Content.assemble(line, _GAP if line else "", part)
        if line and longer.cell_length > width:
            break
        line = longer
    return line


def row(
    label: str, value: str, rest: str | Content = "", *, label_width: int = 12, width: int = 8
) -> Content:
    """Return a line with a quiet label, a value right-aligned in `width` cells, and an addition."""
    return Content.assemble(
        (label.ljust(label_width), "$quiet"), value.rjust(width), "  " if str(rest) else "", rest
    )


_ON, _OFF = "🚀", "📊"


def precision_words(precision: str, ascii_only: bool, on: str = "") -> Content:
    """Format whether mixed precision is on: an icon in its own cell, and text; `on` says so in words, too."""
    if not precision:
        return Content(f"mp: {fmt.UNKNOWN}")
    mixed = precision in SIXTEEN_BIT
    if ascii_only:
        return Content.styled(f"mp:on  {precision}" if mixed else "mp:fp32", "bold")
    return Content.assemble("mp: ", _ON if mixed else _OFF, (f"{on if mixed else ''} {precision}", "bold"))


def words_of_numbers(numbers: Iterable["Number"]) -> Content:
    """Return numbers of now as a text."""
    parts = [((each.before, "$quiet"), (each.words, "$foreground")) for each in numbers]
    return Content.assemble(*(part for pair in parts for part in pair))


# A thin horizontal bar
# ---------------------


def bar(fraction: float | None, width: int, style: str = "$text-accent") -> Content:
    """Return a bar of `width` cells, filled to `fraction`; only its track for None and NaN."""
    known = 0.0 if fraction is None or math.isnan(fraction) else fraction
    halves = round(2 * width * min(max(known, 0.0), 1.0))
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return Content.assemble((filled, style), ("─" * (width - len(filled)), "$frame"))


# Cells of a table
# ----------------


def fit(content: Content | str, width: int, *, right: bool = False) -> Content:
    """Cut or pad a content to `width` cells of the terminal, of which wide characters take two."""
    cut = (Content(content) if isinstance(content, str) else content).truncate(width, ellipsis=True)
    missing = width - cut.cell_length
    return cut.pad_left(missing) if right else cut.pad_right(missing)


# The column of panels on the right of the live screen
# ----------------------------------------------------


class Column(Vertical):
    """Panels one below the other; if they don't fit, the focus and the keys scroll them."""

    BINDINGS = bindings("column")


# The live screen of a run that failed before its first step
# ----------------------------------------------------------


class Failure(Middle):
    """Shows error and remedy in the middle of the screen.

    Args:
        ended: The end of the run.
        leads: The keys to continue.
    """

    DEFAULT_CSS = """
    Failure {
        height: 1fr;
        VerticalScroll {
            width: 76;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            padding: 1 2;
            scrollbar-size: 1 1;
            border: round $error;
            border-title-color: $text-error;
        }
        Static { height: auto; }
    }
    """

    def __init__(self, ended: RunFinished, leads: str) -> None:
        super().__init__()
        self._ended = ended
        self._leads = leads

    def compose(self) -> ComposeResult:
        """Lay out the message, the hint and the keys."""
        ended = self._ended
        blocks = [
            Content.styled(clean_lines(ended.message or ended.status), "bold"),
            Content(clean_lines(ended.hint)),
            Content.styled(self._leads, "$quiet"),
        ]
        with Center(), VerticalScroll() as box:
            box.border_title = "✗ the run did not start"
            yield Static(Content("\n\n").join(block for block in blocks if block), markup=False)


# Formats device samples, for the cards of the first screen and the panel of the live screen
# ------------------------------------------------------------------------------------------

LABEL, FIGURE = 10, 14


def gauge(label: str, fraction: float | None, figure: str, room: int, *, label_width: int = LABEL) -> Content:
    """Return a line with a quiet label, a bar of `room` cells, and a figure aligned right."""
    return Content.assemble(
        (label.ljust(label_width), "$quiet"), bar(fraction, room, "$device-curve"), figure.rjust(FIGURE)
    )


def share(part: float | None, whole: float | None) -> float | None:
    """Return the fraction `part / whole`; None if one is unknown."""
    return part / whole if part is not None and whole else None


def busy(sample: DeviceSample) -> str:
    """Format the utilisation."""
    return fmt.UNKNOWN if sample.utilisation is None else f"{100 * sample.utilisation:.0f} %"


def busy_with_own(sample: DeviceSample) -> str:
    """Format the utilisation, with this process's share if known: `93 % (ours 50 %)`."""
    own = sample.utilisation_own
    return busy(sample) + ("" if own is None else f" (ours {100 * own:3.0f} %)")


def power(sample: DeviceSample) -> str:
    """Format power and its limit."""
    if sample.power_w is None:
        return fmt.UNKNOWN
    if not sample.power_limit_w:
        return f"{sample.power_w:.0f} W"
    limit = f"{sample.power_limit_w:.0f}"
    return f"{sample.power_w:{len(limit)}.0f} of {limit} W"


def heat(sample: DeviceSample) -> str:
    """Format the temperature."""
    return f"{fmt.UNKNOWN if sample.temperature_c is None else f'{sample.temperature_c:.0f}'} °C"


def clock(sample: DeviceSample) -> str:
    """Format the clock rate."""
    return f"{fmt.count(sample.sm_clock_mhz)} MHz"


def throttle(sample: DeviceSample) -> Content:
    """Describe the throttling."""
    if sample.throttle:
        return Content.styled(f"throttled: {', '.join(sample.throttle)}", "$text-warning")
    return Content.styled("no throttling" if sample.sm_clock_mhz is not None else "", "$quiet")


# The first line of the screens before a run: the program's name and a message
# ----------------------------------------------------------------------------


class TopLine(Static):
    """One line: the name on the left, a message on the right.

    Args:
        about: What follows the name, the first of these that has room.
    """

    DEFAULT_CSS = "TopLine { height: 1; padding: 0 1; text-wrap: nowrap; }"

    def __init__(self, about: Sequence[str] = ()) -> None:
        super().__init__(markup=False)
        self._about = about
        self._said = Content("")

    def show_message(self, words: Content) -> None:
        """Show another message."""
        self._said = words
        self.on_resize()

    def on_resize(self) -> None:
        """Lay the line out in the new width."""
        width, name = self.content_size.width, Content.styled("mptui", "bold $text-accent")
        left = width - name.cell_length - self._said.cell_length - 4
        if (about := next((words for words in self._about if len(words) <= left), None)) is not None:
            name = Content.assemble(name, "  ", (about, "$quiet"))
        said = self._said.truncate(max(0, width - name.cell_length - 2), ellipsis=True)
        gap = width - name.cell_length - said.cell_length
        self.update(Content.assemble(name, " " * max(2, gap), said), layout=False)


# The frame that all dialogs have
# -------------------------------

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """A box over the screen; a subclass yields it as its first container, and gives its width and padding."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 70%;
        & > Vertical, & > VerticalScroll {
            max-width: 100%;
            height: auto;
            background: $surface;
            border: round $accent;
            border-title-color: $text-accent;
            border-subtitle-color: $quiet;
            scrollbar-size: 1 1;
        }
    }
    """


# The bottom line: the keys of a screen, with the user's keymap applied; each can be clicked
# ------------------------------------------------------------------------------------------

_KEY_GAP = 2


class KeyBar(Static):
    """Keys with their words, as many as fit; the global ones (help, leave) are always shown.

    Where keys don't fit, the help is called `more`.
    """

    DEFAULT_CSS = "KeyBar { height: 1; padding: 0 1; text-wrap: nowrap; }"

    def __init__(self, where: str, keymap: Mapping[str, str]) -> None:
        super().__init__(markup=False)
        keys = [key for key in heard_on(where) if key.footer and key.id != f"app.{where}"]
        self._items = [(key, _item(key, keymap, key.footer)) for key in keys]
        self._more = {key.id: _item(key, keymap, "more") for key in keys if key.id == "app.help"}
        self._shown: list[tuple[BoundKey, Content]] = []
        self.states = {"always", "going"}
        """The states of a run of which the keys are shown."""

    def offer(self, *when: str) -> None:
        """Show the keys of these states of a run, and the global ones unless letters are typed."""
        if self.states != set(when):
            self.states = set(when)
            self.on_resize()

    def on_resize(self) -> None:
        """Choose the keys that fit."""
        when = self.states if "typing" in self.states else {*self.states, "spare"}
        always = [
            item
            for item in self._items
            if item[0].where == "app" and item[0].when == "always" and "typing" not in when
        ]
        own = [item for item in self._items if item not in always and item[0].when in when]
        while (
            own
            and sum(content.cell_length + _KEY_GAP for _, content in own + always) - _KEY_GAP
            > self.size.width
        ):
            own.pop()
            always = [(key, self._more.get(key.id, content)) for key, content in always]
        self._shown = own + always
        self.update(Content(" " * _KEY_GAP).join(content for _, content in self._shown), layout=False)

    async def on_click(self, event: Click) -> None:
        """Run the action of the key under the mouse."""
        end = 1
        for key, content in self._shown:
            start, end = end, end + content.cell_length + _KEY_GAP
            if start <= event.x < end - _KEY_GAP and "{n}" not in key.action:
                await self.run_action(key.action if key.action.startswith("app.") else f"screen.{key.action}")


def _item(key: BoundKey, keymap: Mapping[str, str], word: str) -> Content:
    return Content.assemble(
        (display_in_line(key, keymap), "bold $footer-key-foreground"), (f" {word}", "$quiet")
    )


# A list with a cursor, and the keys of lists
# -------------------------------------------

_REVERSED = Style(reverse=True)


class KeyedList(OptionList, inherit_bindings=False):
    """A list with bindings from the table of keys; `enter` is handled by the page."""

    BINDINGS = bindings("list")
    DEFAULT_CSS = """
    KeyedList {
        height: 1fr;
        max-height: 100%;
        background: $background;
        border: round $frame;
        border-title-color: $quiet;
        border-subtitle-color: $quiet;
        scrollbar-size: 1 1;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &:focus { border: round $accent; border-title-color: $text-accent; background-tint: $accent 0%; }
        & > .option-list--option-highlighted { background: $panel; text-style: none; }
        &:focus > .option-list--option-highlighted {
            color: $foreground;
            background: $selected;
            text-style: none;
        }
        & > .option-list--option-disabled { color: $quiet; }
        &:ansi > .option-list--option-highlighted, &:nocolor > .option-list--option-highlighted {
            color: $foreground;
            background: $background;
            text-style: bold underline;
        }
        &:focus:ansi > .option-list--option-highlighted, &:focus:nocolor > .option-list--option-highlighted {
            text-style: none;
        }
    }
    """

    class Opened(Message):
        """A line was clicked twice: it is to be opened."""

        def __init__(self, sender: "KeyedList") -> None:
            super().__init__()
            self.sender = sender

        @property
        def control(self) -> "KeyedList":
            """The list, by which handlers choose."""
            return self.sender

    def on_click(self, event: Click) -> None:
        """Open the line under the mouse at the second click; the first has chosen it."""
        if event.chain == 2 and event.style.meta.get("option") == self.highlighted is not None:
            self.post_message(self.Opened(self))

    def action_next(self, way: int) -> None:
        """Go to the next line, or the one before: a search lists its matches alone."""
        if way > 0:
            self.action_cursor_down()
        else:
            self.action_cursor_up()

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        """Return a style; the cursor is reversed where colours can't show it.

        Textual knows no reversed line of a list: it drops `text-style: reverse` here.
        """
        style = super().get_visual_style(*component_classes, partial=partial)
        if "option-list--option-highlighted" not in component_classes or not self.has_focus:
            return style
        return style + _REVERSED if self.app.native_ansi_color or self.app.no_color else style

    def replace(self, options: Sequence[Option], *, keeps_place: bool = False) -> None:
        """Replace the lines; the cursor stays on its line.

        Args:
            options: The lines.
            keeps_place: Where that line is gone, stay at its place instead of going to the first one.
        """
        if [option.id for option in options] == [option.id for option in self.options]:
            for index, (old, new) in enumerate(zip(self.options, options, strict=True)):
                # contents with the same text compare equal even if their styles differ
                if (old.prompt, _spans(old)) != (new.prompt, _spans(new)):
                    self.replace_option_prompt_at_index(index, new.prompt)
            return
        chosen, place = self.highlighted_id, self.highlighted if keeps_place else None
        free = [n for n, each in enumerate(options) if not each.disabled]
        same = [n for n in free if options[n].id == chosen]
        after = [n for n in free if n >= (place or 0)]
        with self.prevent(OptionList.OptionHighlighted):
            self.set_options(options)
            self.highlighted = next(iter(same or after or free[-1:]), None)

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        self.scroll_to_highlight()

    @property
    def highlighted_id(self) -> str | None:
        """The id of the line under the cursor."""
        return None if self.highlighted is None else self.get_option_at_index(self.highlighted).id


def _spans(option: Option) -> object:
    return option.prompt.spans if isinstance(option.prompt, Content) else None
