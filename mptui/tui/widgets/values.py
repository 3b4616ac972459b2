"""The two lists of the picker: profiles with their digits, and settings with where each came from."""

from collections.abc import Collection, Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from mptui.config.keys import SETTINGS
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.picked import Value

DIGITS = 9
_NAME, _VALUE, _ORIGIN = 24, 13, 24


class KeyedList(OptionList, inherit_bindings=False):
    """A list of lines that moves by the keys of the table, and leaves `enter` to the page."""

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
            background: $accent 25%;
            text-style: none;
        }
        & > .option-list--option-disabled { color: $quiet; }
    }
    """

    def replace(self, options: Sequence[Option]) -> None:
        """Show other lines; where only their words are others, nothing moves."""
        if [option.id for option in options] == [option.id for option in self.options]:
            for index, (old, new) in enumerate(zip(self.options, options, strict=True)):
                # contents of the same text count as equal, whatever their styles
                if (old.prompt, _spans(old)) != (new.prompt, _spans(new)):
                    self.replace_option_prompt_at_index(index, new.prompt)
            return
        with self.prevent(OptionList.OptionHighlighted):
            self.set_options(options)
            self.highlighted = next((n for n, each in enumerate(options) if not each.disabled), None)

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self.scroll_to_highlight()

    @property
    def highlighted_id(self) -> str | None:
        """The id of the line under the cursor."""
        return None if self.highlighted is None else self.get_option_at_index(self.highlighted).id


def _spans(option: Option) -> object:
    return option.prompt.spans if isinstance(option.prompt, Content) else None


def profile_options(names: Sequence[str], impossible: Collection[str]) -> list[Option]:
    """One line a profile: its digit and its name; greyed where it is impossible."""
    options = []
    for number, name in enumerate(names, 1):
        digit = str(number) if number <= DIGITS else " "
        style = "$text-disabled" if name in impossible else ""
        options.append(Option(Content.assemble((f"{digit} ", "$quiet"), (clean(name, 40), style)), id=name))
    return options


def value_options(values: Sequence[Value], *, wide: bool) -> list[Option]:
    """One line a setting under a heading for each table; what is not the default stands out.

    Where the list is `wide`, each line ends with what the setting means.
    """
    options: list[Option] = []
    for value in values:
        if not options or value.table != str(options[-1].id).partition(".")[0]:
            columns = "" if options else f"{'value':<{_VALUE}}from (default)"
            heading = Content.assemble((value.table.ljust(_NAME + 1), "bold"), columns)
            options.append(Option(heading, id=f"{value.table}.", disabled=True))
        options.append(Option(_line(value, wide), id=value.key))
    return options


def _line(value: Value, wide: bool) -> Content:
    other = value.default is not None
    style = "bold $text-accent" if value.edited else "bold" if other else "$quiet"
    name = Content(clean(value.name)).truncate(_NAME - 1, ellipsis=True).plain.ljust(_NAME)
    shown = Content(clean(value.value)).truncate(_VALUE - 1, ellipsis=True).plain.ljust(_VALUE)
    line = Content.assemble(
        " ", (name, "" if other else "$quiet"), (shown, style), (_origin(value), "$quiet")
    )
    if not wide:
        return line
    gap = " " * max(2, 1 + _NAME + _VALUE + _ORIGIN - line.cell_length)
    return Content.assemble(line, gap, (SETTINGS[value.key].field.description or "", "$quiet"))


def _origin(value: Value) -> str:
    if value.default is None:
        return "" if value.source == "default" else clean(value.source, 40)
    return clean(f"{value.source} ({value.default})", 80)
