"""The screen of pictures: validation samples with their predictions, confusions, generated images."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Static
from typing_extensions import override

from mptui import text as fmt
from mptui.events import ImagesGenerated
from mptui.runs.store.pictures import PictureRecord
from mptui.runs.view.run_view import RunView
from mptui.text import clean
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.screens.page import SearchedPage, SearchField, TooSmall, ViewPage
from mptui.tui.widgets.basics import KeyBar, Lines, Panel
from mptui.tui.widgets.header import Header
from mptui.tui.widgets.panels import ImagesPanel
from mptui.tui.widgets.samples import LoadedPictures, SamplesPanel
from mptui.tui.work import in_background

# The screen of pictures: what the network predicts of validation images, or what it has made
# -------------------------------------------------------------------------------------------

_CONFUSION, _MADE = "confusion", "images made"


class PicturesScreen(SearchedPage, ViewPage):
    """Shows the pictures of the last validation, or of that before the moment which the timeline shows.

    Args:
        view: The view of the run, updated by the live screen below.
        run: Directory of the run; None: that of its journal.
        ascii_only: Draw in ASCII.
    """

    where = "pictures"
    BINDINGS = bindings("pictures")
    DEFAULT_CSS = """
    PicturesScreen {
        #tabs { height: 1; padding: 0 2; text-wrap: nowrap; }
        ImagesPanel { height: 1fr; }
    }
    """

    def __init__(self, view: RunView, run: Path | None, *, ascii_only: bool) -> None:
        super().__init__(view)
        self._run = run
        self._ascii_only = ascii_only
        self._asked: ImagesGenerated | None = None
        self._tab = self._chosen = ""
        self._loaded: LoadedPictures | None = None
        self._words: list[str] = []

    def compose(self) -> ComposeResult:
        """Lay out the tabs, their panels, of which one is shown, and the keys."""
        yield Header()
        yield Static(id="tabs", markup=False)
        yield SamplesPanel(self._ascii_only, id="samples")
        yield ConfusionPanel(id="confusion")
        yield ImagesPanel(self._ascii_only)
        yield SearchField("words of a class or of a file's name")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    @property
    def _samples(self) -> SamplesPanel:
        return self.query_one(SamplesPanel)

    def show(self) -> None:
        """Show the view; read the files of its pictures if they are others than before."""
        event = self._view.pictures
        if event is None:
            self._samples.missing = (
                "no pictures yet: each validation makes them; v on the live screen validates now"
            )
        elif event != self._asked:
            self._asked = event
            self._load(event)
        self._lay_out()
        super().show()

    @work(exclusive=True, group=KEYS_WAIT)
    async def _load(self, event: ImagesGenerated) -> None:
        started = self._view.started
        run = self._run or Path("" if started is None else started.directory)
        loaded = await in_background(lambda: LoadedPictures.of(run, event.path)) if event.path else None
        with suppress(NoMatches):  # the screen was closed
            self._loaded = loaded
            self._samples.missing = (
                f"the pictures of epoch {event.epoch} are not on disk (logging.pictures keeps some)"
            )
            self._choose_matching()
            self.query_one(ConfusionPanel).record = None if loaded is None else loaded.record
            self._lay_out()
            super().show()

    def searched(self, words: list[str]) -> None:
        """Show the samples with these words."""
        self._words = words
        self._choose_matching()
        self._lay_out()
        super().show()

    def _choose_matching(self) -> None:
        """Give the panel the samples with the words of the search."""
        loaded = self._loaded
        if loaded is not None and self._words:
            loaded = loaded.having(self._words)
            self._samples.missing = "no image has these words: esc shows all"
        self._samples.loaded = loaded

    def go_to_match(self, way: int) -> None:
        """Choose the next sample."""
        self.action_choose(way)

    def _lay_out(self) -> None:
        """Show the panel of the chosen tab; while it is not there, of the one before, else of the first."""
        tabs = self._tabs()
        tab = next((tab for tab in (self._chosen, self._tab, *tabs) if tab in tabs), "")
        if tab != self._tab:
            self._tab = tab
            self._samples.choose(tab)
        self._samples.display = tab not in {_CONFUSION, _MADE}
        self.query_one(ConfusionPanel).display = tab == _CONFUSION
        self.query_one(ImagesPanel).display = tab == _MADE
        names = (Content.styled(f" {name} ", "reverse" if name == tab else "$quiet") for name in tabs)
        searched = (f"   /{clean(' '.join(self._words), 40)}" * bool(self._words), "$quiet")
        told = Content.assemble(Content(" ").join(names), searched)
        self.query_one("#tabs", Static).update(told, layout=False)

    def _tabs(self) -> list[str]:
        loaded = self._loaded
        tabs = [] if loaded is None else [name for name, them in loaded.record.groups.items() if them]
        if loaded is not None and loaded.record.confusion is not None:
            tabs.append(_CONFUSION)
        return [*tabs, _MADE] if self._view.images is not None else tabs

    def action_turn(self, tabs: int) -> None:
        """Show another tab."""
        there = self._tabs()
        if there:
            self._tab = self._chosen = (
                there[(there.index(self._tab) + tabs) % len(there)] if self._tab in there else there[0]
            )
            self._samples.choose(self._tab)
            self.show()

    @override
    def wheel(self, lines: int) -> None:
        self.action_scroll(lines)

    def action_scroll(self, rows: int) -> None:
        """Go up or down by so many rows of samples, or lines of the matrix."""
        panel = self.query_one(ConfusionPanel) if self._tab == _CONFUSION else self._samples
        panel.scroll_rows(rows)
        self.show()

    def action_choose(self, samples: int) -> None:
        """Choose another sample of the row, or the one before or after it."""
        self._samples.move(samples)
        self.show()

    def action_open(self) -> None:
        """Show the chosen sample large, or all again."""
        if self._samples.display:
            self._samples.open()
            self.show()

    def action_copy_name(self) -> None:
        """Give the terminal's clipboard the name of the chosen sample's file."""
        sample = self._samples.chosen if self._samples.display else None
        if sample is not None:
            self.app.copy_to_clipboard(sample.file)
            self.notify(f"{sample.file} is in the clipboard, if the terminal allows it", markup=False)

    def back(self) -> None:
        """Return from a large sample to all, end the search, or close."""
        if self._samples.large:
            self._samples.close()
            self.show()
        elif not self.end_search():
            super().back()


# The panel of the confusion matrix: in full for few classes, else the pairs that are confused most
# -------------------------------------------------------------------------------------------------

MOST_IN_FULL = 30
"""Largest number of classes whose matrix is shown in full, where it fits."""

_NAME = 16
_EXACT = 10_000
"""Counts from here on are abbreviated."""
_MUCH, _SOME = 0.1, 0.02
"""Shares of a true class that are marked."""


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A confusion matrix by its cells that are not 0, as `PictureRecord.confusion`."""

    classes: list[str]
    cells: list[list[int]]

    @property
    def of_true(self) -> dict[int, int]:
        """The samples of each class that is there."""
        sums: dict[int, int] = {}
        for true, _, count in self.cells:
            sums[true] = sums.get(true, 0) + count
        return sums


class ConfusionPanel(Panel):
    """Shows which classes are taken for which.

    Attributes:
        record: What a validation has kept; None: nothing.
    """

    DEFAULT_CSS = "ConfusionPanel { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("confusion", id=id)
        self.record: PictureRecord | None = None
        self._first = 0

    def scroll_rows(self, rows: int) -> None:
        """Scroll by so many lines."""
        self._first = max(0, self._first + rows)

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the matrix if it fits, else the pairs; scrolled."""
        record = self.record
        if record is None or record.confusion is None:
            return [Content.styled("no confusion matrix was kept", "$quiet")]
        matrix = _Matrix(record.classes, record.confusion)
        head, rows = self._full(matrix, width) or self._pairs(matrix, width)
        self.retitle(f"confusion · rows are true classes · epoch {record.epoch}")
        self._first = max(0, min(self._first, len(rows) + 1 - self.content_size.height))
        return [head, *rows[self._first :]]

    def _full(self, matrix: _Matrix, width: int) -> tuple[Content, list[Content]] | None:
        """Return the heading and the rows of the whole matrix; None if it is too large.

        Columns have the names of their classes where they all fit, else their numbers.
        """
        classes, sums = len(matrix.classes), matrix.of_true
        counts = {(true, predicted): count for true, predicted, count in matrix.cells}
        cell = 1 + max([3, *(len(_count(count)) for count in counts.values())])
        titles = [str(number) for number in range(classes)]
        longest = 1 + max((cell_len(clean(name)) for name in matrix.classes), default=0)
        if 4 + _NAME + classes * max(cell, longest) <= width:
            cell, titles = max(cell, longest), [clean(name) for name in matrix.classes]
        if classes > MOST_IN_FULL or 4 + _NAME + classes * cell > width:
            return None
        head = " " * (4 + _NAME) + "".join(" " * (cell - cell_len(title)) + title for title in titles)
        rows = [
            Content.assemble(
                (f"{true:>3} ", "$quiet"),
                f"{clean(name, _NAME - 1):<{_NAME}}",
                *(
                    _cell(counts.get((true, other), 0), sums.get(true, 0), other == true, cell)
                    for other in range(classes)
                ),
            )
            for true, name in enumerate(matrix.classes)
        ]
        return Content.styled(head, "$quiet"), rows

    def _pairs(self, matrix: _Matrix, width: int) -> tuple[Content, list[Content]]:
        """Return the heading and the pairs of classes that are confused, the most frequent first."""
        sums, name = matrix.of_true, max(8, min(40, (width - 24) // 2))
        rows = [
            Content.assemble(
                f"{clean(matrix.classes[true], name - 1):<{name}}",
                f"{clean(matrix.classes[other], name - 1):<{name}}",
                f"{_count(count):>8}",
                (f"{fmt.percent(count / sums[true]):>13}", _tone(count / sums[true])),
            )
            for true, other, count in matrix.cells
            if true != other and count
        ]
        if not rows:
            return Content.styled("no class is taken for another", "$quiet"), []
        return Content.styled(
            f"{'true':<{name}}{'predicted':<{name}}{'count':>8}{'of true':>13}", "$quiet"
        ), rows


def _count(count: int) -> str:
    return str(count) if count < _EXACT else fmt.short(float(f"{count:.3g}"))


def _cell(count: int, of_true: int, is_right: bool, width: int) -> tuple[str, str]:
    """Return a count aligned right in `width` cells, and its style."""
    if not count:
        return "·".rjust(width), "$quiet"
    return _count(count).rjust(width), "bold $text-success" if is_right else _tone(count / of_true)


def _tone(share: float) -> str:
    """Return the style of a share of wrong predictions."""
    return "bold $text-error" if share >= _MUCH else "$text-warning" if share >= _SOME else ""
