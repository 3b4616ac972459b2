"""A walk over screens by the keys of the table, each with what it changes on the screen."""

from collections.abc import Callable, Collection
from functools import partial

from mptui.tui.keys import KEYS, BoundKey, display, heard_on
from tests.e2e.terminal import Terminal

WALKS = {
    "first screens": ("detection", "place", "newest", "picker", "field", "edit", "discard", "app"),
    "run": (
        *("switch", "undo", "settings", "stop", "leave", "fork", "live.pause", "live.profile", "live.stop"),
        *("live.checkpoint", "live.validate", "live.resume", "live.undo", "live.fork", "live.settings"),
        *("live.detach", "numerics.full"),
    ),
    "recorded run": (
        *("chart", "log", "column", "pictures", "ranks", "memory", "help"),
        *("live.page", "live.ranks", "live.advice", "live.hide", "live.numerics", "live.memory"),
        *("live.metrics", "live.log", "live.pictures", "live.log_axis", "live.smoothing", "live.closer"),
        *("live.all_values", "live.charts_later", "live.charts_earlier", "live.more_columns"),
        *("live.fewer_columns", "live.more_rows", "live.fewer_rows"),
        *("live.wider", "live.pan_earlier", "live.pan_later", "live.whole", "live.earlier", "live.later"),
        *("numerics.earlier", "numerics.later", "numerics.page_up", "numerics.page_down"),
        *("numerics.first", "numerics.last", "numerics.part", "numerics.close", "numerics.filter"),
        "numerics.previous",
        *("live.leap_earlier", "live.leap_later", "live.beginning", "live.now"),
    ),
    "runs": ("list", "runs", "compare", "delete", "clean"),
    "learn": ("learn",),
}
"""Walk -> the places of the table, or single keys, that it has to press, each by all its keys."""

Wanted = str | Callable[[], object]
"""Words on the screen, or a condition."""

_BY_ID = {key.id: key for key in KEYS}


def keys_of(walk: str) -> list[BoundKey]:
    """Return the keys that a walk has to press."""
    return [key for key in KEYS if key.where in WALKS[walk] or key.id in WALKS[walk]]


class Walk:
    """Presses keys, and knows which.

    Args:
        program: The program.
    """

    def __init__(self, program: Terminal) -> None:
        self.program = program
        self._pressed: set[tuple[str, str]] = set()

    def __call__(self, name: str, key: str, *wanted: Wanted) -> None:
        """Press a key of the table and wait for what is wanted; it must not all be there before.

        Args:
            name: Its id in the table.
            key: The key.
            wanted: What is seen once it has acted.
        """
        assert key in _BY_ID[name].keys.split(","), f"{key} is no key of {name}"
        assert not wanted or not all(map(self._holds, wanted)), (
            f"{name}: {wanted} before {key}\n{self.program.text}"
        )
        self._pressed.add((name, key))
        self.program.press(key)
        for each in wanted:
            self.program.until(partial(self._holds, each), f"{name} by {key}: {each}")

    def _holds(self, wanted: Wanted) -> bool:
        return wanted in self.program.text if isinstance(wanted, str) else bool(wanted())

    def gone(self, words: str) -> Callable[[], bool]:
        """Return the condition that words are not on the screen."""
        return lambda: words not in self.program.text

    def changed(self, line: int) -> Callable[[], bool]:
        """Return the condition that a line of the screen has other words than now."""
        before = self.program.screen.display[line]
        return lambda: self.program.screen.display[line] != before

    def recoloured(self, column: int, line: int) -> Callable[[], bool]:
        """Return the condition that a cell has other colours than now."""
        cells = self.program.screen.buffer
        before = cells[line][column]
        return lambda: cells[line][column][1:3] != before[1:3]

    def help(self, where: str, *, but: Collection[str] = ()) -> None:
        """Open the help, find every key of the screen in it, and close it.

        Args:
            where: The screen.
            but: Widgets that don't have the focus, and keys that do nothing now.
        """
        program = self.program
        keys = (key for key in heard_on(where) if not {key.where, key.id} & {*but})
        missing = {f" {display(key, {})}  {key.help}" for key in keys}
        program.press("question_mark")
        program.shows("Esc: close")

        def found(page: str | None = None) -> bool:
            missing.difference_update([words for words in missing if words in program.text])
            return not missing or page not in {None, program.text}

        while not found():
            page = program.text
            program.press("pagedown")
            program.until(partial(found, page), f"in the help: {missing}")
        program.press("escape")
        program.until(self.gone("Esc: close"), "the end of the help")

    def pressed_all(self, walk: str) -> None:
        """Check that no key of a walk was left out."""
        wanted = {(key.id, each) for key in keys_of(walk) for each in key.keys.split(",")}
        assert not (missing := sorted(wanted - self._pressed)), missing
