"""The dialog before a fork: the checkpoint, the settings, and what the parent does meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static
from textual.widgets.option_list import Option

from mptui.runs.listing.forks import KeptCheckpoint
from mptui.text import clean
from mptui.tui.keys import KEYS, bindings, display, keys_of
from mptui.tui.widgets.basics import Dialog, KeyedList

PARENT_DOES = {
    "pause": "pauses until the fork has ended",
    "train": "trains on beside it",
}
"""What a parent that is training does meanwhile."""


@dataclass(frozen=True, slots=True)
class ForkChoice:
    """What a person chose for a fork.

    Attributes:
        run: The parent.
        checkpoint: The checkpoint to begin with.
        profile: The profile to switch to; None: the settings of the parent.
        sets: Values of --set.
        parent_does: A key of `PARENT_DOES`.
    """

    run: Path
    checkpoint: KeptCheckpoint
    profile: str | None
    sets: tuple[str, ...]
    parent_does: str


class ForkDialog(Dialog[ForkChoice]):
    """Asks for a checkpoint, a profile and values.

    Args:
        run: The run to fork.
        checkpoints: Its checkpoints, the newest first.
        profiles: The profiles, in the order of their digits.
        training: Whether the run is training.
    """

    BINDINGS = bindings("fork")
    DEFAULT_CSS = """
    ForkDialog {
        Vertical {
            width: 70;
            padding: 0 2;
        }
        Static { height: auto; }
        KeyedList { height: auto; max-height: 6; background: $surface; }
        KeyedList, KeyedList:focus { border: none; }
        Input { background: $panel; margin: 1 0; }
    }
    """

    def __init__(
        self,
        run: Path,
        checkpoints: Sequence[KeptCheckpoint],
        profiles: Sequence[str],
        *,
        training: bool,
    ) -> None:
        super().__init__()
        self._run = run
        self._checkpoints = checkpoints
        self._profiles = profiles
        self._training = training
        self._profile: str | None = None
        self._parent_does = next(iter(PARENT_DOES)) if training else "train"

    def compose(self) -> ComposeResult:
        """Lay out the checkpoints, the choices and the keys."""
        options = [Option(_words(each), id=each.path.name) for each in self._checkpoints]
        with Vertical() as box:
            box.border_title = Content(f"fork {clean(self._run.name, 50)} at")
            box.border_subtitle = "Esc: cancel"
            yield KeyedList(*options, markup=False)
            yield Input(placeholder="other values: precision.mode=fp32 training.lr=0.05", compact=True)
            yield Static(id="choices", markup=False)
            yield Static(self._key_words(), markup=False)

    def on_mount(self) -> None:
        """Show the choices."""
        listed = self.query_one(KeyedList)
        listed.highlighted = 0
        listed.focus()
        self._show()

    def _show(self) -> None:
        rows = [("settings", f"switched to {self._profile}" if self._profile else "as they are")]
        rows += [("its parent", PARENT_DOES[self._parent_does])] if self._training else []
        lines = [Content.assemble((f"{label:<12}", "$quiet"), clean(words, 50)) for label, words in rows]
        self.query_one("#choices", Static).update(Content("\n").join(lines))

    def _key_words(self) -> Content:
        hidden = {"fork.cancel", *(() if self._training else ("fork.parent",))}
        keys = [key for key in KEYS if key.where == "fork" and key.id not in hidden]
        return Content("  ").join(
            Content.assemble(
                (display(key, keys_of(self.app)), "bold $footer-key-foreground"), (f" {key.footer}", "$quiet")
            )
            for key in keys
        )

    def action_profile(self, digit: int) -> None:
        """Choose the profile of this digit."""
        if digit <= len(self._profiles):
            self._profile = self._profiles[digit - 1]
            self._show()

    def action_same(self) -> None:
        """Choose the settings of the parent."""
        self._profile = None
        self._show()

    def action_parent(self) -> None:
        """Choose what the parent does, next."""
        if self._training:
            names = list(PARENT_DOES)
            self._parent_does = names[(names.index(self._parent_does) + 1) % len(names)]
            self._show()

    def on_input_submitted(self) -> None:
        """Fork."""
        self.action_fork()

    def action_fork(self) -> None:
        """Close with the choice."""
        checkpoint = self._checkpoints[self.query_one(KeyedList).highlighted or 0]
        sets = tuple(self.query_one(Input).value.split())
        self.dismiss(ForkChoice(self._run, checkpoint, self._profile, sets, self._parent_does))

    def action_cancel(self) -> None:
        """Close without a fork."""
        self.dismiss(None)


def _words(checkpoint: KeptCheckpoint) -> Content:
    names = " · ".join(checkpoint.names)
    return Content.assemble(f"step {checkpoint.step:>9,}  ", (names, "$quiet"))
