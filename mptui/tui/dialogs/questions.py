"""The dialog before a switch of profiles: settings that change, and settings that can't."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from mptui.runs.planning.profile_diff import SwitchPrediction
from mptui.text import clean
from mptui.tui.dialogs.dialog import Dialog
from mptui.tui.keys.bindings import KEYS, Key, bindings, display

if TYPE_CHECKING:
    from mptui.engine.optim.lr_schedule import RateChange

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

_PRESETS = next(key for key in KEYS if key.id == "live.preset")


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
        self._preset, self._prediction, self._keymap = name, prediction, keymap

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
        room = min(_KEY, 2 + max(map(len, [*kept, *self._prediction.changes]), default=0))
        lines += _settings(kept, room, lambda had, wanted: f"{had}  ({name} has {wanted})")
        if (rate := self._prediction.rate) is not None:
            changes = {key: values for key, values in changes.items() if key not in _OF_THE_RATE}
            changes = {**_effective(rate), **changes}
        lines.append(Content.styled("at the next step" if changes else "nothing changes", "$text-accent"))
        lines += _settings(changes, room, lambda had, wanted: f"{had} → {wanted}")
        return lines

    def _said(self, key: Key) -> Content:
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
