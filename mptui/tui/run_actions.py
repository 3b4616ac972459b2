"""What the app does with runs: list them, open, resume and fork them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work
from textual.app import App

from mptui.errors import MptuiError
from mptui.runs.listing.forking import fork_run, kept_checkpoints
from mptui.runs.listing.run_rows import RunList
from mptui.runs.store.directory import CONFIG, is_trained
from mptui.text import shell_word
from mptui.tui.keys.keymap import Keymap
from mptui.tui.keys.typed import KEYS_WAIT
from mptui.tui.screens.page import Page
from mptui.tui.terminal.driver import SteadyDriver
from mptui.tui.threads import in_background

if TYPE_CHECKING:
    from mptui.tui.screens.runs.fork_dialog import ForkChoice
    from mptui.tui.screens.runs.runs_screen import RunsScreen
    from mptui.tui.sources.source import RunSource
    from mptui.tui.turns import Turns


class RunActions(App[str], inherit_bindings=False):
    """An app that knows the runs of a folder.

    Args:
        runs: The folder.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
    """

    resumes = False
    """Whether runs can be resumed from here."""

    def __init__(self, runs: Path, keymap: Keymap, *, ascii_only: bool) -> None:
        super().__init__(driver_class=SteadyDriver)
        self.runs, self.keymap, self.ascii_only = RunList(runs), keymap, ascii_only
        self._turns: list[Turns] = []

    def leave_screen(self) -> None:
        """Leave the current screen as the user would, or exit."""
        if isinstance(self.screen, Page):
            self.screen.leave()
        else:
            self.exit()

    def action_runs(self) -> None:
        """Open the list of runs above this screen, or go back from it."""
        from mptui.tui.screens.runs.runs_screen import RunsScreen

        if isinstance(self.screen, RunsScreen):
            self.screen.back()
        elif isinstance(self.screen, Page):
            screen = RunsScreen(self.runs, self.keymap.keys, ascii_only=self.ascii_only)
            self.push_screen(screen, self.screen_left)

    def on_runs_screen_opened(self, event: "RunsScreen.Opened") -> None:
        """Show a run on the live screen, or resume it."""
        if event.resume:
            self.resume_run(event.run)
        else:
            self.open_run(event.run)

    def open_run(self, run: Path) -> None:
        """Show a run on the live screen: go back to it if it is the one below, else attach to it."""
        from mptui.runs.remote.attached_run import AttachedRun
        from mptui.tui.screens.live import LiveScreen

        below = self.screen_stack[-2]
        if isinstance(below, LiveScreen) and below.source.run == run:
            self.screen.dismiss("back")
            return
        source = AttachedRun(run).start()

        def left(how: str | None) -> None:
            source.close()
            self.screen_left(how)

        keys = self.keymap.keys
        live = LiveScreen(source, keymap=keys, ascii_only=self.ascii_only, resumable=self.resumes)
        self.push_screen(live, left)

    def resume_run(self, run: Path) -> None:
        """Resume a run on the live screen, in a program that trains."""
        words = f"this program only watches runs; resume it by: mptui resume {shell_word(run)}"
        self._refuse(words)

    @work(exclusive=True, group=f"{KEYS_WAIT}: fork")
    async def action_fork(self) -> None:
        """Ask for a fork of the run on this screen: which checkpoint, which settings."""
        from mptui.runs.remote.control_server import preset_names
        from mptui.tui.screens.runs.fork_dialog import ForkDialog

        run = self._run_shown()
        if run is None:
            return
        try:
            kept = await in_background(lambda: kept_checkpoints(run))
        except MptuiError as error:
            self._refuse(error.message)
            return
        if not kept:
            self._refuse("this run has no checkpoint yet; c saves one")
            return
        training = await in_background(lambda: is_trained(run))
        dialog = ForkDialog(run, kept, preset_names(os.environ), self.keymap.keys, training=training)
        self.push_screen(dialog, self._chosen)

    @work(group="share")
    async def action_share(self) -> None:
        """Write this screen as SVG and PNG, and two lines on its run."""
        from mptui.tui.screen_file import write_screen

        where = self.screen.where if isinstance(self.screen, Page) else "screen"
        svg, run = self.export_screenshot(), self._run_shown()
        try:
            path = await in_background(lambda: write_screen(svg, where, run))
        except MptuiError as error:
            self._refuse(error.message)
        else:
            self.notify(f"written: {path} and .png", markup=False)

    def _chosen(self, choice: "ForkChoice | None") -> None:
        if choice is not None:
            self._fork(choice)

    def _run_shown(self) -> Path | None:
        from mptui.tui.screens.live import LiveScreen
        from mptui.tui.screens.runs.runs_screen import RunsScreen

        if isinstance(self.screen, LiveScreen):
            return self.screen.source.run
        return self.screen.chosen if isinstance(self.screen, RunsScreen) else None

    @work(group=f"{KEYS_WAIT}: forking")
    async def _fork(self, choice: "ForkChoice") -> None:
        """Make the fork, train it, and draw it over its parent."""
        from mptui.runs.remote.attached_run import AttachedRun
        from mptui.tui.screens.live import LiveScreen
        from mptui.tui.screens.runs.compare_screen import CompareScreen
        from mptui.tui.turns import Turns

        try:
            parts = choice.run, choice.checkpoint, None, choice.profile
            fork = await in_background(lambda: fork_run(*parts))
        except MptuiError as error:
            self._refuse(error.message)
            return
        source = self.train_fork(fork, choice.sets)
        if choice.parent_does != "train":
            below = self.screen
            shown = below.source if isinstance(below, LiveScreen) else None
            if shown is None or shown.run != choice.run:
                shown = AttachedRun(choice.run).start()
            self._turns.append(Turns(shown, source, swap=choice.parent_does == "turns"))
        self.show_source(source)
        compared = CompareScreen([choice.run, fork], self.keymap.keys, ascii_only=self.ascii_only)
        self.push_screen(compared, self.screen_left)

    def train_fork(self, fork: Path, sets: Sequence[str]) -> "RunSource":
        """Train a fork in a process of its own."""
        from mptui.runs.planning.plan import Request
        from mptui.tui.sources.subprocess import IsolatedSource

        request = Request(str(fork / CONFIG), sets=sets, environ=os.environ)
        return IsolatedSource(request, fork.parent, resume=fork).start()

    def show_source(self, source: "RunSource") -> None:
        """Show a run that has been started on the live screen."""
        from mptui.tui.screens.live import LiveScreen

        live = LiveScreen(source, keymap=self.keymap.keys, ascii_only=self.ascii_only)
        self.push_screen(live, self.screen_left)

    def watch_turns(self) -> None:
        """Pass the turns of runs that share a device."""
        self.set_interval(1.0, self._pass_turns)

    def _pass_turns(self) -> None:
        self._turns = [turns for turns in self._turns if turns.tick()]

    def on_unmount(self) -> None:
        """Let paused parents go on."""
        for turns in self._turns:
            turns.end()

    def _refuse(self, words: str) -> None:
        self.notify(words, severity="warning", markup=False)

    def screen_left(self, how: str | None) -> None:
        """Leave the screen below, too, if the user quits."""
        if how in {"leave", "left"}:
            self.leave_screen()
