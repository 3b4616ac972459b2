"""The program on the terminal: the device screen, the picker and the live screen."""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from textual import on, work

from mptui.errors import MptuiError
from mptui.events import RunFinished
from mptui.hardware.host import keep_freed_memory
from mptui.io.files import state_folder
from mptui.processes.start import LOG, launcher
from mptui.runs.listing.rows import RunList
from mptui.runs.session.shutdown import end_now, worker_left
from mptui.runs.store.directory import status_of
from mptui.runs.view.words import closing_line
from mptui.text import shell_word
from mptui.tui import work as tui_work
from mptui.tui.app import TerminalApp, catch_signals, chosen_theme, person_keymap
from mptui.tui.keys import KEYS_WAIT, Keymap
from mptui.tui.run_source import RunSource
from mptui.tui.screens.detection import DetectionScreen
from mptui.tui.terminal import process
from mptui.tui.terminal.graphics import needs_ascii
from mptui.tui.terminal.process import Part, Terminal

if TYPE_CHECKING:
    from mptui.hardware.devices import Device
    from mptui.runs.planning.plan import Request
    from mptui.tui.screens.live import LiveScreen
    from mptui.tui.screens.picker import PickerScreen


class Run(RunSource, Protocol):
    """A run started by this program."""

    exit_code: int

    @property
    def isolated(self) -> bool:
        """Whether it has a process of its own, independent of this one."""

    def stop(self, signal: int) -> None:
        """Ask the run to save and stop; safe in a signal handler."""

    def save(self) -> None:
        """Ask the run to save and continue; safe in a signal handler."""

    def wait(self) -> None:
        """Wait for the end of the run."""


class Cockpit(TerminalApp):
    """Devices, picker, live screen.

    Args:
        starter: Starts the run of a request, or resumes the run in a directory; the last argument has the
            flags of a run in several processes, none for a single one.
        first: The device screen.
        run: A run to show first, instead of the device screen.
        group: The flags of that run, if it has several processes.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
        environ: Environment, for settings and folders.
        runs: The folder of the runs.
        theme: dark, light or ansi; None: as the terminal's background.
    """

    resumes = True

    def __init__(
        self,
        starter: "Callable[[Request, Path | None, Sequence[str]], Run]",
        *,
        first: DetectionScreen | None = None,
        run: Run | None = None,
        group: Sequence[str] = (),
        keymap: Keymap | None = None,
        ascii_only: bool = False,
        environ: Mapping[str, str] = os.environ,
        runs: Path = Path("runs"),
        theme: str | None = "dark",
    ) -> None:
        keymap = keymap or Keymap()
        live = None
        if run is not None:
            from mptui.tui.screens.live import LiveScreen

            live = LiveScreen(run, ascii_only=ascii_only)
        keys, listed = keymap.keys, RunList(runs)
        opened = (
            live or first or DetectionScreen(keymap=keys, runs=listed, environ=environ, ascii_only=ascii_only)
        )
        super().__init__(opened, keymap=keymap, ascii_only=ascii_only, runs=runs, theme=theme)
        self._starter = starter
        self._environ = environ
        self.run_now: Run | None = run
        self._group = group
        self._live: LiveScreen | None = live

    @on(DetectionScreen.Chosen)
    def _pick(self, event: DetectionScreen.Chosen) -> None:
        from mptui.tui.screens.picker import PickerScreen

        if not isinstance(self.screen, DetectionScreen):  # a second click comes before the picker is open
            return
        profile = event.advice.profile
        if event.demo:
            self._train_demo(profile, event.devices)
            return
        screen = PickerScreen(
            *event.devices,
            profile=profile,
            data=event.data,
            runs=RunList(self.runs.folder),
            keymap=self.keymap.keys,
            environ=self._environ,
            ascii_only=self.ascii_only,
        )
        self.push_screen(screen)

    @work(exclusive=True, group=f"{KEYS_WAIT}: demo")
    async def _train_demo(self, profile: str, devices: "Sequence[Device]") -> None:
        """Train on the built-in images with the settings of a profile."""
        from mptui.tui.selection import demo_request, flags_of_group

        try:
            request = await tui_work.in_background(lambda: demo_request(profile, devices, self._environ))
        except MptuiError as error:
            self._refuse(error.message)
        else:
            self._train(request, group=flags_of_group(devices))

    @on(DetectionScreen.RunChosen)
    def _open_newest(self, event: DetectionScreen.RunChosen) -> None:
        """Show a run on the live screen."""
        if isinstance(
            self.screen, DetectionScreen
        ):  # a second click comes before the first one has opened it
            self.open_run(event.run)

    def on_picker_screen_started(self, event: "PickerScreen.Started") -> None:
        """Start the run and show it."""
        self._train(event.request, group=event.group)

    @work(exclusive=True, group=f"{KEYS_WAIT}: train")
    async def _train(
        self,
        request: "Request",
        resume: Path | None = None,
        group: Sequence[str] = (),
        screen: "LiveScreen | None" = None,
    ) -> None:
        """Start or resume a run and show it; refuse while another run of this program is training.

        A run that has ended still writes its files: the start waits for them.

        Args:
            request: The request.
            resume: The directory of the run to resume; None: a new run.
            group: Flags of a run in several processes; none: a single one.
            screen: Shows the run if it is still there; None: a new screen does.
        """
        before = self.run_now
        if before is not None and not before.finished:
            if before.view.finished is None:
                self._refuse(
                    "this program trains a run already; stop or detach it first, or use another shell"
                )
                return
            self.notify("starts once the files of the last run are written", markup=False)
            await tui_work.in_background(before.wait)
        self._group = group
        run = self._starter(request, resume, group)
        if screen is None or not screen.is_attached:
            self._show_live(run)
            return
        self.run_now = run
        self._live = screen
        screen.follow(run)

    def _show_live(self, run: Run) -> None:
        """Show a run that this program has started."""
        from mptui.tui.screens.live import LiveScreen

        self.run_now = run
        self._live = LiveScreen(run, ascii_only=self.ascii_only)
        self.push_screen(self._live, self._run_left)

    def resume_run(self, run: Path) -> None:
        """Resume a run from the list of runs, as it was configured."""
        status = status_of(run)["status"]
        if status == "running":
            self._refuse("this run is training: open it")
        elif status == "completed":
            self._refuse(f"the run is complete; longer: mptui resume {shell_word(run)} --epochs N")
        else:
            self._train(self._request_of(run), run)

    def train_fork(self, fork: Path, sets: Sequence[str]) -> RunSource:
        """Train a fork in this process, or in one of its own while another run trains here."""
        if self.run_now is not None and not self.run_now.finished:
            return super().train_fork(fork, sets)
        self._group = ()
        self.run_now = self._starter(replace(self._request_of(fork), sets=sets), fork, ())
        return self.run_now

    def show_source(self, source: RunSource) -> None:
        """Show a run on the live screen, as this program's where it trains here."""
        if self.run_now is source:
            self._show_live(self.run_now)
        else:
            super().show_source(source)

    def _request_of(self, run: Path) -> "Request":
        from mptui.runs.planning.plan import Request
        from mptui.runs.store.directory import CONFIG

        return Request(str(run / CONFIG), environ=self._environ)

    def on_live_screen_resume_requested(self, event: "LiveScreen.ResumeRequested") -> None:
        """Resume the run as it was configured, on the same screen."""
        from mptui.tui.screens.live import LiveScreen

        if isinstance(screen := self.screen, LiveScreen):
            group = self._group if screen is self._live else ()
            self._train(self._request_of(event.run), event.run, group, screen)

    def _run_left(self, how: str | None) -> None:
        if how in {"left", "detached"}:
            self.exit()

    def take_signal(self, number: int) -> None:
        """Record a signal: the run handles it at once, the screens at their next update."""
        super().take_signal(number)
        if self.run_now is not None and number != signal.SIGHUP:
            self.run_now.stop(number)

    def take_save(self) -> None:
        """Ask the run to save and continue."""
        if self.run_now is not None:
            self.run_now.save()

    def may_leave(self) -> bool:
        """Whether the screen can be closed, as no run has to save first."""
        return self.run_now is None or self.run_now.finished

    def run_left(self) -> Run | None:
        """Return the run that continues after the screen is closed; wait for a run that has just ended."""
        run = self.run_now
        has_ended = self._live is not None and self._live.view.finished is not None
        if run is not None and has_ended:
            run.wait()
            return None
        return None if run is None or run.finished else run

    @property
    def exit_code_of_run(self) -> int:
        """Exit code of the last run, or of a signal that ended the program before any run."""
        stopped = self.signalled is not None and self.signalled != signal.SIGHUP
        has_no_code = self.run_now is None or self.run_now.exit_code == 0
        if stopped and has_no_code:
            return 128 + (self.signalled or 0)
        return self.run_now.exit_code if self.run_now else 0


def open_cockpit(part: Part, *, isolate: bool = False, trust_code: bool = False) -> int:
    """Show the program on this terminal until the user quits; return the exit code of its last run.

    A run of this process that is still training when the screen closes continues without the terminal.

    Args:
        part: Ends the parent, so that the shell continues.
        isolate: Train each run in a separate process.
        trust_code: Let the person's own code run.
    """
    keep_freed_memory()
    terminal = Terminal(state_folder() / LOG)
    runs = Path(os.environ.get("MPTUI_RUNS_DIR") or "runs")

    start = _starter(terminal, runs, isolate, trust_code)
    keymap, ascii_only, theme = person_keymap(), needs_ascii(), chosen_theme()
    app = Cockpit(start, keymap=keymap, ascii_only=ascii_only, runs=runs, theme=theme)
    return _show(app, terminal, part)


def open_resumed(part: Part, request: "Request", path: Path, group: Sequence[str]) -> int:
    """Resume a run on the live screen of this terminal; see `open_cockpit`.

    Args:
        part: Ends the parent, so that the shell continues.
        request: The run's configuration with the new settings.
        path: The run directory.
        group: Flags of a run in several processes; none: a single one.
    """
    keep_freed_memory()
    terminal = Terminal(state_folder() / LOG)
    start = _starter(terminal, path.parent, False, request.trust_code)
    run = start(request, path, group)
    keymap, ascii_only, theme = person_keymap(), needs_ascii(), chosen_theme()
    app = Cockpit(
        start, run=run, group=group, keymap=keymap, ascii_only=ascii_only, runs=path.parent, theme=theme
    )
    return _show(app, terminal, part)


def _starter(
    terminal: Terminal, runs: Path, isolate: bool, trust_code: bool
) -> "Callable[[Request, Path | None, Sequence[str]], Run]":
    """Return what starts or resumes a run: in this process, or in processes of its own."""

    def log_to(run: Path) -> None:
        terminal.log_to(run / LOG)

    def start(request: "Request", resume: Path | None, group: Sequence[str]) -> Run:
        from mptui.tui.sources import IsolatedSource, SessionSource

        request = replace(request, trust_code=trust_code)
        process.tell_alone(isolate or bool(group))
        if isolate or group:
            return IsolatedSource(request, runs, group=group, resume=resume).start()
        return SessionSource(request, runs, on_directory=log_to, resume=resume).start()

    return start


def _show(app: Cockpit, terminal: Terminal, part: Part) -> int:
    """Show the program until the user quits; see `open_cockpit`."""
    catch_signals(app, terminal)
    with terminal:
        app.run()
        run = app.run_left()
        needs_us = run is not None and (not run.isolated or launcher() is not None)
        if needs_us:
            terminal.hang_up()
    ended = None if app.run_now is None else app.run_now.run
    if run is not None and not needs_us:
        print(_farewell(run.run), end="", file=sys.stderr)  # noqa: T201 - the screen is gone
    elif run is not None:
        if launcher() is None:
            part(_farewell(run.run))
        run.wait()
        _tell_end(run)
    elif ended is not None and not terminal.lost:
        print(closing_line(ended, status_of(ended)), file=sys.stderr)  # noqa: T201 - the screen is gone
    code = app.return_code or app.exit_code_of_run
    if tui_work.busy():
        # A thread that imports torch or waits for a driver can't be ended cleanly.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if worker_left():
        end_now(code)
    return code


def _farewell(run: Path | None) -> str:
    name = f" {shell_word(run)}" if run else ""
    told = (
        "the run continues in the background",
        f"watch it: mptui attach{name}",
        f"stop it: mptui stop{name}",
    )
    return "\n  ".join(told) + "\n"


def _tell_end(run: Run) -> None:
    """Print the error of a detached run to the log, as it may have failed before it had a directory."""
    for event in run.poll():
        if isinstance(event, RunFinished) and event.message:
            print(f"mptui: {event.message}\n  {event.hint}", file=sys.stderr)  # noqa: T201 - the log
