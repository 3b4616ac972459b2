"""The column of panels on the right of the live screen."""

from textual.containers import Vertical

from mptui.tui.keys.bindings import bindings


class Column(Vertical):
    """Panels one below the other; if they don't fit, the focus and the keys scroll them."""

    BINDINGS = bindings("column")
