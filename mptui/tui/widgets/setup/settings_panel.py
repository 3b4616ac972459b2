"""The list of settings with a search, for the picker and for a running run."""

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList

from mptui.text import clean
from mptui.tui.setup.selection import Value
from mptui.tui.widgets.setup.setting_list import KeyedList, value_options


class SettingsPanel(Vertical):
    """Settings under the headings of their tables: all, those with some words, or only changed ones."""

    DEFAULT_CSS = """
    SettingsPanel {
        height: 1fr;
        #search { display: none; height: 1; border: none; padding: 0 2; background: $panel; }
        &.-searching #search { display: block; }
    }
    """

    class Moved(Message):
        """Another setting is under the cursor."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = ""
        self._values: Sequence[Value] = ()
        self._only_changed = False

    def compose(self) -> ComposeResult:
        """Lay out the list and the words of the search."""
        yield KeyedList(id="values")
        hint = "words of a setting or of its meaning, such as: learning rate"
        yield Input(placeholder=hint, compact=True, id="search")

    @property
    def chosen(self) -> Value | None:
        """The setting under the cursor."""
        key = self.query_one(KeyedList).highlighted_id
        return next((value for value in self._values if value.key == key), None)

    def show(self, title: str, values: Sequence[Value]) -> None:
        """Show other settings; the cursor stays on its one."""
        self._title, self._values = title, values
        self._draw()

    def search(self) -> None:
        """Ask for words."""
        self.add_class("-searching")
        self.query_one(Input).focus()

    def end_search(self) -> bool:
        """Show all settings again; return whether there was a search."""
        field = self.query_one(Input)
        if not self.has_class("-searching") and not field.value:
            return False
        field.value = ""
        self._to_list()
        return True

    def toggle_changed(self) -> None:
        """Show only settings that are not the default, or all."""
        self._only_changed = not self._only_changed
        self._draw()

    @on(Input.Changed)
    def _searched(self, event: Input.Changed) -> None:
        event.stop()
        self._draw()

    @on(Input.Submitted)
    def _chosen(self, event: Input.Submitted) -> None:
        event.stop()
        self._to_list()

    def _to_list(self) -> None:
        self.remove_class("-searching")
        self.query_one(KeyedList).focus()

    @on(OptionList.OptionHighlighted)
    def _moved(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        """Lay the lines out in the new width."""
        self._draw()

    def _draw(self) -> None:
        listed, field = self.query_one(KeyedList), self.query_one(Input)
        words = field.value.lower().split()
        shown = [
            value for value in self._values if value.has(words) and (value.changed or not self._only_changed)
        ]
        before = listed.highlighted_id
        # minus the frame, the padding of each line and the scroll bar
        options = value_options(shown, self.size.width - 5)
        listed.replace(options)
        places = {option.id: place for place, option in enumerate(options)}
        if before in places:
            listed.highlighted = places[before]
        listed.border_title = Content(self._title)
        parts = [f"/{clean(field.value, 40)}"] if words else []
        parts += ["changed only"] if self._only_changed else []
        if len(shown) < len(self._values):
            parts.append(f"{len(shown)} of {len(self._values)}")
        listed.border_subtitle = Content(" · ".join(parts))
        self.post_message(self.Moved())
