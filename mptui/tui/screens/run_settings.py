"""The settings of a run: what each means, and which can change while it trains."""

from contextlib import suppress
from pathlib import Path

from textual import on, work
from textual.app import ComposeResult
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Static

from mptui.config.change import switched_setting
from mptui.config.keys import SETTINGS
from mptui.config.resolve import read_value, resolve
from mptui.config.schema import RunConfig
from mptui.errors import MptuiError
from mptui.runs.store.directory import CONFIG
from mptui.runs.view.run_view import RunView
from mptui.text import clean, clean_lines
from mptui.tui.dialogs.questions import SettingDialog
from mptui.tui.keys import KEYS_WAIT, bindings
from mptui.tui.run_source import RunSource
from mptui.tui.screens.page import TooSmall, ViewPage
from mptui.tui.selection import Value, in_a_paragraph, values_of_run
from mptui.tui.widgets.basics import KeyBar, KeyedList
from mptui.tui.widgets.header import Header
from mptui.tui.widgets.settings import SettingsPanel
from mptui.tui.work import in_background

_ANSWERS = ("set ", "changed ")
"""Beginnings of the lines of the log that a changed setting has."""


class RunSettingsScreen(ViewPage):
    """Lists the settings in force, and sends changes of single ones to the run.

    Args:
        source: The run.
        view: The view of the run, updated by the live screen below.
    """

    where = "settings"
    BINDINGS = bindings("settings")
    DEFAULT_CSS = """
    RunSettingsScreen {
        #meaning { height: auto; min-height: 3; max-height: 7; padding: 0 2; color: $quiet; }
        &.-short #meaning { max-height: 2; min-height: 2; }
        #answer { height: 1; padding: 0 2; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """

    def __init__(self, source: RunSource, view: RunView) -> None:
        super().__init__(view)
        self._source = source
        self._config: RunConfig | None = None
        self._read_after: tuple[object, ...] = ()

    def compose(self) -> ComposeResult:
        """Lay out the settings, the meaning of one, the answer of the run, and the keys."""
        yield Header()
        yield SettingsPanel()
        yield Static(id="meaning", markup=False)
        yield Static(id="answer", markup=False)
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def show(self) -> None:
        """Show the answer of the run; read the settings again after each switch."""
        last = next((line for line in reversed(self._view.log) if line.text.startswith(_ANSWERS)), None)
        if last is not None:
            self._answer(last.text, "$text-warning" if last.tone == "warn" else "$text-accent")
        latest = tuple(self._view.marks)[-1:] or (None,)
        if latest != self._read_after:
            self._read_after = latest
            self._read()

    @work(exclusive=True, group=KEYS_WAIT)
    async def _read(self) -> None:
        run = self._source.run
        assert run is not None, "the live screen has looked"
        with suppress(NoMatches):  # the screen was closed
            try:
                self._config, values = await in_background(lambda: _settings_of(run))
            except MptuiError as error:
                self._answer(error.message, "$text-warning")
                self._read_after = ()  # it may not be written yet
                return
            self.query_one(SettingsPanel).show(f"settings of {clean(run.name, 50)}", values)

    @on(SettingsPanel.Moved)
    def _explain(self) -> None:
        chosen = self.query_one(SettingsPanel).chosen
        words = "" if chosen is None else in_a_paragraph(chosen)
        self.query_one("#meaning", Static).update(Content(words))

    def action_filter(self) -> None:
        """Ask for words of a setting."""
        self.query_one(SettingsPanel).search()

    def action_changed(self) -> None:
        """Show only changed settings, or all."""
        self.query_one(SettingsPanel).toggle_changed()

    @on(KeyedList.Opened)
    def _opened(self) -> None:
        self.action_edit()

    def action_edit(self) -> None:
        """Ask for another value of the setting under the cursor, if it can change."""
        value = self.query_one(SettingsPanel).chosen
        if value is None:
            return
        if value.fixed or self._view.finished is not None:
            self._warn(value.fixed or "the run has ended")
            return
        self.app.push_screen(SettingDialog(value, "in force", self._send))

    def _send(self, key: str, text: str) -> str | None:
        """Send a change to the run, unless it is known to be impossible."""
        value, fault = read_value(SETTINGS[key], text)
        if fault is not None or self._config is None:
            return fault
        try:
            switch = switched_setting(self._config, key, value)
        except MptuiError as error:
            return error.message
        if switch.changes:
            self._source.send("set", f"{key}={text.strip()}")
        return None

    def _answer(self, words: str, style: str) -> None:
        self.query_one("#answer", Static).update(Content.styled(clean(words), style))

    def _warn(self, words: str) -> None:
        self.notify(clean_lines(words, 300), severity="warning", markup=False)

    def back(self) -> None:
        """End the search, or close."""
        if not self.query_one(SettingsPanel).end_search():
            super().back()


def _settings_of(run: Path) -> tuple[RunConfig, list[Value]]:
    """Read the settings of a run.

    Raises:
        ConfigError: They can't be read.
    """
    found = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={})
    return found.config, values_of_run(run, found)
