"""The column of panels on the right of the live screen."""

from textual.containers import Vertical

from mptui.tui.keys.bindings import bindings


class Column(Vertical):
    """Panels one below the other; where not all of them can be seen, the focus and the keys scroll it."""

    BINDINGS = bindings("column")
