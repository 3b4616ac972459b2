"""The screen of pictures: what the network predicts of validation images, or what it has made."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from textual import work
from textual.app import ComposeResult
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Static

from mptui.events import ImagesGenerated
from mptui.runs.view.run_view import RunView
from mptui.tui.keys.bindings import bindings
from mptui.tui.keys.typed import KEYS_WAIT
from mptui.tui.screens.view_page import ViewPage
from mptui.tui.threads import in_background
from mptui.tui.widgets.keybar import KeyBar
from mptui.tui.widgets.live.header import Header
from mptui.tui.widgets.live.image_panel import ImagesPanel
from mptui.tui.widgets.pictures.confusion_panel import ConfusionPanel
from mptui.tui.widgets.pictures.samples_panel import LoadedPictures, SamplesPanel
from mptui.tui.widgets.small import TooSmall

_CONFUSION, _MADE = "confusion", "images made"


class PicturesScreen(ViewPage):
    """Shows the pictures of the last validation, or of that before the moment which the timeline shows.

    Args:
        view: The view of the run, updated by the live screen below.
        run: Directory of the run; None: that of its journal.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
    """

    where = "pictures"
    BINDINGS = bindings("pictures")
    DEFAULT_CSS = """
    PicturesScreen {
        #tabs { height: 1; padding: 0 2; text-wrap: nowrap; }
        ImagesPanel { height: 1fr; }
        &.-tiny, &.-flat {
            Header, #tabs, Panel, KeyBar { display: none; }
        }
    }
    """

    def __init__(
        self, view: RunView, run: Path | None, keymap: Mapping[str, str], *, ascii_only: bool
    ) -> None:
        super().__init__(view, keymap)
        self._run, self._ascii_only = run, ascii_only
        self._asked: ImagesGenerated | None = None
        self._tab = ""

    def compose(self) -> ComposeResult:
        """Lay out the tabs, their panels, of which one is shown, and the keys."""
        yield Header()
        yield Static(id="tabs", markup=False)
        yield SamplesPanel(self._ascii_only, id="samples")
        yield ConfusionPanel(id="confusion")
        yield ImagesPanel(self._ascii_only)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    @property
    def _samples(self) -> SamplesPanel:
        return self.query_one(SamplesPanel)

    def show(self) -> None:
        """Show the view; read the files of its pictures if they are others than before."""
        event = self._view.pictures
        if event is None:
            self._samples.missing = "no pictures yet: they are made after each validation"
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
            self._samples.loaded = loaded
            self._samples.missing = (
                f"the pictures of epoch {event.epoch} are not on disk (logging.pictures keeps some)"
            )
            self.query_one(ConfusionPanel).record = None if loaded is None else loaded.record
            self._lay_out()
            super().show()

    def _lay_out(self) -> None:
        """Show the panel of the chosen tab, or of the first one if that is gone."""
        tabs = self._tabs()
        tab = self._tab if self._tab in tabs else next(iter(tabs), "")
        if tab != self._tab:
            self._tab = tab
            self._samples.choose(tab)
        self._samples.display = tab not in {_CONFUSION, _MADE}
        self.query_one(ConfusionPanel).display = tab == _CONFUSION
        self.query_one(ImagesPanel).display = tab == _MADE
        names = (Content.styled(f" {name} ", "reverse" if name == tab else "$quiet") for name in tabs)
        self.query_one("#tabs", Static).update(Content(" ").join(names), layout=False)

    def _tabs(self) -> list[str]:
        loaded = self._samples.loaded
        tabs = [] if loaded is None else [name for name, them in loaded.record.groups.items() if them]
        if loaded is not None and loaded.record.confusion is not None:
            tabs.append(_CONFUSION)
        return [*tabs, _MADE] if self._view.images is not None else tabs

    def action_turn(self, tabs: int) -> None:
        """Show another tab."""
        there = self._tabs()
        if there:
            self._tab = (
                there[(there.index(self._tab) + tabs) % len(there)] if self._tab in there else there[0]
            )
            self._samples.choose(self._tab)
            self.show()

    def action_scroll(self, rows: int) -> None:
        """Scroll by so many rows of samples, or lines of the matrix."""
        panel = self.query_one(ConfusionPanel) if self._tab == _CONFUSION else self._samples
        panel.scroll_rows(rows)
        self.show()
