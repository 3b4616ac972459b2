"""The table of all keys, from which bindings, footer, help and palette are built."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingType
from textual.keys import format_key

MODAL = {"leave", "stop", "discard", "help", "edit", "switch", "delete", "clean", "fork", "metrics"}
"""Dialogs, which receive only their own keys."""

PARTS_OF = {
    "live": ("chart", "log", "column"),
    "picker": ("list",),
    "settings": ("list",),
    "runs": ("list",),
    "compare": ("list", "chart"),
    "fork": ("list",),
    "learn": ("chart",),
}
"""Widgets of a screen with their own keys while focused."""


@dataclass(frozen=True, slots=True)
class Key:
    """An action of the user by key.

    `id` is `<where>.<what>`. `keys` are separated by commas. `{n}` in the action is the position of the key
    among them. `footer` is the word in the bottom line; without it, the key is listed only in the help.
    `when` is the state of the run in which the bottom line shows the key; several: it has several ranks, or
    the machine several devices; spare: in any, where the keys of the screen leave room.
    """

    id: str
    keys: str
    action: str
    help: str
    footer: str = ""
    display: str = ""
    palette: bool = True
    when: Literal["always", "going", "ended", "several", "spare"] = "always"

    @property
    def where(self) -> str:
        """The screen or widget of the key, or `app`."""
        return self.id.split(".", 1)[0]


KEYS: tuple[Key, ...] = (
    Key("detection.choose", "enter", "choose", "choose a profile for this device", "choose a profile"),
    Key("detection.mark", "space", "mark", "mark: the run goes to all marked", "mark", when="several"),
    Key(
        "detection.earlier",
        "up,k",
        "step(-1)",
        "previous device",
        "device",
        display="up/down",
        palette=False,
        when="several",
    ),
    Key("detection.later", "down,j,tab", "step(1)", "next device", palette=False),
    Key("detection.again", "r", "look_again", "detect the devices again", "rescan"),
    Key("picker.start", "enter", "start", "start the run", "start"),
    Key(
        "picker.profile",
        "1,2,3,4,5,6,7,8,9",
        "profile({n})",
        "choose this profile",
        "profile",
        display="1-9",
        palette=False,
    ),
    Key("picker.edit", "e", "edit", "edit the value under the cursor", "edit"),
    Key("picker.next", "tab", "app.focus_next", "settings, then model, data, epochs", "model, data"),
    Key("picker.previous", "shift+tab", "app.focus_previous", "previous field", palette=False),
    Key("picker.filter", "slash", "filter", "only settings with these words", "search"),
    Key("picker.fill", "f", "fill", "the batch that fills free memory", "fill"),
    Key("picker.save", "w", "save", "save as a profile", "save"),
    Key("picker.changed", "c", "changed", "only changed settings, or all", "changed"),
    Key("list.up", "up", "cursor_up", "previous line", palette=False),
    Key("list.down", "down", "cursor_down", "next line", palette=False),
    Key("list.page_up", "pageup", "page_up", "previous page", palette=False),
    Key("list.page_down", "pagedown", "page_down", "next page", palette=False),
    Key("list.first", "home", "first", "first line", palette=False),
    Key("list.last", "end", "last", "last line", palette=False),
    Key("live.pause", "space", "pause", "pause or continue", "pause", when="going"),
    Key(
        "live.preset",
        "1,2,3,4,5,6,7,8,9",
        "preset({n})",
        "switch to this profile",
        "profile",
        display="1-9",
        palette=False,
        when="going",
    ),
    Key("live.page", "tab", "next_page", "next panel", "panels"),
    Key("live.ranks", "g", "ranks", "ranks: the processes of the run", "ranks", when="several"),
    Key("live.stop", "x", "stop", "save and stop; twice: don't ask", "stop", when="going"),
    Key("live.checkpoint", "c", "command('checkpoint')", "save a checkpoint now", "checkpoint", when="going"),
    Key(
        "live.validate",
        "v",
        "command('validate')",
        "validate now",
        "validate",
        when="going",
    ),
    Key(
        "live.resume",
        "r",
        "resume_run",
        "resume an ended run",
        "resume",
        when="ended",
    ),
    Key("live.advice", "a", "take_alert", "take what the alert shown offers", when="going"),
    Key("live.hide", "h", "hide_alert", "hide the alert shown"),
    Key("live.undo", "u", "command('undo')", "undo the last switch", "undo", when="going"),
    Key("live.fork", "f", "app.fork", "fork: another run from a checkpoint", "fork"),
    Key("live.settings", "e", "settings", "settings: find one, change it", "settings", when="going"),
    Key("live.numerics", "n", "numerics", "numerics by layer", "numerics"),
    Key("live.memory", "m", "memory", "memory: predicted and measured", "memory"),
    Key("live.detach", "d", "detach", "detach: train in the background", "detach", when="going"),
    Key("live.metrics", "slash", "metrics", "choose the metrics to draw", "metrics"),
    Key("live.log", "l", "log", "full log, or back to the charts", "log"),
    Key("live.pictures", "i", "pictures", "images: predicted, or made", "images"),
    Key("live.log_axis", "y", "log_axis", "logarithmic value axis", "log axis"),
    Key("live.smoothing", "s", "smoothing", "smooth noisy curves, or not", "smooth"),
    Key("live.closer", "plus,equals_sign", "zoom(True)", "fewer steps in the charts", "zoom", display="+/-"),
    Key("live.wider", "minus", "zoom(False)", "more steps in the charts"),
    Key("live.pan_earlier", "less_than_sign,comma", "pan(-0.5)", "earlier steps, after a zoom"),
    Key("live.pan_later", "greater_than_sign,full_stop", "pan(0.5)", "later steps, after a zoom"),
    Key("live.whole", "0", "whole", "all steps in the charts"),
    Key("live.earlier", "left", "move(-1)", "back in time by a column", "back in time"),
    Key("live.later", "right", "move(1)", "forward in time by a column"),
    Key("live.leap_earlier", "pageup", "leap(-1)", "back in time by a tenth of the run"),
    Key("live.leap_later", "pagedown", "leap(1)", "forward by a tenth of the run"),
    Key("live.beginning", "home", "beginning", "the beginning of the run"),
    Key("live.now", "end", "now", "the run now"),
    Key("chart.earlier", "left", "cursor(-1)", "cursor one column to the left", palette=False),
    Key("chart.later", "right", "cursor(1)", "cursor one column to the right", palette=False),
    Key("log.earlier", "up,pageup", "scroll_log(3)", "earlier lines of the log", palette=False),
    Key("log.later", "down,pagedown", "scroll_log(-3)", "later lines of the log", palette=False),
    Key("column.earlier", "up,pageup", "page_up", "panels above", palette=False),
    Key("column.later", "down,pagedown", "page_down", "panels below", palette=False),
    Key(
        "numerics.earlier", "up,k", "choose(-1)", "previous layer", "layer", display="up/down", palette=False
    ),
    Key("numerics.later", "down,j", "choose(1)", "next layer", palette=False),
    Key("numerics.part", "tab", "part", "outputs, gradients, weights or all", "part"),
    Key("numerics.full", "f", "full", "probe all values, or stop that", "full"),
    Key("numerics.close", "n", "app.back", "back to the charts", "charts", palette=False),
    Key("pictures.next", "tab", "turn(1)", "worst, random, by class, confusion", "next tab"),
    Key("pictures.previous", "shift+tab", "turn(-1)", "previous tab", palette=False),
    Key("pictures.earlier", "up,k", "scroll(-1)", "a row up", "scroll", display="up/down", palette=False),
    Key("pictures.later", "down,j", "scroll(1)", "a row down", palette=False),
    Key("pictures.page_up", "pageup", "scroll(-8)", "eight rows up", palette=False),
    Key("pictures.page_down", "pagedown", "scroll(8)", "eight rows down", palette=False),
    Key("pictures.close", "i", "app.back", "back to the charts", "charts", palette=False),
    Key("ranks.earlier", "up,k", "scroll(-1)", "one rank up", "scroll", display="up/down", palette=False),
    Key("ranks.later", "down,j", "scroll(1)", "one rank down", palette=False),
    Key("ranks.page_up", "pageup", "scroll(-8)", "eight ranks up", palette=False),
    Key("ranks.page_down", "pagedown", "scroll(8)", "eight ranks down", palette=False),
    Key("ranks.sort", "s", "sort", "sort by the next column", "sort"),
    Key("ranks.close", "g", "app.back", "back to the charts", "charts", palette=False),
    Key(
        "learn.exercise",
        "1,2,3,4,5,6",
        "exercise({n})",
        "choose this exercise",
        "exercise",
        display="1-6",
        palette=False,
    ),
    Key("learn.more", "up,k", "move(1)", "raise the number or scale; scroll", "move", display="up/down"),
    Key("learn.less", "down,j", "move(-1)", "lower the number or scale; scroll", palette=False),
    Key("learn.page_up", "pageup", "scroll(-1)", "lines above", palette=False),
    Key("learn.page_down", "pagedown", "scroll(1)", "lines below", palette=False),
    Key("learn.number", "e", "number", "formats: type a number", "number"),
    Key("learn.model", "m", "model", "choose the network", "model"),
    Key("learn.precision", "p", "precision", "autocast: bf16 or fp16", "format"),
    Key("learn.rules", "g", "rules", "autocast: rules of a GPU or of a CPU", "GPU/CPU"),
    Key("learn.again", "r", "again", "run the exercise again", "again"),
    Key("runs.open", "enter", "open", "show this run on the live screen", "open"),
    Key("runs.mark", "space", "mark", "mark: compare up to eight", "mark"),
    Key("runs.compare", "c", "compare", "compare the marked, or with the next", "compare"),
    Key("runs.resume", "r", "resume", "resume this run", "resume"),
    Key("runs.fork", "f", "app.fork", "fork: another run from a checkpoint", "fork"),
    Key("runs.filter", "slash", "filter", "only runs with these words", "filter"),
    Key("runs.sort", "s", "sort", "next order of the list", "sort"),
    Key("runs.rename", "n", "rename", "rename this run", "rename"),
    Key("runs.delete", "x", "delete", "delete the marked, or this run", "delete"),
    Key("runs.clean", "p", "clean", "remove checkpoints to free space", "free space"),
    Key("compare.metric", "m", "metric", "next curve", "curve"),
    Key("compare.focus", "tab", "app.focus_next", "chart, then differences", "panels"),
    Key("compare.log_axis", "y", "log_axis", "logarithmic value axis", "log axis"),
    Key("compare.smoothing", "s", "smoothing", "smooth the curves", "smooth"),
    Key("compare.close", "c", "app.back", "back to the runs", palette=False),
    Key("delete.delete", "x", "answer('delete')", "delete for good", palette=False),
    Key("delete.stay", "escape,backspace", "answer('stay')", "keep", palette=False),
    Key("clean.clean", "p,enter", "answer('clean')", "remove these checkpoints", palette=False),
    Key("clean.stay", "escape,backspace", "answer('stay')", "keep", palette=False),
    Key("fork.fork", "enter", "fork", "fork", "fork", palette=False),
    Key(
        "fork.profile",
        "1,2,3,4,5,6,7,8,9",
        "profile({n})",
        "switch to this profile",
        "profile",
        display="1-9",
        palette=False,
    ),
    Key("fork.same", "0", "same", "the settings of its parent", "same", palette=False),
    Key("fork.parent", "p", "parent", "what its parent does meanwhile", "parent", palette=False),
    Key("fork.next", "tab", "app.focus_next", "checkpoints, then values", "values", palette=False),
    Key("fork.cancel", "escape", "cancel", "cancel", palette=False),
    Key("app.runs", "o", "app.runs", "other runs: open, compare, clean up", "runs", when="spare"),
    Key("settings.edit", "e,enter", "edit", "change the value under the cursor", "change"),
    Key("settings.filter", "slash", "filter", "only settings with these words", "search"),
    Key("settings.changed", "c", "changed", "only changed settings, or all", "changed"),
    Key("memory.close", "m", "app.back", "back to the charts", "charts", palette=False),
    Key("app.help", "question_mark", "app.help", "all keys of this screen", "help"),
    Key("app.palette", "ctrl+p", "app.command_palette", "find a command by its name", palette=False),
    Key("app.suspend", "ctrl+z", "app.suspend_process", "suspend mptui and its run", palette=False),
    Key("app.share", "S", "app.share", "write this screen as SVG and PNG"),
    Key("app.theme", "ctrl+t", "app.next_theme", "next theme"),
    Key("leave.stop", "x", "answer('stop')", "save, stop and quit", palette=False),
    Key("leave.detach", "d", "answer('detach')", "detach: train in the background", palette=False),
    Key("leave.stay", "escape,backspace", "answer('stay')", "stay", palette=False),
    Key("stop.stop", "x,enter", "answer('stop')", "save and stop", palette=False),
    Key("stop.stay", "escape,backspace", "answer('stay')", "keep training", palette=False),
    Key("discard.discard", "q,enter", "answer('discard')", "discard the edits", palette=False),
    Key("discard.stay", "escape,backspace", "answer('stay')", "stay", palette=False),
    Key("switch.take", "enter", "take", "switch (or its digit)", palette=False),
    Key("switch.stay", "escape,backspace", "stay", "stay", palette=False),
    Key("metrics.choose", "enter", "choose", "draw this metric first, or not", palette=False),
    Key("metrics.up", "up", "move(-1)", "metric above", palette=False),
    Key("metrics.down", "down", "move(1)", "metric below", palette=False),
    Key("metrics.close", "escape", "close", "close", palette=False),
    Key("edit.take", "enter", "take", "apply", palette=False),
    Key("edit.cancel", "escape", "cancel", "cancel", palette=False),
    Key("help.close", "escape,backspace,q,question_mark", "close", "close", palette=False),
    Key("app.back", "escape,backspace", "app.back", "back", palette=False),
    Key("app.leave", "q,ctrl+q,ctrl+c", "app.leave", "leave", "leave"),
)


def bindings(where: str, keys: Iterable[Key] = KEYS) -> list[BindingType]:
    """Return Textual's bindings of a screen, a widget, or `app`."""
    return [binding for key in keys if key.where == where for binding in _bound(key)]


def _bound(key: Key) -> list[Binding]:
    if "{n}" not in key.action:
        return [Binding(key.keys, key.action, key.help, show=False, id=key.id)]
    return [
        Binding(each, key.action.format(n=n), key.help, show=False, id=f"{key.id}.{n}")
        for n, each in enumerate(key.keys.split(","), 1)
    ]


def display(key: Key, keymap: Mapping[str, str]) -> str:
    """Return the keys as text: `space`, `1-9`, `escape / backspace`."""
    if key.display and key.id not in keymap:
        return key.display
    keys = keymap.get(key.id, key.keys).split(",")
    names = dict.fromkeys(_key_name(name) for name in keys)
    return " / ".join(names)


def _key_name(key: str) -> str:
    *modifiers, name = key.split("+")
    return "+".join([*modifiers, name if name in {"escape", "backspace", "enter"} else format_key(name)])


def heard_on(where: str) -> list[Key]:
    """Return the keys that work on a screen: its own, those of its widgets, and global ones."""
    places = (where, *PARTS_OF.get(where, ()), *(() if where in MODAL else ("app",)))
    return [key for place in places for key in KEYS if key.where == place]
