"""The live screen of a run that failed before its first step."""

from textual.app import ComposeResult
from textual.containers import Center, Middle, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from mptui.events import RunFinished
from mptui.text import clean_lines


class Failure(Middle):
    """Shows error and remedy in the middle of the screen.

    Args:
        ended: The end of the run.
        leads: The keys to continue.
    """

    DEFAULT_CSS = """
    Failure {
        height: 1fr;
        VerticalScroll {
            width: 76;
            max-width: 100%;
            height: auto;
            max-height: 100%;
            padding: 1 2;
            scrollbar-size: 1 1;
            border: round $error;
            border-title-color: $text-error;
        }
        Static { height: auto; }
    }
    """

    def __init__(self, ended: RunFinished, leads: str) -> None:
        super().__init__()
        self._ended, self._leads = ended, leads

    def compose(self) -> ComposeResult:
        """Lay out the message, the hint and the keys."""
        ended = self._ended
        blocks = [
            Content.styled(clean_lines(ended.message or ended.status), "bold"),
            Content(clean_lines(ended.hint)),
            Content.styled(self._leads, "$quiet"),
        ]
        with Center(), VerticalScroll() as box:
            box.border_title = "✗ the run did not start"
            yield Static(Content("\n\n").join(block for block in blocks if block), markup=False)
