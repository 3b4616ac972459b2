"""Sources of the live screen: a run in this process, in a child, or elsewhere."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import tomli_w
from typing_extensions import Self

from mptui.errors import ConfigError, DataError, MptuiError
from mptui.events import CommandAnswered, Event, PhaseChanged, RunFinished
from mptui.processes.start import environ_outside, launcher, mptui_command, shell_exit_code
from mptui.registry.own_code import fault_of
from mptui.runs.remote.control import preset_names
from mptui.runs.remote.feed import AttachedRun
from mptui.runs.store.directory import RANKS
from mptui.runs.store.index import view_to_resume
from mptui.runs.store.lock import owner_of
from mptui.runs.view.run_view import RunView
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request
    from mptui.runs.remote.feed import OwnFeed
    from mptui.runs.session.session import Session


# A source of the live screen: a run that it starts
# -------------------------------------------------


class StartedRun:
    """A run that a thread of this process starts for a request: here, or in another process.

    Args:
        request: The request.
        resume: The directory of the run to resume; None: a new run.
    """

    hosted = True

    def __init__(self, request: "Request", resume: Path | None) -> None:
        self.request = request
        self.can_detach = launcher() is None
        self.profiles: Sequence[str] = preset_names(request.environ)
        self.given: Sequence[str] = ()
        self.run: Path | None = None
        self.exit_code = 0
        self._feed: AttachedRun | OwnFeed | None = None
        self._early: deque[Event] = deque([PhaseChanged(phase="starting")])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._host, name="mptui-run", daemon=True)

    def start(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    @property
    def finished(self) -> bool:
        """Whether the run has ended, all its files are written, and a late screen has been told all of it."""
        return self._ended.is_set() and not self._early and not (self._feed and self._feed.pending)

    def poll(self) -> list[Event]:
        """Return the events since the last call."""
        events = [self._early.popleft() for _ in range(len(self._early))]
        return events + (self._feed.poll() if self._feed else [])

    def wait(self) -> None:
        """Wait for the end of the run."""
        while not self._ended.wait(1.0):  # a wait without a timeout would delay signal handlers
            pass

    def _host(self) -> None:
        started = time.monotonic()
        try:
            self._run(started)
        except MptuiError as error:
            self._refused(error.exit_code, error.message, error.hint, started)
        except Exception as error:  # noqa: BLE001 - a bug: shown on the screen, which must not wait forever
            traceback.print_exc()  # to the log
            fault = fault_of(error)
            words = clean(f"{type(error).__name__}: {error}")
            message, hint = (fault.message, fault.hint) if fault else (words, "")
            self._refused(1, message, hint, started)
        finally:
            self._ended.set()

    def _run(self, started: float) -> None:
        """Start the run and wait for its end; `started` is now, by the monotonic clock."""
        raise NotImplementedError

    def _asked(self, command: str, argument: str | None) -> None:
        """Tell that a command waits for the run to begin."""
        asked = CommandAnswered(command=command, state="asked", detail=argument or "", by="key")
        self._early.append(asked)

    def _refused(self, code: int, message: str, hint: str, started: float, status: str = "failed") -> None:
        """Emit the end of a run that never began, with the reason."""
        self.exit_code = code
        seconds = time.monotonic() - started
        self._early.append(
            RunFinished(status=status, exit_code=code, message=message, hint=hint, seconds=seconds)
        )


# In a separate process
# ---------------------


class IsolatedSource(StartedRun):
    """Starts `mptui run --detach` or `resume --detach` for a request, and attaches to it.

    Args:
        request: The request.
        runs: The folder of all runs.
        group: Flags of a run in several processes; none: a single one.
        resume: The directory of the run to resume; None: a new run.
    """

    isolated = True

    def __init__(
        self, request: "Request", runs: Path, *, group: Sequence[str] = (), resume: Path | None = None
    ) -> None:
        super().__init__(request, resume)
        self._command = command(request, runs, group, resume)
        self._resumed = None if resume is None else AttachedRun(resume, resumed=True)
        self.view = RunView() if self._resumed is None else self._resumed.view
        self._commands: deque[tuple[str, str | None]] = deque()
        self._attached: AttachedRun | None = None
        self._lock = threading.Lock()
        self._starting: subprocess.Popen[str] | None = None
        self._stop: int | None = None

    def send(self, command: str, argument: str | None = None) -> None:
        """Send a command, or queue it until the run has started."""
        with self._lock:
            attached = self._attached
            is_deaf = command == "stop" and attached is not None and not attached.connected
            if attached is not None and not is_deaf:
                attached.send(command, argument)
            elif command == "stop":
                self.stop(signal.SIGTERM)
            else:
                self._commands.append((command, argument))
                self._asked(command, argument)

    def stop(self, signal: int) -> None:
        """Ask the run to save and stop; safe in a signal handler."""
        self._stop = signal
        self._kill(signal)

    def save(self) -> None:
        """Ask the run to save and continue; safe in a signal handler."""
        if self.run is not None:
            self._kill(signal.SIGUSR2)

    def _kill(self, number: int) -> None:
        owner = None if self.run is None else owner_of(self.run / RANKS) or owner_of(self.run)
        if owner is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(owner, number)
        elif self._starting is not None and self._starting.poll() is None:
            self._starting.send_signal(number)

    def _run(self, started: float) -> None:
        self._begin(started)
        if self._attached is not None:
            while not self._attached.wait(1.0):
                pass
            self.exit_code = self._attached.exit_code

    def _begin(self, started: float) -> None:
        self._starting = subprocess.Popen(  # noqa: S603 - this program itself, and no shell
            self._command,
            env=environ_outside(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if self._stop is not None:
            self._starting.send_signal(self._stop)
        told, complaint = self._starting.communicate()
        if self._starting.returncode == 0:
            self.run = Path(json.loads(told)["directory"])
            attached = (self._resumed or AttachedRun(self.run)).start()
            with self._lock:
                self._attached = self._feed = attached
                for asked in self._commands:
                    self._attached.send(*asked)
            if self._stop is not None:
                self._kill(self._stop)
            return
        message, _, hint = complaint.rpartition("mptui: ")[2].strip().partition("\n")
        code = shell_exit_code(self._starting.returncode)
        status = "failed" if self._stop is None else "stopped"
        self._refused(code, clean(message), clean(hint.strip()), started, status)


def command(
    request: "Request", runs: Path, group: Sequence[str] = (), resume: Path | None = None
) -> list[str]:
    """Return the command line that starts `request`; for the arguments see `IsolatedSource`."""
    words = mptui_command("run" if resume is None else "resume", "--detach", "--json", *group)
    words += ["--trust-code"] if request.trust_code else []
    if resume is not None:
        words.append(str(resume))
    else:
        words += ["--runs-dir", str(runs)]
        words += [] if request.profile is None else ["--profile", request.profile]
    for key, (_, value) in request.flags.items():
        if key in {"data.path", "data.name"}:
            words += [] if value is None else ["--data", str(value)]
        elif key == "hardware.device":  # a group is started by what this flag says
            words += [] if "--device" in group else ["--device", str(value)]
        else:
            words += ["--set", f"{key}={_toml(value)}"]
    return words + [word for assignment in request.sets for word in ("--set", assignment)]


def _toml(value: Any) -> str:  # noqa: ANN401 - any value of the schema
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


# In this process
# ---------------
# Planning and the session need torch: both run in the thread of the source, never in the screen's.


class SessionSource(StartedRun):
    """Plans and runs a request, with events from the beginning.

    Args:
        request: The request.
        runs: The folder of all runs.
        on_directory: Called with the run directory, from the source's thread, before training.
        resume: The directory of the run to resume; None: a new run.
    """

    isolated = False

    def __init__(
        self,
        request: "Request",
        runs: Path,
        *,
        on_directory: Callable[[Path], None] = lambda _: None,
        resume: Path | None = None,
    ) -> None:
        super().__init__(request, resume)
        self.view = RunView() if resume is None else view_to_resume(resume)[0]
        self._resume = resume
        self._runs = runs
        self._on_directory = on_directory
        self._session: Session | None = None
        self._commands: SimpleQueue[tuple[str, str | None] | None] = SimpleQueue()
        self._stop: tuple[int | None] | None = None

    def send(self, command: str, argument: str | None = None) -> None:
        """Send a command, or queue it until the run has started.

        Another thread sends it, as a command is written to the journal, whose disk may hang.
        """
        session = self._session
        if command == "stop":
            self._stop = self._stop or (None,)
            if session is not None:
                session.mailbox.stop(None)
        if session is None:
            self._asked(command, argument)
        self._commands.put((command, argument))

    def stop(self, signal: int) -> None:
        """Ask the run to save and stop; safe in a signal handler."""
        self._stop = (signal,)
        if self._session is not None:
            self._session.mailbox.stop(signal)

    def save(self) -> None:
        """Ask the run to save and continue; safe in a signal handler."""
        if self._session is not None:
            self._session.mailbox.save()

    def _run(self, started: float) -> None:
        try:
            self._train()
        finally:
            self._commands.put(None)

    def _train(self) -> None:
        from mptui.runs.planning.build import check_inputs
        from mptui.runs.planning.plan import plan_run
        from mptui.runs.session.session import Session
        from mptui.runs.store.directory import create_run
        from mptui.runs.store.files import discard_unstarted

        plan = plan_run(self.request)
        if self._stop is not None:
            self._stopped_early()
            return
        path = self._resume
        if path is None:
            check_inputs(plan)  # report mistakes before creating the directory
            path = create_run(self._runs, plan.resolved.profile, str(plan.config.model.name), None)
        self._on_directory(path)
        self.run = path
        resume = self._resume is not None
        session = Session(plan, path, resume=resume, force_compile=plan.resolved.compile_forced)
        self._feed = session.listen()
        session.start()
        self._hand_over(session)
        session.wait()
        self.exit_code = session.result.exit_code
        if not resume and isinstance(session.result.error, ConfigError | DataError):
            discard_unstarted(path)
            self.run = path if path.exists() else None

    def _hand_over(self, session: "Session") -> None:
        """Pass commands to the session from now on, earlier ones first."""
        self._session = session
        if self._stop is not None:
            session.mailbox.stop(self._stop[0])
        threading.Thread(target=self._pass_on, args=(session,), name="mptui-commands", daemon=True).start()

    def _pass_on(self, session: "Session") -> None:
        """Send commands until the run has ended."""
        while (asked := self._commands.get()) is not None:
            session.send(*asked, by="key")

    def _stopped_early(self) -> None:
        signal = self._stop[0] if self._stop else None
        self.exit_code = 128 + signal if signal else 0
        self._early.append(RunFinished(status="stopped", exit_code=self.exit_code))
