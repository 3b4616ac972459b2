"""Starts a run in another process, detached or followed, or in a group of them; and what signals do to it."""

import contextlib
import json
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli import options as o
from mptui.cli.output import print_json
from mptui.cli.train.signals import Signals
from mptui.errors import ConfigError, DiskError, MptuiError
from mptui.io.files import open_regular
from mptui.io.streams import OutputError, drop_unwritten
from mptui.processes.rank_place import Group, rank_place
from mptui.processes.start import mptui_command, shell_exit_code
from mptui.runs.launch.slurm import requeue
from mptui.text import clean, clean_lines, shell_word

if TYPE_CHECKING:
    from mptui.cli.console import Renderer
    from mptui.runs.launch.launcher import Agent
    from mptui.runs.planning.plan import Request


# Starts a run in a separate process, for --detach and --isolate
# --------------------------------------------------------------
# The process is forked before torch is imported, and keeps the terminal until it has locked the run
# directory, so that earlier errors are printed here, with their exit codes.

Ready = Callable[[Path], None]
"""Called with the run directory once it exists."""

Train = Callable[[Ready, o.QuietOutput], int]
"""Trains, and returns the exit code."""

POLL_S, SOON_S = 0.1, 0.05
_HEAD = 1 << 16
_TERMINATED = 128 + signal.SIGTERM


AT_ONCE_S = 3.0
"""Seconds in which a detached run that fails is told by the command that started it."""


@dataclass(frozen=True, slots=True)
class Started:
    """A run that has started in process `pid`, which writes the error that ends it into a pipe."""

    directory: Path
    pid: int
    errors: int


def begin_process(
    train: Train, where: o.Background, output: o.QuietOutput, *, resumes: bool, is_launcher: bool = False
) -> int:
    """Call `train` in this process, in a detached one, or in one that this console follows.

    A job of SLURM that was asked to stop is queued again.

    Args:
        train: Trains.
        where: In this process, in the background, or in another process that is followed.
        output: What is printed.
        resumes: Whether the same command goes on with this run.
        is_launcher: Whether `train` starts the processes that own the run, and is followed.

    Raises:
        ConfigError: Runs can't be detached here.
    """
    process = os.getpid()
    try:
        if where.detach:
            from mptui.processes.start import check_detach

            check_detach()
            code = _start(train, partial(_report_started, as_json=output.as_json), is_launcher)
        elif where.isolate or is_launcher:
            # the launcher suspends its ranks before itself
            how = signal.SIGTSTP if is_launcher else signal.SIGSTOP
            follow = partial(_follow, suspend=how, output=output)
            code = _start(train, follow, is_launcher)
        else:
            code = train(lambda _: None, output)
    except typer.Exit as stopped:  # before there was anything to save
        code = stopped.exit_code
    if code == _TERMINATED and os.getpid() == process:
        told = requeue(os.environ, resumes=resumes)
        if told is not None:
            typer.echo(told, err=True)
    return code


def _start(train: Train, then: Callable[[Started], int], is_launcher: bool) -> int:
    """Call `train` in a new process, and `then` in this one once the run is ready.

    Returns in both processes: in the new one the exit code of `train`; in this one that of `then`, or of
    `train` if it ended before it was ready.
    """
    assert threading.active_count() == 1  # no thread survives a fork
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    forwarded = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    blocked = {*forwarded, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # until both processes have their handlers
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        os.close(read)
        return _Detached(write, owns=not is_launcher).call(train)
    os.close(write)
    for number in forwarded:
        signal.signal(number, lambda number, _frame: _send_on(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        directory = pipe.readline()
        if directory:
            return then(Started(Path(json.loads(directory)), child, read))
    return _exit_code_of(child)


def _send_on(child: int, number: int) -> None:
    """Send a signal to a child process; one that has ended needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, number)


def _is_alive(child: int) -> bool:
    """Whether a child process has not ended; it is not waited for."""
    import psutil

    return bool(psutil.Process(child).status() != psutil.STATUS_ZOMBIE)


def _exit_code_of(child: int) -> int:
    """Wait for the end of a process; 128 + signal number if a signal killed it."""
    _, status = os.waitpid(child, 0)
    return shell_exit_code(os.waitstatus_to_exitcode(status))


class _Detached:
    """The process of a run that leaves the terminal once it is ready.

    Args:
        write: A pipe to the process that has started it.
        owns: Whether this process owns the run.
    """

    def __init__(self, write: int, *, owns: bool) -> None:
        self._write = write
        self._owns = owns
        self._has_left = False

    def call(self, train: Train) -> int:
        """Train; an error after the terminal is left goes to the parent, too, as it may be about to leave."""
        from mptui.processes.start import LOG

        try:
            return train(self._leave, o.QuietOutput())
        except Exception as error:
            if self._has_left:
                told = (
                    error if isinstance(error, MptuiError) else MptuiError(repr(error), hint=f"see its {LOG}")
                )
                self._tell({"message": told.message, "hint": told.hint, "exit_code": told.exit_code})
            raise

    def _leave(self, directory: Path) -> None:
        """Lock the run, leave the terminal, and notify the parent if it still exists.

        Raises:
            RunDirectoryError: Another process trains this run.
            DiskError: The run's directory can't be written.
        """
        from mptui.processes.start import LOG, leave_terminal
        from mptui.runs.store.directory import claim

        if self._owns:
            claim(directory)
        leave_terminal(directory / LOG)
        self._has_left = True
        self._tell(str(directory))

    def _tell(self, words: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, json.dumps(words).encode() + b"\n")


def _failure_at_once(started: Started) -> dict[str, Any] | None:
    """Return the error of a run that fails within `AT_ONCE_S`, before it trains; None: it goes on."""
    from mptui.runs.store.journal import NAME

    until, journal = time.monotonic() + AT_ONCE_S, started.directory / NAME
    before = journal.stat().st_size if journal.exists() else 0
    while time.monotonic() < until:
        if select.select([started.errors], [], [], SOON_S)[0]:
            told = os.read(started.errors, _HEAD)
            if told:
                return dict(json.loads(told))
            code = _exit_code_of(started.pid)
            return (
                {"message": f"the run has ended with exit code {code}", "exit_code": code} if code else None
            )
        with contextlib.suppress(OSError), os.fdopen(open_regular(journal), "rb") as file:
            file.seek(before)
            if b'{"event":"run_started",' in file.read(_HEAD):
                return None
    return None


def _tell_failure(started: Started, failure: Mapping[str, Any], *, as_json: bool) -> int:
    """Print why a run has failed at once, in the words of its process; return its exit code."""
    message, hint = clean_lines(str(failure["message"])), clean(str(failure.get("hint", "")))
    code = int(failure["exit_code"])
    if as_json:
        print_json({"run": started.directory.name, "error": message, "hint": hint, "exit_code": code})
    typer.echo(f"mptui: {message}\n  {hint}".rstrip(), err=True)
    return code


def _report_started(started: Started, *, as_json: bool) -> int:
    """Print the started run, and the commands to watch and stop it; or why it has failed at once.

    Raises:
        DiskError: stdout can't be written. The run continues.
    """
    if (failure := _failure_at_once(started)) is not None:
        return _tell_failure(started, failure, as_json=as_json)
    try:
        _print_started(started, as_json=as_json)
    except OutputError as error:
        drop_unwritten(sys.stdout)
        run = shell_word(started.directory)
        raise DiskError(
            f"standard output: {error.strerror}",
            hint=f"the run has started and continues: mptui attach {run}; mptui stop {run}",
        ) from error
    return 0


def _print_started(started: Started, *, as_json: bool) -> None:
    from mptui.processes.start import LOG

    directory, run = clean(str(started.directory)), shell_word(started.directory)

    if as_json:
        print_json(
            {
                "run": started.directory.name,
                "directory": directory,
                "pid": started.pid,
                "status": "running",
                "log": str(started.directory / LOG),
            }
        )
        return
    typer.echo(f"run: {directory} (process {started.pid})")
    typer.echo(f"watch it: mptui attach {run}")
    typer.echo(f"stop it: mptui stop {run}")


def _suspend(run: int, number: int, renderer: "Renderer") -> None:
    """Suspend the process of a run, then this one; continue both when the shell continues this one."""
    from mptui.cli.train.host import suspend

    def hung_up(number: int, _frame: FrameType | None) -> None:
        _send_on(run, signal.SIGCONT)  # the run outlives its terminal
        os._exit(128 + number)

    _send_on(run, number)
    os.waitid(os.P_PID, run, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if not _is_alive(run):
        return
    before = signal.signal(signal.SIGHUP, hung_up)
    suspend(renderer)
    _send_on(run, signal.SIGCONT)
    signal.signal(signal.SIGHUP, before)


def _follow(started: Started, *, suspend: int, output: o.QuietOutput) -> int:
    """Show the run on this console until it ends, and return its exit code.

    SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded. SIGHUP ends only this process. SIGTSTP (ctrl+z)
    suspends the run, by the signal `suspend`, and this process.
    """
    from mptui.cli.train.host import renderer_of, tell_end
    from mptui.runs.remote.feed import AttachedRun
    from mptui.runs.store.directory import status_of

    def send_on(number: int, _frame: FrameType | None) -> None:
        _send_on(started.pid, number)

    for forwarded in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(forwarded, send_on)
    asked_to_suspend = threading.Event()
    signal.signal(signal.SIGTSTP, lambda _number, _frame: asked_to_suspend.set())
    source = AttachedRun(started.directory, is_alive=partial(_is_alive, started.pid)).start()
    renderer = renderer_of(silent=output.as_json or output.quiet)
    finished = None
    try:
        while not source.finished:
            for event in source.poll():
                renderer.handle(event)
                finished = event
            if asked_to_suspend.is_set():
                asked_to_suspend.clear()
                _suspend(started.pid, suspend, renderer)
            time.sleep(POLL_S)
    finally:
        renderer.close()
    code = _exit_code_of(started.pid)
    summary = status_of(started.directory)
    if "final" in summary:  # else it was stopped before a process of its group began it
        tell_end(summary, started.directory, code, as_json=output.as_json, quiet=output.quiet)
    message, hint = getattr(finished, "message", ""), getattr(finished, "hint", "")
    if output.as_json and "final" not in summary:
        print_json({"run": started.directory.name, "error": message, "hint": hint, "exit_code": code})
    if message:
        typer.echo(f"mptui: {clean(message)}\n  {clean(hint)}", err=True)
    return code


# Starts a run in several processes, as its flags or the environment ask
# ----------------------------------------------------------------------

_DEVICES = re.compile(r"\d{1,3}(,\d{1,3})+")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
OURS = frozenset(
    {"nproc_per_node", "nnodes", "rdzv_endpoint", "max_restarts", "accelerate_config", "detach", "isolate"}
    | {"as_json", "quiet", "name", "resume", "runs_dir", "run", "no_tui"}
)
"""Flags that a rank doesn't get, or gets otherwise."""


def group_of(ctx: typer.Context) -> Group | None:
    """Return the processes that the flags of a command ask for; None for a single one.

    Flags that are not given are taken from --accelerate-config. A list of devices (`--device 0,2`) becomes
    CUDA_VISIBLE_DEVICES, and is taken out of the flags.

    Raises:
        ConfigError: The flags contradict each other, or the machine lacks the GPUs.
    """
    given = ctx.params
    if (file := given.get("accelerate_config")) is not None:
        _follow_accelerate(file, given)
    devices = _take_devices(given)
    asked, nodes = given.get("nproc_per_node"), given.get("nnodes") or 1
    is_alone = asked is None and not devices and nodes == 1
    if is_alone:
        return None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "torchrun has started this process: it can't start a group itself",
            hint="leave out --nproc-per-node and --nnodes, or start mptui without torchrun",
        )
    if (nodes > 1) != bool(given.get("rdzv_endpoint")):
        raise ConfigError(
            f"--nnodes {nodes} {'without' if nodes > 1 else 'with'} --rdzv-endpoint",
            hint="several nodes meet at one of them: --nnodes 2 --rdzv-endpoint FIRST_NODE:29500 on each",
        )
    if nodes > 1 and given.get("name", "") is None:
        raise ConfigError("--nnodes without --name", hint="give the run the same --name on all nodes")
    processes = _processes(asked, devices, str(given.get("device") or "auto"))
    if processes * nodes == 1:
        return None
    return Group(
        processes=processes,
        nodes=nodes,
        endpoint=given.get("rdzv_endpoint") or "",
        max_restarts=given["max_restarts"],
    )


def scaled(request: "Request", group: Group | None, run: Path | None) -> "Request":
    """Return the request with the batch size and the rate for the processes of the run.

    Args:
        request: The request of the run.
        group: The processes that this one starts; None: those that a launcher has started, or this one.
        run: Directory of the run that goes on, if it has begun.

    Raises:
        ConfigError, DataError: The request is wrong.
    """
    from mptui.runs.planning.plan import scaled_to
    from mptui.runs.store.directory import CONFIG, has_started

    place = rank_place(os.environ)
    here = 1 if place is None else place.world_size
    processes = here if group is None else group.processes * group.nodes
    return scaled_to(request, processes, run / CONFIG if run is not None and has_started(run) else None)


def _follow_accelerate(file: Path, given: dict[str, Any]) -> None:
    """Fill in flags that were not given, and tell what can't be followed."""
    from mptui.lab.doctor.other_trainers import read_accelerate_launch

    found = read_accelerate_launch(file)
    given |= {name: value for name, value in found.flags.items() if given.get(name) is None}
    for note in found.notes:
        typer.echo(note, err=True)


def _take_devices(given: dict[str, Any]) -> int:
    """Make a list of devices visible to this process and its children; return their number.

    The ranks then train on CUDA, whatever a profile or a variable says of the device.
    """
    device = given.get("device")
    if device is None or not _DEVICES.fullmatch(device):
        return 0
    numbers = [int(part) for part in device.split(",")]
    seen = [part.strip() for part in os.environ.get(_VISIBLE, "").split(",") if part.strip()]
    is_hidden = seen and max(numbers) >= len(seen)
    if is_hidden or len(set(numbers)) < len(numbers):
        of = f" of {_VISIBLE}={os.environ[_VISIBLE]}" if seen else ""
        raise ConfigError(f"--device {device}: not different devices{of}", hint="see: mptui detect")
    gpus = _gpus()
    is_missing = not seen and max(numbers) >= gpus
    if is_missing or gpus == 0:
        here = f"{gpus} GPUs" if gpus else "no GPU"
        raise ConfigError(
            f"--device {device}: this machine has {here}",
            hint="see: mptui detect; several processes on a CPU: --device cpu --nproc-per-node 2",
        )
    os.environ[_VISIBLE] = ",".join(seen[number] if seen else str(number) for number in numbers)
    given["device"] = "cuda"
    return len(numbers)


def _processes(asked: str | None, devices: int, device: str) -> int:
    """Return the number of processes on this node."""
    gpus = 0 if device == "cpu" else devices or _gpus()
    if asked in {None, "gpu"}:
        if asked == "gpu" and not gpus:
            raise ConfigError(
                "--nproc-per-node gpu: there is no GPU here", hint="give a number, with --device cpu"
            )
        return gpus if asked == "gpu" else max(1, devices)
    if not asked.isdecimal() or not 0 < int(asked) < 10_000:
        raise ConfigError(f"--nproc-per-node {asked}: not a number of processes", hint="give 2, or gpu")
    if gpus and int(asked) > gpus:
        raise ConfigError(
            f"--nproc-per-node {asked}: {gpus} GPUs for {asked} processes",
            hint="start one process for each GPU: --nproc-per-node gpu; or train with --device cpu",
        )
    return int(asked)


def _gpus() -> int:
    from mptui.hardware.devices import find_machine

    return sum(device.kind != "cpu" for device in find_machine(with_torch=False).devices)


def rank_flags(ctx: typer.Context, without: Collection[str] = OURS) -> list[str]:
    """Return the flags that a command was given, as a command line."""
    words = []
    for option in ctx.command.params:
        value = ctx.params.get(str(option.name))
        is_off = value is None or (value is False and not option.secondary_opts)
        if is_off or option.name in without:
            continue
        if isinstance(value, bool):
            words.append((option.opts if value else option.secondary_opts)[0])
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [option.opts[0], str(each)]
    return words


def begin(ctx: typer.Context, group: Group, request: "Request", *, path: Path | None = None) -> int:
    """Start a group for `run`, or for `resume` of the run in `path`; follow it unless it is detached."""
    given = ctx.params
    is_first_node = os.environ.get("SLURM_NODEID", "0") == "0"
    command = mptui_command(str(ctx.info_name))[1:]
    command += rank_flags(ctx)
    launch = partial(_launch, group=group, request=request, command=command, path=path, given=given)
    return begin_process(
        launch,
        o.Background(**given),
        o.QuietOutput(as_json=given["as_json"], quiet=given["quiet"] or not is_first_node),
        resumes=path is not None or bool(given["resume"]),
        is_launcher=True,
    )


def _launch(
    ready: Ready,
    _output: o.QuietOutput,
    *,
    group: Group,
    request: "Request",
    command: list[str],
    path: Path | None,
    given: Mapping[str, Any],
) -> int:
    signals = Signals()
    from mptui.data.open import check_data
    from mptui.registry.tasks import DEFAULT_TASK
    from mptui.runs.planning.plan import resolve_request

    resolved = resolve_request(request)  # reports mistakes before a directory is made
    data = resolved.config.data
    if data.name is not None or data.path is not None:
        check_data(data, resolved.config.model.reads(resolved.task or DEFAULT_TASK))
    signals.leave_if_stopped()
    if path is None:
        model = resolved.config.model.name or resolved.task or "auto"
        path = _directory(group, given, resolved.profile, model)
        words = [*command, "--name", path.name, "--runs-dir", str(path.parent), "--resume"]
    else:
        words = [*command, "--no-tui", str(path)]
    _prepare(group, path)
    from mptui.cli.train.host import told_wait
    from mptui.processes.waiting import still_waits
    from mptui.runs.launch.launcher import train_in_group
    from mptui.runs.session.shutdown import end_now

    is_ready = False

    def on_start() -> None:
        nonlocal is_ready
        if not is_ready:
            is_ready = True
            ready(path)  # until the nodes have met, the terminal has what is said of it

    def attach(agent: "Agent") -> None:
        signals.attach(agent)
        # ranks have sessions of their own, which a terminal does not suspend
        signal.signal(signal.SIGTSTP, lambda _number, _frame: agent.suspend())

    waits = partial(told_wait, signals=signals)
    code = train_in_group(group, words, path, attach, told_wait=waits, on_start=on_start)
    if still_waits():
        end_now(code)
    return code


def _directory(group: Group, given: Mapping[str, Any], profile: str, model: str) -> Path:
    """Return the directory of the run, made unless it is resumed."""
    from mptui.runs.store.directory import check_is_run, check_name, create_run

    runs_dir, name = given["runs_dir"], given["name"]
    if name is not None:
        check_name(name)
        path: Path = runs_dir / name
        if given["resume"] and path.is_dir():
            check_is_run(path)
            return path
    return create_run(runs_dir, profile, model, name, by_all_nodes=group.nodes > 1)


def _prepare(group: Group, path: Path) -> None:
    """Make the folder of the ranks, and check that no other process trains the run.

    On a single node, the group's lock is taken now: the run counts as running until its ranks have started.

    Raises:
        RunDirectoryError: One does.
        DiskError: The run's directory can't be written.
    """
    from mptui.errors import DiskError
    from mptui.runs.store.directory import RANKS, claim
    from mptui.runs.store.lock import Claim

    if group.nodes == 1:
        claim(path).release()
    try:
        (path / RANKS).mkdir(mode=0o700, exist_ok=True)
        if group.nodes == 1:
            Claim(path / RANKS)
    except OSError as error:
        raise DiskError(f"{path / RANKS}: {error.strerror}", hint="choose another --runs-dir") from error
