"""Opens the screen of the exercises."""

from mptui.lab.learn.exercises import LearnChoices
from mptui.runs.remote.daemonize import LOG
from mptui.tui.app import person_keymap
from mptui.tui.screens.learn_screen import LearnScreen
from mptui.tui.setup.last_selection import state_folder
from mptui.tui.setup.last_theme import theme_at_start
from mptui.tui.terminal.ascii import needs_ascii
from mptui.tui.terminal.stdio import Terminal
from mptui.tui.terminal_app import TerminalApp, catch_signals


def open_lessons(choices: LearnChoices, first: str) -> int:
    """Show the exercises on this terminal, `first` first; return the exit code.

    If a signal ended the screen, return 128 + its number.
    """
    terminal = Terminal(state_folder() / LOG)
    keymap, ascii_only = person_keymap(), needs_ascii()
    screen = LearnScreen(choices, first, keymap=keymap.keys, ascii_only=ascii_only)
    app = TerminalApp(screen, keymap=keymap, ascii_only=ascii_only, theme=theme_at_start())
    catch_signals(app, terminal)
    with terminal:
        app.run()
    if app.signalled is not None and not terminal.lost:
        return 128 + app.signalled
    return app.return_code or 0
