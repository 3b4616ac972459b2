"""The three text fields of the picker: model, data and epochs."""

from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.suggester import Suggester
from textual.widgets import Input

from mptui.tui.setup.selection import Picked

NAMES = ("model", "data", "epochs")


class Fields(Horizontal):
    """Model, data and epochs; each can be empty.

    Args:
        picked: Initial values.
        models: Completes names of networks.
        data: Completes names of sets and folders.
    """

    def __init__(self, picked: Picked, models: Suggester, data: Suggester) -> None:
        super().__init__()
        self._picked, self._models, self._data = picked, models, data

    def compose(self) -> ComposeResult:
        """Lay out the fields."""
        picked = self._picked
        hints = "by the data", "shapes, set, folder", "profile's"
        texts = picked.model, picked.data, picked.epochs
        for name, text, hint, suggester in zip(
            NAMES, texts, hints, (self._models, self._data, None), strict=True
        ):
            field = Input(text, placeholder=hint, id=name, compact=True, suggester=suggester)
            field.border_title = name
            yield field

    def taken_in(self, picked: Picked) -> Picked:
        """Return the selection with the values of the fields."""
        model, data, epochs = (self.query_one(f"#{name}", Input).value.strip() for name in NAMES)
        return replace(picked, model=model, data=data, epochs=epochs)

    def show_epochs(self, text: str) -> None:
        """Show the epochs of a saved profile; this doesn't count as an edit."""
        field = self.query_one("#epochs", Input)
        with field.prevent(Input.Changed):
            field.value = text

    def show_faults(self, faulty: set[str]) -> None:
        """Mark the fields with a fault, and no others."""
        for name in NAMES:
            field = self.query_one(f"#{name}", Input)
            field.set_class(name in faulty, "-fault")
            field.border_title = f"✗ {name}" if name in faulty else name
