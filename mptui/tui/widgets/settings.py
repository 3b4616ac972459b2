"""Settings on screens: lists of profiles and settings, the outline, text fields."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from mptui import text as fmt
from mptui.config.keys import SETTINGS
from mptui.config.resolve import Resolved
from mptui.hardware.devices import Device
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.selection import USUAL, Fit, Picked, Value, in_words
from mptui.tui.terminal.graphics import half_blocks
from mptui.tui.widgets.basics import KeyedList, bar, fit, share

if TYPE_CHECKING:
    from PIL.Image import Image


# The two lists of the picker: profiles with digits, settings with sources
# ------------------------------------------------------------------------

DIGITS = 9
_NAMES = (28, 24, 22)
"""Width of the names in cells: for any name, for most names with the source, and for the value alone."""

_VALUE, _ORIGIN = 13, 24
_LEAST_ORIGIN, _LEAST_MEANING = 7, 30
"""Width in cells below which a column is omitted."""


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


def usual_first(values: Sequence[Value]) -> list[tuple[str, Value]]:
    """Return the usual settings and then the changed ones, each with its heading; the others are left out."""
    by_key = {value.key: value for value in values}
    usual = [("usual", by_key[key]) for key in USUAL if key in by_key]
    return usual + [("changed", value) for value in values if value.changed and value.key not in USUAL]


def value_options(values: Sequence[tuple[str, Value]], room: int) -> list[Option]:
    """Return one line per setting, under its heading; non-default values are highlighted.

    Those that can't be edited are greyed out. Under the heading of its table, a setting has its short name.

    Each line shows as much as fits into `room` cells: the value, its source, the meaning of the setting.
    """
    room = max(room, 1 + _NAMES[-1])  # before there is a layout
    needed = (_VALUE + _ORIGIN, _VALUE + _LEAST_ORIGIN, 0)
    names = next(name for name, more in zip(_NAMES, needed, strict=True) if room - 1 - name >= more)
    origin = "" if names == _NAMES[-1] else "from (default)"
    options: list[Option] = []
    under = ""
    for title, value in values:
        if title != under:
            columns = "" if options else f"{'value':<{_VALUE}}{origin}".rstrip()
            heading = Content.assemble((title.ljust(names + 1), "bold"), columns)
            options.append(Option(heading, id=f"{title}.", disabled=True))
            under = title
        name = value.name if title == value.table else value.key
        options.append(Option(_line(value, name, names, room), id=value.key))
    return options


@lru_cache(maxsize=512)  # most lines stay as another profile is chosen, and as a search is typed
def _line(value: Value, called: str, names: int, room: int) -> Content:
    other = value.default is not None
    style = "bold $text-accent" if value.edited else "bold" if other else "$quiet"
    name, shown = fit(clean(called), names - 1), fit(clean(value.shown), _VALUE - 1)
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
    """Format the source of a value, with its default if that fits; in fewer words in a narrow column."""
    source = "" if value.default is None and value.source == "default" else clean(value.source, 80)
    long, short = (_in_words(source, words) for words in (_WORDS, _FEWER_WORDS))
    forms = [long, short, short.removeprefix("chosen: ")]
    if value.default is not None:
        forms.insert(0, clean(f"{long} ({value.default})".lstrip(), 120))
    return next((words for words in forms if len(words) <= room), forms[-1])


def _in_words(source: str, words: Mapping[str, str]) -> str:
    for pattern, said in words.items():
        source = re.sub(pattern, said, source)
    return source


_WORDS = {r"^default \[(\w+)\..*\]$": r"default of \1"}
"""Patterns in the sources of settings -> what a screen says, where there is room."""
_FEWER_WORDS = {
    r"^default \[.*\]$": "task's default",
    r"^default of weights that .*": "weights' default",
    r"^default of .*": "network's default",
    r" training images$": " images",
    r"a U-Net of width": "width",
    r"^chosen for ": "for ",
    r"^chosen: (bf16|fp16|fp32), .*": r"chosen: \1",
}


# Summary of the selected run: network, precision, batch and memory
# -----------------------------------------------------------------

_LABEL = 11
_BAR = 24
_FAULT_LINES = 6
_WIDE = 90
_BRIEF = {"precision", "batch", "lr", "epochs", "time"}


class Outline(Static):
    """The main values of the selected run, or why it is impossible."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)

    def show(
        self,
        run: Resolved,
        device: Device,
        fit: Fit | str | None,
        time: tuple[str, str] | None,
        *,
        ranks: int = 1,
        samples: int | None = None,
        brief: bool = False,
    ) -> None:
        """Show a run.

        Args:
            run: The run.
            device: The device of one process.
            fit: Its estimate, why there is none, or None: unknown yet.
            time: How long it would take, "" if that is not known, and why; None: unknown yet.
            ranks: Number of processes.
            samples: Number of training samples; None: not known.
            brief: Show only what settings decide, a line each.
        """
        width = self.content_size.width
        words, memory = in_words(run, device, ranks, samples), _memory(fit, width, samples)
        taken, why = time or ("…", "")
        time_line = ("time", taken, why) if taken else ("time", why, "")
        words.insert(1 + [label for label, *_ in words].index("epochs"), time_line)
        if brief:
            lines = [_outline_line(*each) for each in words if each[0] in _BRIEF]
            short = [line.truncate(width, ellipsis=True) for line in (*lines, memory[0])]
            self.update(Content("\n").join(short))
            return
        network = [("network", *_network(fit))] if isinstance(fit, Fit) else []
        lines = [Content.styled(clean(run.config.description), "$text-accent")]
        lines += [line for each in (*network, *words) for line in _wrapped(_outline_line(*each), width)]
        self.update(Content("\n").join([*lines, *_wrapped(memory[0], width), *memory[1:]]))

    def refuse(self, fault: str) -> None:
        """Show why the run is impossible."""
        lines = [Content.styled(clean(line), "$text-error") for line in fault.splitlines()[:_FAULT_LINES]]
        self.update(Content("\n").join(lines))


def _outline_line(label: str, value: str, why: str) -> Content:
    return Content.assemble(
        (label.ljust(_LABEL), "$quiet"), (clean(value), "bold"), "  ", (clean(why), "$quiet")
    )


def _wrapped(line: Content, width: int) -> list[Content]:
    """Wrap what follows the label of a line below itself."""
    if width <= _LABEL:  # before the layout is known
        return [line]
    first, *others = line[_LABEL:].wrap(width - _LABEL)
    return [Content.assemble(line[:_LABEL], first), *(other.pad_left(_LABEL) for other in others)]


def _network(fit: Fit) -> tuple[str, str]:
    weights = fmt.short(float(f"{fit.parameters:.3g}"))
    return fit.network, f"{weights} weights, images of {fit.side} px"


def _memory(fit: Fit | str | None, width: int, samples: int | None) -> list[Content]:
    label = ("memory".ljust(_LABEL), "$quiet")
    if fit is None:
        return [Content.assemble(label, ("counting …", "$quiet")), Content("")]
    if isinstance(fit, str):
        return [Content.assemble(label, (f"✗ {clean(fit.splitlines()[0])}", "$text-warning")), Content("")]
    style = "$quiet" if fit.free is None else "$text-success" if fit.fits else "$text-warning"
    total, gauge = fit.footprint.total, Content("")
    if width >= _WIDE:
        gauge = Content.assemble(bar(share(total, fit.free), _BAR, style), "  ")
    return [
        Content.assemble(label, gauge, (fit.figure, "bold"), "  ", (fit.words_of_set(samples), style)),
        Content.styled(" " * _LABEL + _parts(fit, width - _LABEL), "$quiet"),
    ]


def _parts(fit: Fit, room: int) -> str:
    """All parts where there is room, else the two largest and the rest."""
    if len(text := _parts_text(fit.parts)) <= room:
        return text
    first, second, *others = sorted(fit.parts, key=lambda part: -part[1])
    return _parts_text([first, second, ("rest", sum(size for _, size in others))])


def _parts_text(parts: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{word} {size / (1 << 30):.2g}" for word, size in parts)


# Time and memory of the selected run in a line, where the summary has no room
# ----------------------------------------------------------------------------


class Cost(Static):
    """How long a run would take, and whether its memory fits."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(markup=False, id=id)

    def show(self, time: tuple[str, str] | None, fit: Fit | str | None) -> None:
        """Show them; None: not known yet."""
        taken = "…" if time is None else time[0] or "time not known"
        memory = _memory(fit, 0, None)[0][_LABEL:]
        words = Content.assemble((taken, "bold"), ("   memory ", "$quiet"), memory)
        self.update(words, layout=False)


# Some pictures of a data set side by side
# ----------------------------------------


class SampleStrip(Widget):
    """As many pictures as fit, cut to squares of the strip's height, in half blocks.

    Args:
        ascii_only: Draw in ASCII.
    """

    def __init__(self, *, ascii_only: bool, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ascii_only = ascii_only
        self._pictures: Sequence[Image] = ()

    def show(self, pictures: "Sequence[Image]") -> None:
        """Show these pictures, RGB."""
        if pictures is not self._pictures:
            self._pictures = pictures
            self.refresh()

    def render(self) -> Content:
        """Draw as many as there is room for now."""
        width, rows = self.content_size
        shown = self._pictures[: (width + 1) // (2 * rows + 1)] if rows else ()
        ascii_only = self._ascii_only or self.app.no_color
        drawn = [_square(picture, 2 * rows, ascii_only) for picture in shown]
        return Content("\n").join(Content(" ").join(line) for line in zip(*drawn, strict=True))


def _square(picture: "Image", side: int, ascii_only: bool) -> list[Content]:
    """Return the lines of the middle of a picture, `side` cells wide and half as high."""
    from PIL import Image, ImageOps

    return half_blocks(ImageOps.fit(picture, (side, side), Image.Resampling.BOX), ascii_only=ascii_only)


# The list of settings with a search, for the picker and for a running run
# ------------------------------------------------------------------------


class SettingsPanel(Vertical):
    """Settings: all under their tables, those with some words, or only changed ones.

    Args:
        brief: Begin with the usual and the changed ones; a search and `toggle_all` show the others.
    """

    DEFAULT_CSS = """
    SettingsPanel {
        height: 1fr;
        #search { display: none; height: 1; border: none; padding: 0 2; background: $panel; }
        &.-searching #search { display: block; }
    }
    """

    class Moved(Message):
        """Another setting is under the cursor."""

    def __init__(self, *, brief: bool = False, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = ""
        self._values: Sequence[Value] = ()
        self._brief = brief
        self._only_changed = False
        self._drawn: tuple[object, ...] = ()

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
        self._title = title
        self._values = values
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

    def go_to(self, key: str) -> None:
        """Put the cursor on a setting; show all settings if it is not among those shown."""
        listed = self.query_one(KeyedList)
        if key not in [option.id for option in listed.options]:
            self._brief = self._only_changed = False
            self.end_search()
            self._draw()
        listed.focus()
        listed.highlighted = listed.get_option_index(key)

    def toggle_all(self) -> None:
        """Show all settings, or the usual and the changed ones."""
        self._brief = not self._brief
        self._only_changed = False
        self._draw()

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
        now = self._title, self._values, field.value, self._only_changed, self._brief, self.size.width
        if now == self._drawn:
            return
        self._drawn = now
        words = field.value.lower().split()
        if self._brief and not words and not self._only_changed:
            shown = usual_first(self._values)
        else:
            kept = [value for value in self._values if value.changed or not self._only_changed]
            shown = [(value.table, value) for value in kept if value.has(words)]
        # minus the frame, the padding of each line and the scroll bar
        lines = value_options(shown, self.size.width - 5)
        why = "no setting has these words: esc shows all" if words else "no setting is changed: c shows all"
        listed.replace(lines or [Option(Content.styled(why, "$quiet"), id="none.", disabled=True)])
        listed.border_title = Content(self._title)
        parts = [f"/{clean(field.value, 40)}"] if words else []
        parts += ["changed only"] if self._only_changed else []
        if len(shown) < len(self._values):
            more = " · a: all" if self._brief and not parts else ""
            parts.append(f"{len(shown)} of {len(self._values)}{more}")
        listed.border_subtitle = Content(" · ".join(parts))
        self.post_message(self.Moved())


# The three text fields of the picker: data, model and epochs
# -----------------------------------------------------------

NAMES = ("data", "model", "epochs")


class Field(Input):
    """A text field with its keys in the table of keys."""

    BINDINGS = bindings("field")

    async def action_start(self) -> None:
        """Start the run."""
        await self.run_action("screen.start")

    async def action_next(self, by: int) -> None:
        """Leave the field for the next one."""
        await self.run_action(f"screen.next({by})")


class Fields(Horizontal):
    """Data, model and epochs; each can be empty.

    Args:
        picked: Initial values.
        data: Completes names of sets and folders.
        models: Completes names of networks.
    """

    def __init__(self, picked: Picked, data: Suggester, models: Suggester) -> None:
        super().__init__()
        self._picked = picked
        self._data = data
        self._models = models

    def compose(self) -> ComposeResult:
        """Lay out the fields."""
        picked = self._picked
        hints = "(else shapes)", "(else by the data)", ""
        texts = picked.data, picked.model, picked.epochs
        for name, text, hint, suggester in zip(
            NAMES, texts, hints, (self._data, self._models, None), strict=True
        ):
            field = Field(text, placeholder=hint, id=name, compact=True, suggester=suggester)
            field.border_title = name
            yield field

    def taken_in(self, picked: Picked) -> Picked:
        """Return the selection with the values of the fields."""
        data, model, epochs = (self.query_one(f"#{name}", Input).value.strip() for name in NAMES)
        return replace(picked, model=model, data=data, epochs=epochs)

    def show_epochs(self, text: str) -> None:
        """Show the epochs of a saved profile; this doesn't count as an edit."""
        field = self.query_one("#epochs", Input)
        with field.prevent(Input.Changed):
            field.value = text

    def show_default(self, epochs: int) -> None:
        """Show the epochs that an empty field means."""
        self.query_one("#epochs", Input).placeholder = f"(else {epochs})"

    def show_faults(self, faulty: set[str]) -> None:
        """Mark the fields with a fault, and no others."""
        for name in NAMES:
            field = self.query_one(f"#{name}", Input)
            field.set_class(name in faulty, "-fault")
            field.border_title = f"✗ {name}" if name in faulty else name
