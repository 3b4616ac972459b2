"""The question before leaving a run that still goes."""

from typing import Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from mptui.tui.keys import KEYS, bindings, display

Answer = Literal["stop", "detach", "stay"]


class LeaveDialog(ModalScreen[Answer]):
    """Asks what becomes of the run.

    Args:
        keymap: The person's own keys.
        can_detach: Whether the run can go on without a screen; the choice is offered only then.
    """

    BINDINGS = bindings("leave")
    DEFAULT_CSS = """
    LeaveDialog {
        align: center middle;
        background: $background 70%;
        Vertical {
            width: 62;
            max-width: 100%;
            height: auto;
            padding: 1 2;
            background: $surface;
            border: round $accent;
            border-title-color: $text-accent;
        }
    }
    """

    def __init__(self, keymap: dict[str, str], *, can_detach: bool) -> None:
        super().__init__()
        self._keymap = keymap
        self._can_detach = can_detach

    def compose(self) -> ComposeResult:
        """Name each choice by its key."""
        choices = [
            Content.assemble(
                (f"{display(key, self._keymap):>20}", "bold $footer-key-foreground"), f"  {key.help}"
            )
            for key in KEYS
            if key.where == "leave" and (key.id != "leave.detach" or self._can_detach)
        ]
        with Vertical() as box:
            box.border_title = "the run still goes"
            yield Static(Content("\n").join(choices), markup=False)

    def action_stop(self) -> None:
        """Stop and save, then leave."""
        self.dismiss("stop")

    def action_detach(self) -> None:
        """Leave the run to itself."""
        if self._can_detach:
            self.dismiss("detach")

    def action_stay(self) -> None:
        """Stay."""
        self.dismiss("stay")
