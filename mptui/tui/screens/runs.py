"""The screen of all runs: sorted, filtered, opened, compared, renamed, deleted."""

from asyncio import Lock
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList

from mptui import text as fmt
from mptui.errors import MptuiError
from mptui.runs.listing.difference import MOST, RunCurves, curves_of
from mptui.runs.listing.housekeeping import delete_run, find_leftovers, remove_leftovers, rename_run
from mptui.runs.listing.rows import ORDERS, DifferingSettings, RunList, RunRow, chosen_rows
from mptui.runs.view.run_view import RunView
from mptui.text import clean, some
from mptui.tui.dialogs.questions import Answer, AskDialog, Choices, CleanDialog, DeleteDialog
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.screens.compare import CompareScreen, show_curve
from mptui.tui.screens.page import Page, TooSmall
from mptui.tui.widgets.basics import KeyBar, KeyedList, TopLine
from mptui.tui.widgets.chart import Chart
from mptui.tui.widgets.plot import Mode
from mptui.tui.widgets.run_list import (
    MOST_PINNED,
    RunTable,
    differing_words,
    keep_pinned,
    pinned_runs,
    summary_words,
)
from mptui.tui.work import in_background

RENEW_S = 2.0


class RunsScreen(Page):
    """The runs of a folder, newest first.

    Args:
        runs: The runs.
        ascii_only: Draw in ASCII.
    """

    where = "runs"
    BINDINGS = bindings("runs")

    class Opened(Message):
        """A run is to be shown on the live screen."""

        def __init__(self, run: Path, *, resume: bool = False) -> None:
            super().__init__()
            self.run = run
            self.resume = resume

    def __init__(self, runs: RunList, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._list = runs
        self._ascii_only = ascii_only
        self._rows: list[RunRow] | None = None
        self._shown: list[RunRow] = []
        self._marked: list[Path] = []
        self._order = ORDERS[0]
        self._curves = RunCurves()
        self._settings = DifferingSettings()
        self._views = dict[Path, RunView]()
        self._reading = Lock()
        self._top = TopLine()

    def compose(self) -> ComposeResult:
        """Lay out the list, the curves and the keys."""
        mode: Mode = "ascii" if self._ascii_only else "braille"
        chart = Chart(mode=mode, fitted=True, id="curves")
        chart.can_focus = False
        yield self._top
        yield RunTable(id="runs")
        yield chart
        yield Input(placeholder="words of a name, state, model, data …", compact=True, id="filter")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Read the runs, again from time to time."""
        self._top.show_message(Content.styled(f"reading {clean(str(self._list.folder), 60)} …", "$quiet"))
        self.query_one(OptionList).focus()
        self._renew()
        self.set_interval(RENEW_S, self.poll)

    def poll(self) -> None:
        """Show the summaries that have changed, unless they are being read already."""
        if self.is_current and not self._reading.locked():
            self.run_worker(self._read(), group="rows")

    def _renew(self, follow: Path | None = None) -> None:
        """Show what is there from now on, with the cursor on the run `follow`; keys wait for it."""
        self.run_worker(self._read(follow), group=KEYS_WAIT)

    async def _read(self, follow: Path | None = None) -> None:
        async with self._reading:  # what is being read now may be from before a change
            rows = await in_background(self._list.rows)
        if self.is_running:
            self._rows = rows
            there = {path for row in rows for path in (row.path, row.path.absolute())}
            for chosen in (self._marked, pinned_runs(self.app)):
                chosen[:] = [run for run in chosen if run in there]
            self._show(keeps_place=True)
            if follow is not None:
                self.query_one(RunTable).choose(follow)

    def _show(self, *, keeps_place: bool = False) -> None:
        rows = self._rows or []
        words = self.query_one("#filter", Input).value
        self._shown = chosen_rows(rows, self._order, words)
        table = self.query_one(RunTable)
        filtered = f" · /{clean(words, 40)}" if words else ""
        table.border_title = Content(f"runs · {self._order.name}{filtered}")
        marked = {run: n for n, run in enumerate(self._marked, 1)}
        table.show(self._shown, marked, self._order.name, keeps_place=keeps_place)
        told = summary_words(rows) if rows else "no runs yet: esc, then enter, starts one"
        if len(self._shown) < len(rows):
            none = "" if self._shown else "no run has these words, esc shows all: "
            told = f"{none}{len(self._shown):,} of {told}"
        self._top.show_message(Content.assemble(told, (f" in {clean(str(self._list.folder), 60)}", "$quiet")))
        self._read_curves()
        self._tell_differing()

    @work(exclusive=True, group="differing")
    async def _tell_differing(self) -> None:
        """Name the settings that differ among the runs shown, below them."""
        runs = [row.path for row in self._shown]
        differing = await in_background(partial(self._settings.among, runs))
        if self.is_running:
            table = self.query_one(RunTable)
            table.border_subtitle = Content(differing_words(differing, len(runs), table.size.width - 6))

    @on(OptionList.OptionHighlighted)
    @work(exclusive=True, group="curves")
    async def _read_curves(self) -> None:
        """Draw the marked runs, else the one under the cursor."""
        chosen = self.query_one(RunTable).chosen
        runs = self._marked or ([chosen.path] if chosen else [])
        if self.has_class("-high"):
            self._views = await in_background(partial(self._curves.read, runs))
            if self.is_running:
                self._draw_curves(runs)

    def _draw_curves(self, runs: list[Path]) -> None:
        chart, views = self.query_one(Chart), [self._views[run] for run in runs if run in self._views]
        curves = curves_of(views)
        if not curves:
            chart.entitle("no curves yet")
            chart.show([])
            return
        show_curve(chart, runs, self._views, curves[0])

    def on_resize(self) -> None:
        """Draw the curves where there is room now, and name the settings that fit."""
        self.call_after_refresh(self._read_curves)
        self.call_after_refresh(self._tell_differing)

    @on(KeyedList.Opened)
    def _pressed(self) -> None:
        self.action_open()

    @property
    def chosen(self) -> Path | None:
        """The run under the cursor."""
        row = self.query_one(RunTable).chosen
        return None if row is None else row.path

    def action_open(self) -> None:
        """Open the run under the cursor."""
        if (row := self.query_one(RunTable).chosen) is not None:
            self.post_message(self.Opened(row.path))

    def action_resume(self) -> None:
        """Resume the run under the cursor."""
        if (row := self.query_one(RunTable).chosen) is not None:
            self.post_message(self.Opened(row.path, resume=True))

    def action_mark(self) -> None:
        """Mark the run under the cursor for a comparison, or unmark it, and go on to the next."""
        row = self.query_one(RunTable).chosen
        if row is None:
            return
        if row.path in self._marked:
            self._marked.remove(row.path)
        elif len(self._marked) == MOST:
            self.notify(f"{MOST} runs can be compared at once", severity="warning", markup=False)
            return
        else:
            self._marked.append(row.path)
        self._show()
        self.query_one(OptionList).action_cursor_down()

    def action_pin(self) -> None:
        """Draw the run under the cursor behind the live charts, or no longer."""
        row, pinned = self.query_one(RunTable).chosen, pinned_runs(self.app)
        if row is None:
            return
        run = row.path.absolute()
        if run in pinned:
            pinned.remove(run)
        elif len(pinned) == MOST_PINNED:
            self.notify(f"{MOST_PINNED} runs can be behind the charts", severity="warning", markup=False)
            return
        else:
            pinned.append(run)
        keep_pinned(self.app)
        self._show()

    def action_compare(self) -> None:
        """Compare the marked runs, a single one with that under the cursor.

        Without a mark, the one under the cursor with its parent, else with the one below.
        """
        runs, row = list(self._marked), self.query_one(RunTable).chosen
        if row is not None and len(runs) == 1 and row.path not in runs:
            runs.append(row.path)
        elif row is not None and not runs:
            at = self._shown.index(row)
            parent = [row.parent[0], row.path] if row.parent is not None else []
            runs = parent or [each.path for each in self._shown[at : at + 2]]
        if len(runs) < 2:
            self.notify("mark two runs or more to compare them", markup=False)
            return
        screen = CompareScreen(runs, ascii_only=self._ascii_only)
        self.app.push_screen(screen, lambda how: self.leave() if how == "leave" else None)

    def action_sort(self) -> None:
        """Sort by the next order."""
        self._order = ORDERS[(ORDERS.index(self._order) + 1) % len(ORDERS)]
        self._show()

    def action_filter(self) -> None:
        """Ask for words."""
        self.add_class("-filtering")
        self.query_one("#filter", Input).focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self) -> None:
        self._show()

    @on(Input.Submitted, "#filter")
    def _filter_chosen(self) -> None:
        self.remove_class("-filtering")
        self.query_one(OptionList).focus()

    def action_rename(self) -> None:
        """Ask for another name of the run under the cursor."""
        row = self.query_one(RunTable).chosen
        if row is None:
            return

        def take(name: str) -> str | None:
            try:
                renamed = rename_run(row.path, name)
            except MptuiError as error:
                return error.message
            names = {row.path: renamed, row.path.absolute(): renamed.absolute()}
            for chosen in (self._marked, pinned_runs(self.app)):
                chosen[:] = [names.get(run, run) for run in chosen]
            keep_pinned(self.app)
            self._renew(follow=renamed)
            return None

        words = "Letters, digits, '.', '_', '+' and '-'."
        self.app.push_screen(
            AskDialog("name of the run", words, row.name, check=lambda _: None, on_answer=take)
        )

    def _meant(self) -> list[Path]:
        """Return the marked runs, else the one under the cursor."""
        row = self.query_one(RunTable).chosen
        return list(self._marked) or ([row.path] if row is not None else [])

    def action_delete(self) -> None:
        """Ask whether to delete the marked runs, or the one under the cursor."""
        if runs := self._meant():
            words = (
                f"{_names(runs)}: settings, checkpoints, curves and logs are removed for good. "
                "Files that mptui has not written stay."
            )
            title = "delete this run?" if len(runs) == 1 else f"delete {len(runs)} runs?"
            self._ask(DeleteDialog(self._keymap, title, words), delete_run, runs, "deleted")

    @work(exclusive=True, group=KEYS_WAIT)
    async def action_clean(self) -> None:
        """Ask whether to remove the checkpoints of these runs that no resume needs, with their space."""
        runs = self._meant()
        try:
            found = await in_background(lambda: [find_leftovers(run) for run in runs])
        except MptuiError as error:
            self.notify(error.message, severity="warning", markup=False)
            return
        checkpoints, size = (
            sum(each.checkpoints for each in found),
            sum(each.size_bytes for each in found),
        )
        if not any(each.paths for each in found):
            self.notify(f"{_names(runs)}: only last and best are there", markup=False)
        elif self.is_current:
            words = (
                f"{_names(runs)}: {fmt.counted(checkpoints, 'older checkpoint')} with "
                f"{fmt.size(size)}. Last and best stay; an undo needs the others."
            )
            dialog = CleanDialog(self._keymap, f"free {fmt.size(size)}?", words)
            self._ask(dialog, remove_leftovers, runs, "cleaned up")

    def _ask(
        self, dialog: Choices, change: Callable[[Path], tuple[str, ...]], runs: list[Path], done: str
    ) -> None:
        """Change runs if the dialog is not answered by staying."""

        def answered(how: Answer | None) -> None:
            if how not in {None, "stay"}:
                self._do(change, runs, done)

        self.app.push_screen(dialog, answered)

    @work(group="work")
    async def _do(self, change: Callable[[Path], tuple[str, ...]], runs: list[Path], done: str) -> None:
        """Change runs in the background; those that can't be changed are named, and files that stay."""
        changed = 0
        for run in runs:
            try:
                others = await in_background(partial(change, run))
                changed += 1
                if others:
                    words = f"{run.name}: kept, as mptui has not written them: {some(others)}"
                    self.notify(words, severity="warning", markup=False)
            except MptuiError as error:
                self.notify(error.message, severity="warning", markup=False)
        if changed:
            self.notify(f"{done}: {_names(runs[:1]) if changed == 1 else f'{changed} runs'}", markup=False)
        self._renew()

    def by_name(self) -> Iterable[tuple[str, str, Callable[[], None]]]:
        """Return the runs that are listed."""
        choose = self.query_one(RunTable).choose
        return [(f"run {clean(row.name)}", row.state, partial(choose, row.path)) for row in self._shown]

    def back(self) -> None:
        """Close the filter, forget the marks, or close the screen."""
        if self.has_class("-filtering") or self.query_one("#filter", Input).value:
            self.query_one("#filter", Input).value = ""
            self._filter_chosen()
        elif self._marked:
            self._marked = []
            self._show()
        else:
            self.dismiss("back")

    def leave(self) -> None:
        """Quit as the screen below does."""
        self.dismiss("leave")

    def on_screen_resume(self) -> None:
        """Show what has changed in the meantime."""
        self.poll()


def _names(runs: list[Path]) -> str:
    """Name some runs: the first, and how many there are besides."""
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    return f"{clean(runs[0].name, 60)}{more}" if runs else "no run"
