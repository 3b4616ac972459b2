"""Opens the live screen of a run of another process, or of an ended run."""

import sys

from mptui.runs.remote.attached_run import AttachedRun
from mptui.runs.remote.daemonize import LOG
from mptui.runs.store.directory import status_of
from mptui.runs.view.closing_line import closing_line
from mptui.tui.app import person_keymap
from mptui.tui.screens.live import LiveScreen
from mptui.tui.setup.last_selection import state_folder
from mptui.tui.setup.last_theme import theme_at_start
from mptui.tui.terminal import supervisor
from mptui.tui.terminal.ascii import needs_ascii
from mptui.tui.terminal.stdio import Terminal
from mptui.tui.terminal_app import TerminalApp, catch_signals

ENDING_S = 5.0
"""Seconds that an ended run may take to release its directory."""


def open_attached(source: AttachedRun) -> int:
    """Show a run on this terminal; return its exit code if it ended in the meantime, else 0.

    If a signal ended the screen, return 128 + its number.
    """
    supervisor.tell_alone(True)
    terminal = Terminal(state_folder() / LOG)
    keymap, ascii_only = person_keymap(), needs_ascii()
    screen = LiveScreen(source, keymap=keymap.keys, ascii_only=ascii_only)
    app = TerminalApp(
        screen, keymap=keymap, ascii_only=ascii_only, runs=source.run.parent, theme=theme_at_start()
    )
    catch_signals(app, terminal)
    with terminal:
        app.run()
    if screen.view.finished is not None:
        source.wait(ENDING_S)
    source.close()
    if not terminal.lost:
        print(closing_line(source.run, status_of(source.run)), file=sys.stderr)  # noqa: T201 - the screen is gone
    if app.signalled is not None and not terminal.lost:
        return 128 + app.signalled
    return app.return_code or source.exit_code
