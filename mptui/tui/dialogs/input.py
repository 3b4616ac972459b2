"""A dialog for a line of text, checked while it is typed."""

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from mptui.text import clean, clean_lines
from mptui.tui.dialogs.dialog import Dialog
from mptui.tui.keys.bindings import bindings

Fault = str | None


class AskDialog(Dialog[None]):
    """Asks for one text; closes when the text is accepted.

    Args:
        title: Title of the dialog.
        explanation: Meaning of the text, in one or more lines.
        text: Initial text.
        check: Returns the fault of a text, at each key.
        take: Accepts the text, or returns why it can't.
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
        take: Callable[[str], Fault],
        suggestions: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._title, self._explanation, self._text = clean(title, 60), explanation, text
        self._check, self._take = check, take
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
        self._say(None if event.value == self._text else self._check(event.value))

    def on_input_submitted(self) -> None:
        """Accept the text."""
        self.action_take()

    def action_take(self) -> None:
        """Accept the text if it is valid."""
        fault = self._take(self.query_one(Input).value)
        if fault is None:
            self.dismiss()
        else:
            self._say(fault)

    def action_cancel(self) -> None:
        """Cancel."""
        self.dismiss()

    def _say(self, fault: Fault) -> None:
        self.query_one("#fault", Static).update(Content(clean_lines(fault or "", 300)))
