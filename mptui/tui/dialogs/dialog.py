"""The frame that all dialogs have."""

from typing import TypeVar

from textual.screen import ModalScreen

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """A box over the screen; a subclass yields it as its first container, and gives its width and padding."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 70%;
        & > Vertical, & > VerticalScroll {
            max-width: 100%;
            height: auto;
            background: $surface;
            border: round $accent;
            border-title-color: $text-accent;
            border-subtitle-color: $quiet;
            scrollbar-size: 1 1;
        }
    }
    """
