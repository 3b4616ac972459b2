"""A dialog that chooses the metrics to draw, with a search."""

from collections.abc import Callable, Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from mptui.tui.dialogs.dialog import Dialog
from mptui.tui.keys.bindings import bindings

_NAME = 30


class ChooseMetricsDialog(Dialog[None]):
    """Lists metrics; each chosen one is drawn at once, in the order in which they were chosen.

    Args:
        values: Metric -> its last value, as text.
        chosen: The metrics chosen so far.
        take: Receives the chosen metrics after each change.
    """

    BINDINGS = bindings("metrics")
    DEFAULT_CSS = """
    ChooseMetricsDialog {
        background: $background 50%;
        Vertical {
            width: 52;
            max-height: 100%;
            padding: 0 2;
        }
        Input { margin-bottom: 1; background: $panel; }
        OptionList {
            height: auto;
            max-height: 12;
            border: none;
            padding: 0;
            background: $surface;
            scrollbar-size: 1 1;
            & > .option-list--option-highlighted { background: $accent 25%; text-style: none; }
            &:ansi > .option-list--option-highlighted, &:nocolor > .option-list--option-highlighted {
                background: $surface;
                text-style: bold underline;
            }
        }
    }
    """

    def __init__(
        self, values: Mapping[str, str], chosen: Sequence[str], take: Callable[[list[str]], None]
    ) -> None:
        super().__init__()
        self._values, self._chosen, self._take = values, list(chosen), take

    def compose(self) -> ComposeResult:
        """Lay out the search and the list."""
        with Vertical() as box:
            box.border_title = "metrics to draw"
            box.border_subtitle = "↑↓ · Enter: show first, or not · Esc: close"
            yield Input(placeholder="search, such as: loss", compact=True)
            metrics = OptionList(markup=False)
            metrics.can_focus = False
            yield metrics

    def on_mount(self) -> None:
        """List all metrics."""
        self._list()

    def on_input_changed(self) -> None:
        """List the metrics that have all words of the search."""
        self._list()

    def on_input_submitted(self) -> None:
        """Choose the metric under the cursor."""
        self.action_choose()

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        metrics = self.query_one(OptionList)
        if metrics.option_count:
            metrics.highlighted = ((metrics.highlighted or 0) + lines) % metrics.option_count

    def action_choose(self) -> None:
        """Choose the metric under the cursor, or take it back."""
        metrics = self.query_one(OptionList)
        if metrics.highlighted is None:
            return
        name = metrics.get_option_at_index(metrics.highlighted).id or ""
        if name in self._chosen:
            self._chosen.remove(name)
        else:
            self._chosen.append(name)
        self._take(list(self._chosen))
        metrics.replace_option_prompt_at_index(metrics.highlighted, self._line(name))

    def action_close(self) -> None:
        """Close."""
        self.dismiss()

    def _list(self) -> None:
        words = self.query_one(Input).value.lower().split()
        names = [name for name in self._values if all(word in name.lower() for word in words)]
        metrics = self.query_one(OptionList)
        metrics.set_options([Option(self._line(name), id=name) for name in names])
        metrics.highlighted = 0 if names else None

    def _line(self, name: str) -> Content:
        mark = f"{self._chosen.index(name) + 1}" if name in self._chosen else " "
        return Content.assemble(
            (f"{mark:>2} ", "bold $text-accent"), name.ljust(_NAME), (self._values[name].rjust(12), "$quiet")
        )
