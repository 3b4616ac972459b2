"""Dialogs with a question that is answered by a key: quitting, stopping, discarding, deleting."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from mptui.text import clean
from mptui.tui.dialogs.dialog import Dialog
from mptui.tui.keys.bindings import KEYS, bindings, display

Answer = Literal["stop", "detach", "stay", "discard", "delete", "clean"]


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
        self._keymap, self._title, self._words, self._hidden = keymap, title, words, hidden

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
