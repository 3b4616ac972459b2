"""Base classes of full screens: breakpoints, back, leave; small terminals."""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from textual import on
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from mptui.tui.keys import BoundKey, heard_on, is_letter, keys_of, works
from mptui.tui.widgets.basics import KeyBar, Panel

if TYPE_CHECKING:
    from mptui.runs.view.run_view import RunView

# Base class of full screens: breakpoints, back, leave
# ----------------------------------------------------

WIDTHS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-flat"), (16, "-short"), (20, "-tall"), (31, "-high")]
"""Breakpoints in cells, with the CSS class from each on."""


class Page(Screen[str]):
    """A screen of the app; `where` is its name in the table of keys."""

    where: ClassVar[str] = ""
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def on_mount(self) -> None:
        """Post the Resize that Textual leaves out (8.2.8).

        Its compositor posts one to widgets that are new in its map or have another size there. If anything is
        looked up between a change and the layout, the map has the change already.
        """
        self._sizes = WeakKeyDictionary[Widget, Size]()
        self.screen_layout_refresh_signal.subscribe(self, self._post_sizes)

    def _post_sizes(self, _screen: object) -> None:
        for widget in self.query():
            if widget.size != self._sizes.get(widget, Size()):
                self._sizes[widget] = widget.size
                widget.post_message(Resize(widget.size, widget.virtual_size, widget.container_size))

    def on_compose(self) -> None:
        """Take the classes of the terminal's size before anything is styled and drawn without them."""
        self.update_classes(self.size_classes(self.app.size), update=False)

    @cached_property
    def _keymap(self) -> Mapping[str, str]:
        """The user's keys."""
        return keys_of(self.app)

    @on(Resize)
    def _take_size_classes(self, event: Resize) -> None:
        self.update_classes(self.size_classes(event.size), animate=False)

    def size_classes(self, size: Size) -> dict[str, bool]:
        """Return each class that depends on the size of the screen, and whether it holds."""
        widths, heights = self.HORIZONTAL_BREAKPOINTS or [], self.VERTICAL_BREAKPOINTS or []
        held = {_reached(widths, size.width), _reached(heights, size.height)}
        return {name: name in held for _, name in widths + heights}

    def keys_now(self, *, also_letters: bool = False) -> list[BoundKey]:
        """Return the keys that do something now, where the focus is.

        Args:
            also_letters: Also those that a text field with the focus takes for itself.
        """
        takes_letters = isinstance(self.focused, Input) and not also_letters
        bound = [(key, each.binding.id) for key, each in self.active_bindings.items()]
        ids = {id for key, id in bound if id and not (takes_letters and is_letter(key))}
        states = set[str]().union(*(bar.states for bar in self.query(KeyBar)), {"always"})
        return [
            key
            for key in heard_on(self.where)
            if works(key, states) and (key.id in ids or f"{key.id}.1" in ids)
        ]

    def is_without(self, key: str) -> bool:
        """Whether a key does nothing here; a text field takes what it is given."""
        return key not in self.active_bindings and not isinstance(self.focused, Input)

    def by_name(self) -> Iterable[tuple[str, str, Callable[[], None]]]:
        """Return what can be found by its name in the palette: name, meaning, and how to go there."""
        return ()

    def back(self) -> None:
        """Go to the screen before this one; the first one stays."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def leave(self) -> None:
        """Leave the app."""
        self.app.exit()


def _reached(breakpoints: list[tuple[int, str]], cells: int) -> str:
    return [name for least, name in breakpoints if cells >= least][-1]


# Base class of the screens that leave out lines without some words
# -----------------------------------------------------------------


class SearchField(Input):
    """The words of a search, in place of the line of keys while they are typed.

    Args:
        hint: What the words are of.
    """

    DEFAULT_CSS = "SearchField { display: none; height: 1; border: none; padding: 0 2; background: $panel; }"

    def __init__(self, hint: str) -> None:
        super().__init__(placeholder=hint, compact=True, id="search")


class SearchedPage(Page):
    """Has a list of which a search leaves the lines with all its words; it yields a `SearchField`."""

    AUTO_FOCUS = ""
    DEFAULT_CSS = """
    SearchedPage.-asking {
        KeyBar { display: none; }
        SearchField { display: block; }
    }
    """

    @abstractmethod
    def searched(self, words: list[str]) -> None:
        """Show the lines with all these words, of small letters."""

    @abstractmethod
    def go_to_match(self, way: int) -> None:
        """Choose the next line, or the one before: those without the words are left out."""

    @property
    def _field(self) -> SearchField:
        return self.query_one(SearchField)

    def action_filter(self) -> None:
        """Ask for words."""
        self.add_class("-asking")
        self._field.focus()

    def action_match(self, way: int) -> None:
        """Go to the next match, or the one before."""
        self.go_to_match(way)

    @on(Input.Changed, "#search")
    def _search_changed(self) -> None:
        self.searched(self._field.value.lower().split())

    @on(Input.Submitted, "#search")
    def _search_chosen(self) -> None:
        self.remove_class("-asking")
        self.to_list()

    def to_list(self) -> None:
        """Give the focus back to the list."""
        self.set_focus(None)

    def end_search(self) -> bool:
        """Show all lines again; return whether there was a search."""
        field = self._field
        if not field.value and not self.has_class("-asking"):
            return False
        field.value = ""
        self._search_chosen()
        return True


def has_words(text: str, words: Iterable[str]) -> bool:
    """Whether a text has all these words, of small letters."""
    text = text.lower()
    return all(word in text for word in words)


# Base class of the screens above the live screen, which show a part of its view
# ------------------------------------------------------------------------------

POLLS_PER_SECOND = 4


class ViewPage(Page):
    """Shows a header and panels of a view, and redraws them after a change.

    Args:
        view: The view of the run, updated by the live screen below.
    """

    def __init__(self, view: "RunView") -> None:
        super().__init__()
        self._view = view
        self._shown = -1

    def on_mount(self) -> None:
        """Start updating."""
        self.poll()
        self.set_interval(1 / POLLS_PER_SECOND, self.poll)

    def poll(self) -> None:
        """Show changes."""
        from mptui.tui.widgets.header import Header  # needs NumPy, and the first screen does not

        stands_still = self._view.finished is not None or self._view.is_past
        self.query_one(Header).show(self._view, self._view.time if stands_still else time.time())
        if self._view.version != self._shown:
            self._shown = self._view.version
            self.show()

    def show(self) -> None:
        """Show the view in all panels."""
        for panel in self.query("Panel"):
            assert isinstance(panel, Panel)
            panel.show(self._view)

    def on_mouse_scroll_up(self) -> None:
        """Go a line up, as its key does."""
        self.wheel(-1)

    def on_mouse_scroll_down(self) -> None:
        """Go a line down, as its key does."""
        self.wheel(1)

    def wheel(self, lines: int) -> None:
        """Go down by so many lines, or up if negative; nothing on a screen without a list."""

    def back(self) -> None:
        """Close."""
        self.dismiss("back")

    def leave(self) -> None:
        """Quit as the live screen does."""
        self.dismiss("leave")


# Message instead of a screen if the terminal is too small
# --------------------------------------------------------


class TooSmall(Static):
    """Names the needed size; visible only on a screen with the class -tiny or -flat."""

    DEFAULT_CSS = """
    TooSmall { display: none; width: 1fr; height: 1fr; content-align: center middle; text-align: center; }
    """

    def __init__(self, comfort: str = "") -> None:
        super().__init__(markup=False)
        self._comfort = comfort

    def on_resize(self, _event: Resize) -> None:
        """Show the needed and the actual size."""
        has = f"{self.app.size.width}x{self.app.size.height}"
        words = f"mptui needs 60x16 cells,\nthis terminal has {has}."
        self.update(Content(f"{words}\n\n{self._comfort}".rstrip()))
