"""The two lists of the picker: profiles with digits, settings with sources."""

from collections.abc import Collection, Sequence

from textual.content import Content
from textual.style import Style
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from mptui.config.keys import SETTINGS
from mptui.text import clean
from mptui.tui.keys.bindings import bindings
from mptui.tui.setup.selection import Value
from mptui.tui.widgets.cells import fit

DIGITS = 9
_NAMES = (28, 24, 22)
"""Width of the names in cells: for any name, for most names with the source, and for the value alone."""

_VALUE, _ORIGIN = 13, 24
_LEAST_ORIGIN, _LEAST_MEANING = 7, 30
"""Width in cells below which a column is omitted."""


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
            background: $accent 25%;
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

    def get_visual_style(self, *component_classes: str, partial: bool = False) -> Style:
        """Return a style; the cursor is reversed where colours can't show it.

        Textual knows no reversed line of a list: it drops `text-style: reverse` here.
        """
        style = super().get_visual_style(*component_classes, partial=partial)
        if "option-list--option-highlighted" not in component_classes or not self.has_focus:
            return style
        return style + _REVERSED if self.app.native_ansi_color or self.app.no_color else style

    def replace(self, options: Sequence[Option]) -> None:
        """Replace the lines; if their ids are the same, the cursor stays."""
        if [option.id for option in options] == [option.id for option in self.options]:
            for index, (old, new) in enumerate(zip(self.options, options, strict=True)):
                # contents with the same text compare equal even if their styles differ
                if (old.prompt, _spans(old)) != (new.prompt, _spans(new)):
                    self.replace_option_prompt_at_index(index, new.prompt)
            return
        with self.prevent(OptionList.OptionHighlighted):
            self.set_options(options)
            self.highlighted = next((n for n, each in enumerate(options) if not each.disabled), None)

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        self.scroll_to_highlight()

    @property
    def highlighted_id(self) -> str | None:
        """The id of the line under the cursor."""
        return None if self.highlighted is None else self.get_option_at_index(self.highlighted).id


def _spans(option: Option) -> object:
    return option.prompt.spans if isinstance(option.prompt, Content) else None


def profile_options(
    names: Sequence[str], impossible: Collection[str], edited: Collection[str] = ()
) -> list[Option]:
    """Return one line per profile: digit, name, and a star if edited; greyed out if impossible."""
    options = []
    for number, name in enumerate(names, 1):
        digit = str(number) if number <= DIGITS else " "
        style = "$text-disabled" if name in impossible else ""
        star = ("* ", "$text-accent") if name in edited else ""
        options.append(
            Option(Content.assemble((f"{digit} ", "$quiet"), star, (clean(name, 40), style)), id=name)
        )
    return options


def value_options(values: Sequence[Value], room: int) -> list[Option]:
    """Return one line per setting, under a heading for each table; non-default values are highlighted.

    Those that can't be edited are greyed out.

    Each line shows as much as fits into `room` cells: the value, its source, the meaning of the setting.
    """
    room = max(room, 1 + _NAMES[-1])  # before there is a layout
    needed = (_VALUE + _ORIGIN, _VALUE + _LEAST_ORIGIN, 0)
    names = next(name for name, more in zip(_NAMES, needed, strict=True) if room - 1 - name >= more)
    origin = "" if names == _NAMES[-1] else "from (default)"
    options: list[Option] = []
    for value in values:
        if not options or value.table != str(options[-1].id).partition(".")[0]:
            columns = "" if options else f"{'value':<{_VALUE}}{origin}".rstrip()
            heading = Content.assemble((value.table.ljust(names + 1), "bold"), columns)
            options.append(Option(heading, id=f"{value.table}.", disabled=True))
        options.append(Option(_line(value, names, room), id=value.key))
    return options


def _line(value: Value, names: int, room: int) -> Content:
    other = value.default is not None
    style = "bold $text-accent" if value.edited else "bold" if other else "$quiet"
    name, shown = fit(clean(value.name), names - 1), fit(clean(value.value), _VALUE - 1)
    line = Content.assemble(" ", name.stylize("" if other else "$quiet"), " ", shown.stylize(style), " ")
    if value.fixed:
        line = Content.styled(line.plain, "$text-disabled")
    left = room - line.cell_length
    if left < _LEAST_ORIGIN:
        return line.rstrip().truncate(room, ellipsis=True)
    line = Content.assemble(line, (_origin(value, left), "$quiet"))
    gap = max(2, 1 + names + _VALUE + _ORIGIN - line.cell_length)
    left = room - line.cell_length - gap
    if left < _LEAST_MEANING:
        return line
    meaning = Content(SETTINGS[value.key].help).truncate(left, ellipsis=True).plain
    return Content.assemble(line, " " * gap, (meaning, "$quiet"))


def _origin(value: Value, room: int) -> str:
    """Format the source of a value, with its default if that fits."""
    source = "" if value.default is None and value.source == "default" else clean(value.source, 40)
    both = source if value.default is None else clean(f"{source} ({value.default})".lstrip(), 80)
    return both if len(both) <= room else source
