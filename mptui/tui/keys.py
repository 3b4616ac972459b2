"""The table of all keys, from which bindings, footer, help and palette are built; a keymap of one's own."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import tomli
from textual.app import App
from textual.binding import Binding, BindingType
from textual.events import Event, Key, Paste
from textual.keys import Keys, format_key
from textual.message import Message
from textual.widgets import Input

from mptui.io.files import read_regular
from mptui.registry.commands import COMMANDS
from mptui.text import clean

# The table of all keys, from which bindings, footer, help and palette are built
# ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A screen, a dialog, or a widget with its own keys while it is focused.

    Attributes:
        title: Its heading on the page of keys.
        words: What keys are said to be for that are pressed where they do nothing; "": they are not.
        parts: Widgets of the screen that are places, too.
        is_dialog: Whether it receives only its own keys.
        focused: Its heading in the help of a screen; "": that of the screen.
    """

    title: str
    words: str = ""
    parts: tuple[str, ...] = ()
    is_dialog: bool = False
    focused: str = ""


PLACES: dict[str, Place] = {
    "live": Place(title="The run", words="a run", parts=("chart", "log", "column")),
    "chart": Place(title="Focused chart", focused="focused chart"),
    "log": Place(title="Focused log", focused="focused log"),
    "column": Place(title="Focused panels on the right", focused="focused panels"),
    "runs": Place(title="The runs", words="the list of runs", parts=("list",)),
    "picker": Place(title="The profiles", words="the profiles", parts=("field", "list")),
    "field": Place(title="A text field"),
    "edit": Place(title="Editing a value", is_dialog=True),
    "compare": Place(title="Comparing runs", words="a comparison", parts=("list", "chart")),
    "fork": Place(title="Forking a run", parts=("list",), is_dialog=True),
    "detection": Place(title="The devices", words="the devices", parts=("place", "newest", "list")),
    "place": Place(title="The data on the first screen"),
    "newest": Place(title="The newest runs on the first screen"),
    "numerics": Place(title="Numerics", words="the numerics"),
    "pictures": Place(title="Pictures", words="the pictures"),
    "ranks": Place(title="The ranks", words="the ranks"),
    "memory": Place(title="Memory"),
    "settings": Place(title="The settings of a run", words="the settings of a run", parts=("list",)),
    "learn": Place(title="The exercises", words="the exercises", parts=("chart",)),
    "list": Place(title="Focused list", words="a list", focused="focused list"),
    "delete": Place(title="Confirming that runs are deleted", is_dialog=True),
    "clean": Place(title="Confirming that checkpoints are removed", is_dialog=True),
    "leave": Place(title="Quitting while a run is training", is_dialog=True),
    "stop": Place(title="Confirming a stop", is_dialog=True),
    "discard": Place(title="Confirming that edits are discarded", is_dialog=True),
    "undo": Place(title="Confirming an undo", is_dialog=True),
    "switch": Place(title="Switching to another profile", is_dialog=True),
    "help": Place(title="Help", is_dialog=True),
    "app": Place(title="All screens", focused="everywhere"),
}
"""Name (before the dot of a key's id) -> place, in the order of the page of keys."""


@dataclass(frozen=True, slots=True)
class BoundKey:
    """An action of the user by key.

    `id` is `<where>.<what>`. `keys` are separated by commas. `{n}` in the action is the position of the key
    among them. `footer` is the word in the bottom line; without it, the key is listed only in the help.
    `display` stands for the keys in the bottom line, also for those of the actions beside it.
    `when` is the state of the run in which the key does something; several: it has several ranks, or the
    machine several devices; alert: one is shown; typing: a text field has the focus, which takes letters for
    itself; listed: a list beside other things has the focus; spare: in any, where the keys of the screen
    leave room in the bottom line.
    """

    id: str
    keys: str
    action: str
    help: str
    footer: str = ""
    display: str = ""
    palette: bool = True
    when: Literal["always", "going", "ended", "several", "switched", "alert", "spare", "typing", "listed"] = (
        "always"
    )

    @property
    def where(self) -> str:
        """The screen or widget of the key, or `app`."""
        return self.id.split(".", 1)[0]


_ALL = 1_000_000
"""More lines than any list has."""


def command_keys() -> Iterator[BoundKey]:
    """Yield the keys of the live screen that send a command without a question."""
    for name, spec in COMMANDS.items():
        if spec.key:
            yield BoundKey(f"live.{name}", spec.key, f"command('{name}')", spec.help, name, when="going")


KEYS: tuple[BoundKey, ...] = (
    BoundKey("detection.choose", "enter", "choose", "settings of a run on this device", "settings"),
    BoundKey("detection.next", "tab", "next(1)", "data, recent runs, devices", "data, runs"),
    BoundKey("detection.previous", "shift+tab", "next(-1)", "the other way round", palette=False),
    BoundKey("detection.mark", "space", "mark", "mark: the run goes to all marked", "mark", when="several"),
    BoundKey(
        "detection.earlier",
        "up,k",
        "step(-1)",
        "previous device",
        "device",
        display="up/down",
        palette=False,
        when="several",
    ),
    BoundKey("detection.later", "down,j", "step(1)", "next device", palette=False, when="several"),
    BoundKey("detection.first", "home,g", f"step({-_ALL})", "first device", palette=False, when="several"),
    BoundKey("detection.last", "end,G", f"step({_ALL})", "last device", palette=False, when="several"),
    BoundKey("detection.demo", "d", "demo", "demo: train on built-in shapes now", "demo"),
    BoundKey("detection.learn", "l", "app.learn", "learn mixed precision by exercises", "learn"),
    BoundKey("detection.again", "r", "look_again", "detect the devices again", "rescan"),
    BoundKey(
        "place.go",
        "enter",
        "choose",
        "settings of a run on this data",
        "settings of a run on it",
        when="typing",
    ),
    BoundKey("place.next", "tab", "next(1)", "the recent runs", "runs", when="typing"),
    BoundKey("place.leave", "escape", "app.back", "the devices", "leave it", when="typing"),
    BoundKey("newest.open", "enter", "open_run", "show this run on the live screen", "open", when="listed"),
    BoundKey("newest.next", "tab", "next(1)", "the devices", "devices", when="listed"),
    BoundKey("picker.start", "enter", "start", "start the run", "start"),
    BoundKey(
        "picker.profile",
        "1,2,3,4,5,6,7,8,9",
        "profile({n})",
        "choose this profile",
        "profile",
        display="1-9",
        palette=False,
    ),
    BoundKey("picker.edit", "e", "edit", "edit the value under the cursor", "edit"),
    BoundKey("picker.next", "tab", "next(1)", "data, model, epochs, then settings", "data, model"),
    BoundKey("picker.previous", "shift+tab", "next(-1)", "previous field", palette=False),
    BoundKey("picker.filter", "slash", "filter", "only settings with these words", "search"),
    BoundKey("picker.fill", "f", "fill", "the batch that fills free memory", "fill"),
    BoundKey("picker.save", "w", "save", "save as a profile", "save"),
    BoundKey("picker.all", "a", "all", "all settings, or the usual ones", "all"),
    BoundKey("picker.changed", "c", "changed", "only changed settings, or all", "changed"),
    BoundKey("field.start", "enter", "start", "start the run", "start", when="typing"),
    BoundKey("field.next", "tab", "next(1)", "next field", "next", when="typing"),
    BoundKey("field.leave", "escape", "app.back", "leave the field", "leave it", when="typing"),
    BoundKey("list.up", "up,k", "cursor_up", "previous line", palette=False),
    BoundKey("list.down", "down,j", "cursor_down", "next line", palette=False),
    BoundKey("list.page_up", "pageup", "page_up", "previous page", palette=False),
    BoundKey("list.page_down", "pagedown", "page_down", "next page", palette=False),
    BoundKey("list.first", "home,g", "first", "first line", palette=False),
    BoundKey("list.last", "end,G", "last", "last line", palette=False),
    BoundKey("list.next", "n", "next(1)", "next match of a search", palette=False),
    BoundKey("list.previous", "N", "next(-1)", "previous match of a search", palette=False),
    BoundKey("live.pause", "space", "pause", "pause or continue", "pause", when="going"),
    BoundKey(
        "live.profile",
        "1,2,3,4,5,6,7,8,9",
        "preset({n})",
        "switch to this profile",
        "profile",
        display="1-9",
        palette=False,
        when="going",
    ),
    BoundKey("live.page", "tab", "next_page", "next panel", "panels"),
    BoundKey("live.ranks", "R", "ranks", "ranks: the processes of the run", "ranks", when="several"),
    BoundKey("live.stop", "x", "stop", "save and stop; twice: don't ask", "stop", when="going"),
    *command_keys(),
    BoundKey(
        "live.resume",
        "r",
        "resume_run",
        "resume an ended run",
        "resume",
        when="ended",
    ),
    BoundKey("live.advice", "a", "take_alert", "take what the alert shown offers", when="alert"),
    BoundKey("live.hide", "h", "hide_alert", "hide the alert shown", when="alert"),
    BoundKey("live.undo", "u", "undo", "undo the last switch, or that undo", "undo", when="switched"),
    BoundKey("live.fork", "f", "app.fork", "fork: another run from a checkpoint", "fork"),
    BoundKey("live.settings", "e", "settings", "settings: find one, change it", "settings", when="going"),
    BoundKey("live.numerics", "n", "numerics", "numerics by layer", "numerics"),
    BoundKey("live.memory", "m", "memory", "memory: predicted and measured", "memory"),
    BoundKey("live.detach", "d", "detach", "detach: train in the background", "detach", when="going"),
    BoundKey("live.metrics", "slash", "metrics", "charts of metrics with these names", "metrics"),
    BoundKey("live.charts_later", "right_parenthesis", "charts_page(1)", "next page of charts"),
    BoundKey("live.charts_earlier", "left_parenthesis", "charts_page(-1)", "previous page of charts"),
    BoundKey("live.more_columns", "right_square_bracket", "grid(0, 1)", "more columns of charts"),
    BoundKey("live.fewer_columns", "left_square_bracket", "grid(0, -1)", "fewer columns, or as it fits"),
    BoundKey("live.more_rows", "right_curly_bracket", "grid(1, 0)", "more rows of charts"),
    BoundKey("live.fewer_rows", "left_curly_bracket", "grid(-1, 0)", "fewer rows, or as it fits"),
    BoundKey("live.log", "l", "log", "full log, or back to the charts", "log"),
    BoundKey("live.pictures", "i", "pictures", "images: predicted, or made", "images"),
    BoundKey("live.log_axis", "y", "log_axis", "logarithmic value axis", "log axis"),
    BoundKey("live.all_values", "z", "all_values", "all values on the axes, or fitted", "fit axes"),
    BoundKey("live.smoothing", "s", "smoothing", "smooth noisy curves, or not", "smooth"),
    BoundKey(
        "live.closer", "plus,equals_sign", "zoom(True)", "fewer steps in the charts", "zoom", display="+/-"
    ),
    BoundKey("live.wider", "minus", "zoom(False)", "more steps in the charts"),
    BoundKey("live.pan_earlier", "less_than_sign,comma", "pan(-0.5)", "earlier steps, after a zoom"),
    BoundKey("live.pan_later", "greater_than_sign,full_stop", "pan(0.5)", "later steps, after a zoom"),
    BoundKey("live.whole", "0", "whole", "all steps in the charts"),
    BoundKey("live.earlier", "left", "move(-1)", "back in time by a column", "back in time"),
    BoundKey("live.later", "right", "move(1)", "forward in time by a column"),
    BoundKey("live.leap_earlier", "pageup", "leap(-1)", "back in time by a tenth of the run"),
    BoundKey("live.leap_later", "pagedown", "leap(1)", "forward by a tenth of the run"),
    BoundKey("live.beginning", "home,g", "beginning", "the beginning of the run"),
    BoundKey("live.now", "end,G", "now", "the run now"),
    BoundKey("chart.earlier", "left", "cursor(-1)", "cursor one column to the left", palette=False),
    BoundKey("chart.later", "right", "cursor(1)", "cursor one column to the right", palette=False),
    BoundKey("log.earlier", "up,k,pageup", "scroll_log(3)", "earlier lines of the log", palette=False),
    BoundKey("log.later", "down,j,pagedown", "scroll_log(-3)", "later lines of the log", palette=False),
    BoundKey("log.first", "home,g", f"scroll_log({_ALL})", "first line of the log", palette=False),
    BoundKey("log.last", "end,G", f"scroll_log({-_ALL})", "last line of the log", palette=False),
    BoundKey("column.earlier", "up,k,pageup", "page_up", "panels above", palette=False),
    BoundKey("column.later", "down,j,pagedown", "page_down", "panels below", palette=False),
    BoundKey("column.first", "home,g", "scroll_home", "first panel", palette=False),
    BoundKey("column.last", "end,G", "scroll_end", "last panel", palette=False),
    BoundKey(
        "numerics.earlier", "up,k", "choose(-1)", "previous layer", "layer", display="up/down", palette=False
    ),
    BoundKey("numerics.later", "down,j", "choose(1)", "next layer", palette=False),
    BoundKey("numerics.page_up", "pageup", "choose(-8)", "eight layers up", palette=False),
    BoundKey("numerics.page_down", "pagedown", "choose(8)", "eight layers down", palette=False),
    BoundKey("numerics.first", "home,g", f"choose({-_ALL})", "first layer", palette=False),
    BoundKey("numerics.last", "end,G", f"choose({_ALL})", "last layer", palette=False),
    BoundKey("numerics.part", "tab", "part", "outputs, gradients, weights or all", "part"),
    BoundKey("numerics.full", "f", "full", "probe all values, or stop that", "full"),
    BoundKey("numerics.filter", "slash", "filter", "only layers with these words", "search"),
    BoundKey("numerics.previous", "N", "match(-1)", "previous match of a search", palette=False),
    BoundKey("numerics.close", "n", "close", "back to the charts; next of a search", "charts", palette=False),
    BoundKey("pictures.open", "enter", "open", "one image large, its masks, all", "large"),
    BoundKey("pictures.copy", "c", "copy_name", "copy the name of the image's file", "copy name"),
    BoundKey("pictures.next", "tab", "turn(1)", "worst, random, by class, confusion", "next tab"),
    BoundKey("pictures.previous", "shift+tab", "turn(-1)", "previous tab", palette=False),
    BoundKey("pictures.earlier", "up,k", "scroll(-1)", "a row up", "choose", display="arrows", palette=False),
    BoundKey("pictures.later", "down,j", "scroll(1)", "a row down", palette=False),
    BoundKey("pictures.left", "left", "choose(-1)", "the image before", palette=False),
    BoundKey("pictures.right", "right", "choose(1)", "the next image", palette=False),
    BoundKey("pictures.page_up", "pageup", "scroll(-8)", "eight rows up", palette=False),
    BoundKey("pictures.page_down", "pagedown", "scroll(8)", "eight rows down", palette=False),
    BoundKey("pictures.first", "home,g", "scroll(-9999)", "the first row", palette=False),
    BoundKey("pictures.last", "end,G", "scroll(9999)", "the last row", palette=False),
    BoundKey("pictures.filter", "slash", "filter", "only images with these words", "search"),
    BoundKey("pictures.match", "n", "match(1)", "next match of a search", palette=False),
    BoundKey("pictures.match_before", "N", "match(-1)", "previous match of a search", palette=False),
    BoundKey("pictures.close", "i", "app.back", "back to the charts", "charts", palette=False),
    BoundKey(
        "ranks.earlier", "up,k", "scroll(-1)", "one rank up", "scroll", display="up/down", palette=False
    ),
    BoundKey("ranks.later", "down,j", "scroll(1)", "one rank down", palette=False),
    BoundKey("ranks.page_up", "pageup", "scroll(-8)", "eight ranks up", palette=False),
    BoundKey("ranks.page_down", "pagedown", "scroll(8)", "eight ranks down", palette=False),
    BoundKey("ranks.first", "home,g", f"scroll({-_ALL})", "first rank", palette=False),
    BoundKey("ranks.last", "end,G", f"scroll({_ALL})", "last rank", palette=False),
    BoundKey("ranks.sort", "s", "sort", "sort by the next column", "sort"),
    BoundKey("ranks.filter", "slash", "filter", "only ranks with these words", "search"),
    BoundKey("ranks.match", "n", "match(1)", "next match of a search", palette=False),
    BoundKey("ranks.match_before", "N", "match(-1)", "previous match of a search", palette=False),
    BoundKey("ranks.close", "R", "app.back", "back to the charts", "charts", palette=False),
    BoundKey(
        "learn.exercise",
        "1,2,3,4,5,6",
        "exercise({n})",
        "choose this exercise",
        "exercise",
        display="1-6",
        palette=False,
    ),
    BoundKey("learn.more", "up,k", "move(1)", "raise the number or scale; scroll", "move", display="up/down"),
    BoundKey("learn.less", "down,j", "move(-1)", "lower the number or scale; scroll", palette=False),
    BoundKey("learn.page_up", "pageup", "scroll(-1)", "lines above", palette=False),
    BoundKey("learn.page_down", "pagedown", "scroll(1)", "lines below", palette=False),
    BoundKey("learn.first", "home,g", f"scroll({-_ALL})", "first line", palette=False),
    BoundKey("learn.last", "end,G", f"scroll({_ALL})", "last line", palette=False),
    BoundKey("learn.number", "e", "number", "formats: type a number", "number"),
    BoundKey("learn.model", "m", "model", "choose the network", "model"),
    BoundKey("learn.precision", "p", "precision", "autocast: bf16 or fp16", "format"),
    BoundKey("learn.rules", "u", "rules", "autocast: rules of a GPU or of a CPU", "GPU/CPU"),
    BoundKey("learn.again", "r", "again", "run the exercise again", "again"),
    BoundKey("runs.open", "enter", "open", "show this run on the live screen", "open"),
    BoundKey("runs.mark", "space", "mark", "mark: compare up to eight", "mark"),
    BoundKey("runs.compare", "c", "compare", "compare the marked with this run", "compare"),
    BoundKey("runs.pin", "t", "pin", "behind the live charts, or not", "behind"),
    BoundKey("runs.resume", "r", "resume", "resume this run", "resume"),
    BoundKey("runs.fork", "f", "app.fork", "fork: another run from a checkpoint", "fork"),
    BoundKey("runs.filter", "slash", "filter", "only runs with these words", "filter"),
    BoundKey("runs.sort", "s", "sort", "next order of the list", "sort"),
    BoundKey("runs.rename", "e", "rename", "rename this run", "rename"),
    BoundKey("runs.delete", "x", "delete", "delete the marked, or this run", "delete"),
    BoundKey("runs.clean", "p", "clean", "remove checkpoints to free space", "free space"),
    BoundKey("compare.metric", "m", "metric", "next curve", "curve"),
    BoundKey("compare.filter", "slash", "filter", "only lines with these words", "search"),
    BoundKey("compare.focus", "tab", "app.focus_next", "chart, then differences", "panels"),
    BoundKey("compare.log_axis", "y", "log_axis", "logarithmic value axis", "log axis"),
    BoundKey("compare.all_values", "z", "all_values", "all values on the axis, or fitted", "fit axis"),
    BoundKey("compare.smoothing", "s", "smoothing", "smooth the curves", "smooth"),
    BoundKey("compare.first", "home,g", "end(-1)", "first step of the curves", palette=False),
    BoundKey("compare.last", "end,G", "end(1)", "last step of the curves", palette=False),
    BoundKey("compare.close", "c", "app.back", "back to the runs", palette=False),
    BoundKey("delete.delete", "x", "answer('delete')", "delete for good", palette=False),
    BoundKey("delete.stay", "escape,backspace", "answer('stay')", "keep", palette=False),
    BoundKey("clean.clean", "p,enter", "answer('clean')", "remove these checkpoints", palette=False),
    BoundKey("clean.stay", "escape,backspace", "answer('stay')", "keep", palette=False),
    BoundKey("fork.fork", "enter", "fork", "fork", "fork", palette=False),
    BoundKey(
        "fork.profile",
        "1,2,3,4,5,6,7,8,9",
        "profile({n})",
        "switch to this profile",
        "profile",
        display="1-9",
        palette=False,
    ),
    BoundKey("fork.same", "0", "same", "the settings of its parent", "same", palette=False),
    BoundKey("fork.parent", "p", "parent", "what its parent does meanwhile", "parent", palette=False),
    BoundKey("fork.next", "tab", "app.focus_next", "checkpoints, then values", "values", palette=False),
    BoundKey("fork.cancel", "escape", "cancel", "cancel", palette=False),
    BoundKey("app.runs", "o", "app.runs", "other runs: open, compare, clean up", "runs", when="spare"),
    BoundKey("settings.edit", "e,enter", "edit", "change the value under the cursor", "change"),
    BoundKey("settings.filter", "slash", "filter", "only settings with these words", "search"),
    BoundKey("settings.changed", "c", "changed", "only changed settings, or all", "changed"),
    BoundKey("memory.close", "m", "app.back", "back to the charts", "charts", palette=False),
    BoundKey("app.help", "question_mark,f1", "app.help", "all keys of this screen", "help"),
    BoundKey(
        "app.palette", "ctrl+p,colon", "app.command_palette", "find a command by its name", palette=False
    ),
    BoundKey("app.suspend", "ctrl+z", "app.suspend_process", "suspend mptui and its run", palette=False),
    BoundKey("app.share", "S", "app.share", "write this screen as SVG and PNG"),
    BoundKey("app.theme", "ctrl+t", "app.next_theme", "next theme"),
    BoundKey("leave.stop", "x", "answer('stop')", "save, stop and quit", palette=False),
    BoundKey("leave.detach", "d", "answer('detach')", "detach: train in the background", palette=False),
    BoundKey("leave.stay", "escape,backspace", "answer('stay')", "stay", palette=False),
    BoundKey("stop.stop", "x,enter", "answer('stop')", "save and stop", palette=False),
    BoundKey("stop.stay", "escape,backspace", "answer('stay')", "keep training", palette=False),
    BoundKey("undo.undo", "u,enter", "answer('undo')", "go back", palette=False),
    BoundKey("undo.stay", "escape,backspace", "answer('stay')", "keep training", palette=False),
    BoundKey("discard.discard", "q,enter", "answer('discard')", "discard the edits", palette=False),
    BoundKey("discard.stay", "escape,backspace", "answer('stay')", "stay", palette=False),
    BoundKey("switch.take", "enter", "take", "switch (or its digit)", palette=False),
    BoundKey("switch.stay", "escape,backspace", "stay", "stay", palette=False),
    BoundKey("edit.take", "enter", "take", "apply", palette=False),
    BoundKey("edit.cancel", "escape", "cancel", "cancel", palette=False),
    BoundKey("help.close", "escape,backspace,q,question_mark,f1", "close", "close", palette=False),
    BoundKey("app.back", "escape,backspace", "app.back", "back", palette=False),
    BoundKey("app.leave", "q,ctrl+q,ctrl+c", "app.leave", "leave", "leave"),
)


def bindings(where: str, keys: Iterable[BoundKey] = KEYS) -> list[BindingType]:
    """Return Textual's bindings of a screen, a widget, or `app`."""
    return [binding for key in keys if key.where == where for binding in _bound(key)]


def _bound(key: BoundKey) -> list[Binding]:
    if "{n}" not in key.action:
        return [Binding(key.keys, key.action, key.help, show=False, id=key.id)]
    return [
        Binding(each, key.action.format(n=n), key.help, show=False, id=f"{key.id}.{n}")
        for n, each in enumerate(key.keys.split(","), 1)
    ]


def display(key: BoundKey, keymap: Mapping[str, str]) -> str:
    """Return the keys as text: `space`, `1-9`, `escape / backspace`."""
    if "{n}" in key.action and key.display and key.id not in keymap:
        return key.display
    keys = keymap.get(key.id, key.keys).split(",")
    names = dict.fromkeys(_key_name(name) for name in keys)
    return " / ".join(names)


def display_in_line(key: BoundKey, keymap: Mapping[str, str]) -> str:
    """Return the key as the bottom line has it: the first, or what stands for several actions (`up/down`)."""
    if key.display and key.id not in keymap:
        return key.display
    return display(key, keymap).split(" / ")[0]


def _key_name(key: str) -> str:
    *modifiers, name = key.split("+")
    return "+".join([*modifiers, name if name in {"escape", "backspace", "enter"} else format_key(name)])


def elsewhere(key: str, keymap: Mapping[str, str]) -> str:
    """Say of a key that does nothing on a screen where it does something."""
    for name, place in PLACES.items():
        for bound in KEYS if place.words else ():
            if bound.where == name and key in keymap.get(bound.id, bound.keys).split(","):
                return f"{format_key(key)} does nothing here; in {place.words}: {bound.help}"
    return f"{format_key(key)} does nothing here; the keys that do are under ?"


def is_letter(key: str) -> bool:
    """Whether a key is a character that a text field takes."""
    name = format_key(key)
    return key == "space" or (len(name) == 1 and name.isascii())


def works(key: BoundKey, states: Collection[str]) -> bool:
    """Whether a key does something in these states of a run; the global ones do in any."""
    return key.when in states or key.when == "spare" or (key.where, key.when) == ("app", "always")


def heard_on(where: str) -> list[BoundKey]:
    """Return the keys that work on a screen: its own, those of its widgets, and global ones."""
    names = dict.fromkeys((where, *PLACES[where].parts, *(() if PLACES[where].is_dialog else ("app",))))
    return [key for name in names for key in KEYS if key.where == name]


# The user's keys, from `keys.toml` in the configuration folder
# -------------------------------------------------------------
#     [live]
#     pause = "p"
#     checkpoint = "ctrl+s,c"
#
# Invalid entries are ignored with a warning.

FILE_NAME = "keys.toml"
_LARGEST = 1 << 20
ALWAYS = {
    "app.back": "escape",
    "app.leave": "ctrl+c",
    "leave.stay": "escape",
    "stop.stay": "escape",
    "discard.stay": "escape",
    "switch.stay": "escape",
    "edit.cancel": "escape",
    "help.close": "escape",
}
"""Keys that can't be remapped, so that quitting is always possible."""

_NAMED = {key.value for key in Keys} | {"question_mark", "slash", "comma", "full_stop", "minus", "plus"}
_KEY = re.compile(r"(?:(?:ctrl|shift|alt)\+)*(.+)")
_BY_ID = {key.id: key for key in KEYS}
_RENAMED = {"live.preset": "live.profile", "field.done": "field.start"}
"""Names of earlier versions."""


@dataclass(slots=True)
class Keymap:
    """The user's keys by id, and warnings about the file."""

    keys: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def bindings(self) -> dict[str, str]:
        """Return the keymap in Textual's form: one entry per binding."""
        entries: dict[str, str] = {}
        for name, keys in self.keys.items():
            if "{n}" in _BY_ID[name].action:
                entries |= {f"{name}.{n}": each for n, each in enumerate(keys.split(","), 1)}
            else:
                entries[name] = keys
        return entries


def keys_of(app: App[Any]) -> Mapping[str, str]:
    """Return the user's keys in one of our apps."""
    keymap: Keymap = app.keymap  # type: ignore[attr-defined]
    return keymap.keys


def load_keymap(folder: Path) -> Keymap:
    """Read `keys.toml` in `folder`; without a file the keymap is empty."""
    keymap = Keymap()
    path = folder / FILE_NAME
    try:
        document = tomli.loads(read_regular(path, _LARGEST).decode())
    except FileNotFoundError:
        return keymap
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        keymap.warnings.append(clean(f"{path}: {error}"))
        return keymap
    for name, value in _entries(document):
        fault = _fault(name, value, keymap.keys)
        if fault is None:
            kept = ALWAYS.get(name)
            keys = [key.strip() for key in value.split(",")]
            keymap.keys[name] = ",".join(keys if kept is None or kept in keys else [*keys, kept])
        else:
            keymap.warnings.append(clean(f"{path}: {name}: {fault}"))
    return keymap


def _entries(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for where, table in document.items():
        if isinstance(table, dict):
            names = ((f"{where}.{what}", value) for what, value in table.items())
            yield from ((_RENAMED.get(name, name), value) for name, value in names)
        else:
            yield where, table


def _fault(name: str, value: object, chosen: Mapping[str, str]) -> str | None:
    key = _BY_ID.get(name)
    if key is None:
        near = get_close_matches(name, _BY_ID, n=1)
        return f"unknown action; did you mean {near[0]}?" if near else "unknown action"
    if not isinstance(value, str) or not value.strip():
        return 'the value must be keys as text, such as "p" or "ctrl+s,c"'
    for each in value.split(","):
        if not _is_key(each.strip()):
            return f'"{each.strip()}" is not a key'
        if (taken := _taken(each.strip(), key, chosen)) is not None:
            return f'"{each.strip()}" is already {taken.id} ({taken.help})'
    return None


def _is_key(name: str) -> bool:
    match = _KEY.fullmatch(name)
    if match is None:
        return False
    return name in _NAMED or match[1] in _NAMED or (len(match[1]) == 1 and match[1].isprintable())


def _taken(name: str, key: BoundKey, chosen: Mapping[str, str]) -> BoundKey | None:
    """Return another action of this key where `key` works."""
    for other in KEYS:
        if other.id != key.id and _overlap(key.where, other.where):
            keys = chosen.get(other.id, other.keys).split(",")
            if name in keys:
                return other
    return None


def _overlap(one: str, other: str) -> bool:
    """Whether keys of these two places are active at the same time."""
    return one == other or any({one, other} <= {key.where for key in heard_on(where)} for where in PLACES)


# Handles keys one after another, each after the effect of the previous one
# -------------------------------------------------------------------------
# A slow connection delivers several keys in one packet. Textual sends each to the currently focused widget,
# before the first one has had its effect: in `tab 4`, the digit goes into the text field that tab leaves.
# Here, a key waits until the previous one is handled, and until what it has asked for is there: in `f
# enter`, the checkpoints of a run are read before the dialog of the fork opens, and `enter` is for the
# dialog.

KEYS_WAIT = "keys wait"
"""Beginning of the groups of workers that prepare what the next key is for, such as a dialog."""

PATIENCE_S = 1.0
"""Seconds after which an unhandled key, whose widget is gone, no longer delays others."""

PREPARATION_S = 5.0
"""Seconds after which a worker that prepares something no longer delays keys: a disk can hang."""

_LOOK_S = 0.02


class KeyHandled(Message):
    """The key before this message has passed all its widgets; `also_effect`: and what it has posted, too."""

    def __init__(self, *, also_effect: bool = False) -> None:
        super().__init__()
        self.also_effect = also_effect


class KeyQueue:
    """Passes keys and pasted text to an app one at a time.

    Args:
        app: The app, which calls `key_handled` for each `KeyHandled` that it receives.
        hand_over: Passes an event to the app.
    """

    def __init__(self, app: App[str], hand_over: Callable[[Event], Awaitable[None]]) -> None:
        self._app = app
        self._hand_over = hand_over
        self._waiting: deque[Key | Paste] = deque()
        self._busy_since: float | None = None
        self._look_again: asyncio.TimerHandle | None = None
        self._writes = False

    async def handle(self, event: Key | Paste) -> None:
        """Pass `event` on, or queue it until the previous ones are handled."""
        self._waiting.append(event)
        if self._busy_since is None:
            await self._next()
        elif self._look_again is None:
            self._look_later(max(0.0, PATIENCE_S - self._busy_s))

    async def key_handled(self, message: KeyHandled) -> None:
        """Pass the next event on, after the effect of the last one."""
        is_done = message.also_effect or (self._writes and isinstance(self._app.focused, Input))
        if is_done:
            await self._next()
        else:
            self._follow_effect()

    def _follow_effect(self) -> None:
        """Go through the widgets once more, behind what an action has posted, such as `Input.Submitted`."""
        if not self._app.screen_stack:
            return  # the app ends
        again = KeyHandled(also_effect=True)
        if self._app.focused is None or not self._app.focused.post_message(again):
            self._app.screen.post_message(again)

    async def _next(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
        if self._is_preparing():
            self._look_later(_LOOK_S)
            return
        self._busy_since = time.monotonic() if self._waiting else None
        if not self._waiting:
            return
        event = self._waiting.popleft()
        target = self._app.focused or self._app.screen
        self._writes = isinstance(event, Paste) or event.is_printable
        await self._hand_over(event)
        # it follows the key through the same widgets
        if not target.post_message(KeyHandled()):
            await self._next()
        elif self._waiting and self._look_again is None:
            self._look_later(PATIENCE_S)

    def _look_later(self, seconds: float) -> None:
        """Go on then, though nothing may tell that the last key is handled: its widget may be gone."""
        self._look_again = asyncio.get_running_loop().call_later(seconds, self._follow_effect)

    @property
    def _busy_s(self) -> float:
        """Seconds since the last key was passed on."""
        return 0.0 if self._busy_since is None else time.monotonic() - self._busy_since

    def _is_preparing(self) -> bool:
        """Whether what the last key has asked for is not there yet."""
        if self._busy_since is None or self._busy_s > PREPARATION_S:
            return False
        return any(
            worker.group.startswith(KEYS_WAIT) and not worker.is_finished for worker in self._app.workers
        )
