"""Dialogs that ask: yes or no, a text, a setting."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from mptui.config.keys import SETTINGS
from mptui.config.resolve import read_value
from mptui.runs.planning.profile_diff import SwitchPrediction
from mptui.text import clean, clean_lines
from mptui.tui.keys import KEYS, BoundKey, bindings, display
from mptui.tui.selection import Value, explained
from mptui.tui.widgets.basics import Dialog

if TYPE_CHECKING:
    from mptui.engine.optim.schedule import RateChange


# Dialogs with a question that is answered by a key: quitting, stopping, discarding, deleting
# -------------------------------------------------------------------------------------------

Answer = Literal["stop", "detach", "stay", "undo", "discard", "delete", "clean"]


class Choices(Dialog[Answer]):
    """A title, an explanation, and a line for each key of `where`.

    Args:
        keymap: The user's keys.
        title: The question.
        words: The explanation; "" if the choices suffice.
        hidden: Ids of keys that don't apply now.
    """

    where: ClassVar[str] = ""
    DEFAULT_CSS = """
    Choices {
        Vertical {
            width: 62;
            padding: 1 2;
        }
        #words { padding-bottom: 1; color: $quiet; }
    }
    """

    def __init__(
        self, keymap: Mapping[str, str], title: str, words: str = "", *, hidden: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self._keymap = keymap
        self._title = title
        self._words = words
        self._hidden = hidden

    def compose(self) -> ComposeResult:
        """Lay out the explanation and the choices."""
        choices = [
            Content.assemble(
                (f"{display(key, self._keymap):>20}", "bold $footer-key-foreground"), f"  {key.help}"
            )
            for key in KEYS
            if key.where == self.where and key.id not in self._hidden
        ]
        with Vertical() as box:
            box.border_title = Content(self._title)
            if self._words:
                yield Static(Content(clean(self._words, 300)), id="words", markup=False)
            yield Static(Content("\n").join(choices), markup=False)

    def action_answer(self, answer: Answer) -> None:
        """Close with this answer."""
        if f"{self.where}.{answer}" not in self._hidden:
            self.dismiss(answer)


class LeaveDialog(Choices):
    """Asks what to do with a running run when its screen is closed."""

    where = "leave"
    BINDINGS = bindings("leave")


class StopDialog(Choices):
    """Asks whether to stop a run."""

    where = "stop"
    BINDINGS = bindings("stop")


class UndoDialog(Choices):
    """Asks whether to undo a switch."""

    where = "undo"
    BINDINGS = bindings("undo")


class DiscardDialog(Choices):
    """Asks whether to discard edits."""

    where = "discard"
    BINDINGS = bindings("discard")


class DeleteDialog(Choices):
    """Asks whether to delete runs."""

    where = "delete"
    BINDINGS = bindings("delete")


class CleanDialog(Choices):
    """Asks whether to remove checkpoints."""

    where = "clean"
    BINDINGS = bindings("clean")


# A dialog for a line of text, checked while it is typed
# ------------------------------------------------------

Fault = str | None


class AskDialog(Dialog[None]):
    """Asks for one text; closes when the text is accepted.

    Args:
        title: Title of the dialog.
        explanation: Meaning of the text, in one or more lines.
        text: Initial text.
        check: Returns the fault of a text, at each key.
        on_answer: Accepts the text, or returns why it can't.
        suggestions: Completions.
    """

    BINDINGS = bindings("edit")
    DEFAULT_CSS = """
    AskDialog {
        Vertical {
            width: 64;
            padding: 1 2;
        }
        Static { height: auto; }
        Input { margin: 1 0; background: $panel; }
        #fault { color: $text-error; min-height: 1; }
    }
    """

    def __init__(
        self,
        title: str,
        explanation: str,
        text: str,
        *,
        check: Callable[[str], Fault],
        on_answer: Callable[[str], Fault],
        suggestions: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._title = clean(title, 60)
        self._explanation = explanation
        self._text = text
        self._check = check
        self._on_answer = on_answer
        self._suggestions = suggestions

    def compose(self) -> ComposeResult:
        """Lay out the explanation, the text field, and the fault."""
        with Vertical() as box:
            box.border_title = Content(self._title)
            box.border_subtitle = "Enter: apply · Esc: cancel"
            yield Static(Content(self._explanation), markup=False)
            suggester = SuggestFromList(self._suggestions) if self._suggestions else None
            yield Input(self._text, compact=True, suggester=suggester)
            yield Static(id="fault", markup=False)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Check the text."""
        self._show_fault(None if event.value == self._text else self._check(event.value))

    def on_input_submitted(self) -> None:
        """Accept the text."""
        self.action_take()

    def action_take(self) -> None:
        """Accept the text if it is valid."""
        fault = self._on_answer(self.query_one(Input).value)
        if fault is None:
            self.dismiss()
        else:
            self._show_fault(fault)

    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss()

    def _show_fault(self, fault: Fault) -> None:
        self.query_one("#fault", Static).update(Content(clean_lines(fault or "", 300)))


# A dialog for the value of a setting
# -----------------------------------


class SettingDialog(AskDialog):
    """Asks for another value of a setting.

    Args:
        value: The setting.
        source: What its value now is from.
        on_answer: Accepts a text for a key, or returns why it can't.
    """

    def __init__(self, value: Value, source: str, on_answer: Callable[[str, str], Fault]) -> None:
        setting = SETTINGS[value.key]
        super().__init__(
            value.key,
            explained(value, source),
            value.value,
            check=lambda text: read_value(setting, text)[1],
            on_answer=lambda text: on_answer(value.key, text),
            suggestions=setting.choices or setting.examples,
        )


# The dialog before a switch of profiles: settings that change, and settings that can't
# -------------------------------------------------------------------------------------

SHOWN = 6
"""Number of settings shown one per line; further ones are only named."""

_KEY = 28
_OF_THE_RATE = {
    "training.lr",
    "training.lr_scaling",
    "training.lr_batch_size",
    "training.batch_size",
    "training.accumulate",
}
"""Settings that determine the effective rate and batch, which are shown instead."""

_PRESETS = next(key for key in KEYS if key.id == "live.profile")


def _digits() -> list[BindingType]:
    """Return the bindings of the profiles' digits, with the ids that the user's keymap uses."""
    return [
        Binding(each, f"preset({n})", show=False, id=f"{_PRESETS.id}.{n}")
        for n, each in enumerate(_PRESETS.keys.split(","), 1)
    ]


class SwitchProfileDialog(Dialog[int]):
    """Shows one profile; closes with the digit of the profile to switch to or to show next, 0 for none.

    Args:
        digit: Digit of the profile.
        name: Name of the profile.
        prediction: Predicted effect of the switch.
        keymap: The user's keys.
    """

    BINDINGS = bindings("switch") + _digits()
    DEFAULT_CSS = """
    SwitchProfileDialog {
        align: center bottom;
        background: $background 40%;
        VerticalScroll {
            width: 76;
            max-height: 100%;
            padding: 0 2;
            margin-bottom: 1;
        }
        Static { height: auto; }
    }
    """

    def __init__(
        self, digit: int, name: str, prediction: SwitchPrediction, keymap: Mapping[str, str]
    ) -> None:
        super().__init__()
        self.digit = digit
        self._preset = name
        self._prediction = prediction
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        """Lay out the settings that change, those that don't, and the keys, which are always there."""
        with VerticalScroll(can_focus=False) as box:
            box.border_title = Content(clean(f"switch to {self._preset}?", 60))
            keys = [self._said(key) for key in KEYS if key.where == "switch"]
            box.border_subtitle = Content("   ").join(keys)
            yield Static(Content("\n").join(self._lines()), markup=False)

    def _lines(self) -> list[Content]:
        kept, changes = self._prediction.kept, self._prediction.changes
        name = clean(self._preset, 24)
        lines = [Content.styled("can't change during a run; unchanged", "$text-warning")] if kept else []
        if (rate := self._prediction.rate) is not None:
            changes = {key: values for key, values in changes.items() if key not in _OF_THE_RATE}
            changes = {**_effective(rate), **changes}
        room = min(_KEY, 2 + max(map(len, [*kept, *changes]), default=0))
        lines += _settings(kept, room, lambda had, wanted: f"{had}  ({name} has {wanted})")
        lines.append(Content.styled("at the next step" if changes else "nothing changes", "$text-accent"))
        lines += _settings(changes, room, lambda had, wanted: f"{had} → {wanted}")
        return lines

    def _said(self, key: BoundKey) -> Content:
        return Content.assemble(
            (display(key, self._keymap), "bold $footer-key-foreground"), (f" {key.help}", "$quiet")
        )

    def action_take(self) -> None:
        """Switch to the profile."""
        self.dismiss(self.digit)

    def action_preset(self, digit: int) -> None:
        """Show another profile; the digit of this one switches to it."""
        self.dismiss(digit)

    def action_stay(self) -> None:
        """Cancel."""
        self.dismiss(0)


def _effective(rate: "RateChange") -> dict[str, list[str]]:
    """Return the effective rate and batch, now and after the switch."""
    effective = {
        "effective lr": [f"{lr:.3g}" for lr in rate.lr],
        "effective batch": [f"{n:,}" for n in rate.batch],
    }
    if rate.ramp_steps:
        effective["effective lr"][1] += f" within {rate.ramp_steps} steps"
    return {name: values for name, values in effective.items() if values[0] != values[1]}


def _settings(changes: Mapping[str, list[str]], room: int, words: Callable[[str, str], str]) -> list[Content]:
    """Lay out one line per setting, its name in `room` cells; those beyond `SHOWN` are named together."""
    lines = [
        Content.assemble((f"  {key:<{room}}", "$quiet"), clean(words(*values), 80))
        for key, values in list(changes.items())[:SHOWN]
    ]
    more = list(changes)[SHOWN:]
    return lines + ([Content.styled(f"  and {', '.join(more)}", "$quiet")] if more else [])
