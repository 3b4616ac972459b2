"""Starts a run in several processes, as its flags or the environment ask."""

import os
import re
import signal
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli.train import spawn
from mptui.cli.train.signals import Signals
from mptui.errors import ConfigError
from mptui.processes.child import mptui_command
from mptui.processes.rank_place import rank_place
from mptui.runs.launch.group_options import Group

if TYPE_CHECKING:
    from mptui.runs.launch.agent import Agent
    from mptui.runs.planning.plan import Request

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
    if asked is None and not devices and nodes == 1:
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
    if nodes > 1 and "name" in given and given["name"] is None:
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
    from mptui.lab.doctor.accelerate_launch import read_accelerate_launch

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
    if len(set(numbers)) < len(numbers) or (seen and max(numbers) >= len(seen)):
        of = f" of {_VISIBLE}={os.environ[_VISIBLE]}" if seen else ""
        raise ConfigError(f"--device {device}: not different devices{of}", hint="see: mptui detect")
    gpus = _gpus()
    if gpus == 0 or (not seen and max(numbers) >= gpus):
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
        if option.name in without or value is None or (value is False and not option.secondary_opts):
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
    command = mptui_command(str(ctx.info_name))[1:]
    launch = partial(_launch, group, request, [*command, *rank_flags(ctx)], path, given)
    return spawn.begin(
        launch,
        detach=bool(given["detach"]),
        isolate=bool(given["isolate"]),
        as_json=bool(given["as_json"]),
        quiet=bool(given["quiet"]) or os.environ.get("SLURM_NODEID", "0") != "0",
        resumes=path is not None or bool(given["resume"]),
        is_launcher=True,
    )


def _launch(
    group: Group,
    request: "Request",
    command: list[str],
    path: Path | None,
    given: Mapping[str, Any],
    ready: spawn.Ready,
    _as_json: bool,
    _quiet: bool,
) -> int:
    signals = Signals()
    from mptui.data.formats.open import check_data
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
    from mptui.cli.train.run_host import told_wait
    from mptui.processes.interruptible import still_waits
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
    code = train_in_group(group, words, path, attach, waits, on_start)
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
    from mptui.runs.store.claim import Claim
    from mptui.runs.store.directory import RANKS, claim

    if group.nodes == 1:
        claim(path).release()
    try:
        (path / RANKS).mkdir(mode=0o700, exist_ok=True)
        if group.nodes == 1:
            Claim(path / RANKS)
    except OSError as error:
        raise DiskError(f"{path / RANKS}: {error.strerror}", hint="choose another --runs-dir") from error
